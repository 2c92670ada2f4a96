"""What MLflow shows of a run, from its record and artifacts: verdict, name, parameters, figures, the note. Sends nothing."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.acceptance.schema import Figure
from pipeline.config.stored import given_config
from pipeline.escaping.markup import markdown
from pipeline.judgement.decision_file import recorded_decision, split_trials
from pipeline.judgement.headline import baseline_name, headline, interval, mark, points, power_summary, undo
from pipeline.judgement.rule_result import PASS
from pipeline.judgement.schema import BASELINE, CANDIDATE, PLAIN, BriefDecision, Decision, TrainingStep
from pipeline.judgement.speed import drafts, speedup_of
from pipeline.store.runs import RunRecord, shared_jobs

Point = tuple[str, float, int]  # metric, value, step
_MARKS = {"failed": "!", "interrupted": "!", "refused": "✗", "promoted": "✓"}  # where no decision is known


def verdict(record: RunRecord) -> str:
    """How the run ended, for a list: promoted, refused, already champion, failed, interrupted, stopped, running."""
    promotion = record.promotion
    if record.state == "finished" and promotion.get("result"):
        return str(promotion["result"])
    return record.state


def run_name(record: RunRecord) -> str:
    """The verdict comes first, so that a narrow column shows it."""
    word = verdict(record)
    decision = recorded_decision(record) if record.state == "finished" else None
    sign = mark(decision, registered(record)) if decision else _MARKS.get(word, "")
    return " ".join(filter(None, [sign, word, record.id]))


def registered(record: RunRecord) -> dict[str, Any] | None:
    """Name, version and result of the run's promotion; None if it registered nothing."""
    return record.promotion if "version" in record.promotion else None


def parameters(record: RunRecord) -> dict[str, str]:
    """The target, the base draft, and every setting that is not the default: few, and whatever differs between two runs."""
    config = given_config(record)
    chosen = flatten(
        config.model_dump(
            mode="json", exclude_defaults=True, exclude={"tracking": True, "name": True, "pair": {"reference"}}
        )
    )
    first = {
        "target": config.pair.target.source,
        "target_revision": config.pair.target.revision or "none",
        "base_draft": config.pair.draft.source,
        "temperature": str(config.sampling.temperature),
        "draft_length": str(config.evaluate.gamma),
    }
    repeated = (
        "pair.target.source",
        "pair.target.revision",
        "pair.draft.source",
        "sampling.temperature",
        "evaluate.gamma",
    )
    return first | {name: value for name, value in chosen.items() if name not in repeated}


def training_points(log: Sequence[TrainingStep]) -> list[Point]:
    """Curves of a training by step, without those of trials before it."""
    points: list[Point] = []
    for row in split_trials(log)[1]:
        for name, value in vars(row).items():
            if isinstance(value, dict):
                points += [(f"training/{name}/{segment}", float(figure), row.step) for segment, figure in value.items()]
            elif name != "step" and value is not None:
                points.append((f"training/{name}", float(value), row.step))
    return points


def decision_points(decision: Decision) -> list[Point]:
    """The figures of a decision: headline, curves by draft length and position, domains, rules. Rounded, for narrow columns."""
    return [(name, round(value, 4), step) for name, value, step in _decision_points(decision)]


def decision_figures(decision: Decision) -> dict[str, float]:
    """Its figures without the curves."""
    return {name: value for name, value, step in decision_points(decision) if not step}


def model_figures(decision: Decision) -> dict[str, float]:
    """The figures of the candidate that its registered version is linked to."""
    return {
        name: value
        for name, value in decision_figures(decision).items()
        if not name.startswith("rules/") and "_before" not in name and not name.endswith("_plain")
    }


def _decision_points(decision: Decision) -> list[Point]:
    drafts, gains, gamma = decision.drafts, decision.gains, decision.gamma
    points: list[Point] = [] if gains is None else _bounded("gain", gains.acceptance_rate)
    for side, suffix in ((CANDIDATE, ""), (BASELINE, "_before")):
        if side not in drafts:
            continue
        draft = drafts[side]
        for name, figure in (
            ("acceptance_rate", draft.acceptance_rate),
            ("tokens_per_target_call", draft.tokens_per_target_call[gamma]),
        ):
            points += [(f"{name}{suffix}", figure.value, 0)] if suffix else _bounded(name, figure)
        points.append((f"draft_megabytes{suffix}", draft.draft.bytes / 1e6, 0))
        points += [
            (f"tokens_per_target_call_by_gamma{suffix}", figure.value, length)
            for length, figure in draft.tokens_per_target_call.items()
        ]
        points += [
            (f"acceptance_by_position_in_draft{suffix}", value, position)
            for position, value in enumerate(draft.conditional_acceptance, 1)
        ]
        points += [
            (f"acceptance_rate{suffix}/{domain}", entry.acceptance_rate.value, 0)
            for domain, entry in draft.domains.items()
        ]
        points += [
            (f"acceptance_rate_of_segment{suffix}/{segment}", part.acceptance_rate.value, 0)
            for segment, part in draft.by_segment.items()
        ]
    points += [(f"gain/{domain}", gain.value, 0) for domain, gain in (gains.domains if gains else {}).items()]
    rules = [(f"rules/{rule.name.replace(':', '/')}", float(rule.verdict == PASS), 0) for rule in decision.rules]
    return [*points, *_benefit(decision), *rules]


def _benefit(decision: Decision) -> list[Point]:
    points = _speed(decision)
    sides = decision.benefit.sides if decision.benefit else {}
    for side, suffix in ((CANDIDATE, ""), (PLAIN, "_plain")):
        if side in sides:
            points.append((f"ms_per_token{suffix}", sides[side].ms_per_token, 0))
    for rule in decision.rules:
        rule_name, _, quantile = rule.name.partition(":")
        if rule_name == "max_latency_seconds" and rule.figure is not None:
            points += _bounded(f"predicted_{quantile}_seconds", rule.figure)
    return points


def _speed(decision: Decision) -> list[Point]:
    """The speedup over plain decoding, from the source that `speed_warnings` names, and measured tokens per second."""
    points: list[Point] = []
    speedup, speed = speedup_of(decision.rules, decision.speed), decision.speed
    if speedup is not None:
        points += _bounded("speedup", Figure(speedup.median, speedup.low, speedup.high, 0))
    if speed is not None:
        points.append(("tokens_per_second_plain", speed.plain.median, 0))
        names = {CANDIDATE: "tokens_per_second", BASELINE: "tokens_per_second_before"}
        points += [(names[side], draft.tokens_per_second.median, 0) for side, draft in drafts(speed)]
    return points


def _bounded(name: str, figure: Figure) -> list[Point]:
    """A figure and its bounds."""
    values = ((name, figure.value), (f"{name}_low", figure.low), (f"{name}_high", figure.high))
    return [(key, value, 0) for key, value in values if value is not None]


def note(record: RunRecord, decision: Decision | None, page: str | None) -> str:
    """The description of the run in MLflow. `page`: where MLflow shows the review page."""
    repeat = "To repeat it, save `config.yaml` from the artifacts and run `understudy run config.yaml`."
    return f"{markdown_summary(record, decision, page)} {repeat}"


def markdown_summary(record: RunRecord, decision: Decision | None, page: str | None = None) -> str:
    """A run in Markdown: the decision first."""
    lines: list[str] = []  # no heading: the page folds the description after six lines
    promotion = registered(record)
    if decision is not None:
        first, *rest = headline(decision, promotion)
        lines += [f"**{markdown(first)}**", "", *(f"- {markdown(line)}" for line in rest), ""]
        lines += [f"[Review page]({page})", ""] if page else []
        lines += [*_drafts(decision), "", *_rules(decision), ""]
        lines += [f"- {markdown(line)}" for line in power_summary(decision)] + [""]
    if promotion is not None:
        lines += [markdown(f"{promotion['name']} version {promotion['version']}: {promotion['result']}"), ""]
        lines += [undo(decision, promotion), ""] if decision is not None and undo(decision, promotion) else []
    if record.failure:
        lines += [markdown(record.failure), ""]
    done = {job for job, entry in record.jobs.items() if entry.state == "done"}
    shared = {job for job, owner in shared_jobs(record).items() if owner in done} - done
    said = f", {len(shared)} shared with one of them" if shared else ""
    lines += [
        f"Run `{record.id}`, started {record.created}: {len(record.jobs)} jobs, {len(done)} done in this run{said}, "
        f"{len(record.jobs) - len(done) - len(shared)} in the store already.",
    ]
    return "\n".join(lines)


def _drafts(decision: Decision) -> list[str]:
    gamma, level = decision.gamma, f"{100 * decision.confidence:g}% interval"
    lines = [
        f"| draft | acceptance rate, {level} | tokens per target call, {gamma} draft tokens, {level} | MB |",
        "|---|---|---|---|",
    ]
    for side, draft in decision.drafts.items():
        cells = [
            interval(draft.acceptance_rate, 3),
            interval(draft.tokens_per_target_call[gamma], 2),
            f"{draft.draft.bytes / 1e6:.2f}" if draft.draft.bytes else "-",
        ]
        name = baseline_name(decision).removeprefix("the ") if side == BASELINE else side.replace("_", "-")
        lines.append(f"| {markdown(name)} | {' | '.join(cells)} |")
    if decision.gains is not None:
        lines.append(f"| gain, paired by prompt | {points(decision.gains.acceptance_rate)} | | |")
    return lines if decision.drafts else []


def _rules(decision: BriefDecision) -> list[str]:
    rows = [f"| {markdown(rule.name)} | {rule.verdict} | {markdown(rule.text)} |" for rule in decision.rules]
    return ["Rules:", "", "| rule | verdict | what was found |", "|---|---|---|", *rows] if rows else []


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """`{"a": {"b": 1}}` as `{"a.b": "1"}`; other values are written as JSON."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and value:
        items = [(str(number), item) for number, item in enumerate(value)]
    else:
        return {prefix: value if isinstance(value, str) and value else json.dumps(value)}
    flat: dict[str, str] = {}
    for key, item in items:
        flat |= flatten(item, f"{prefix}.{key}" if prefix else key)
    return flat
