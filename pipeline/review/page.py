"""The review page: a decision as one HTML file that needs no network. Reads no files but its template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from pipeline.acceptance.outcomes import ACCEPTED, BONUS, CORRECTED
from pipeline.acceptance.schema import Figure
from pipeline.drafts.kinds import KINDS, rates_are_of
from pipeline.escaping.markup import finalize, html, yaml_text
from pipeline.judgement.decision_file import split_trials
from pipeline.judgement.headline import (
    baseline_name,
    benefit_line,
    headline,
    interval,
    mark,
    points,
    power_lines,
    side_names,
    undo,
)
from pipeline.judgement.new_vocabulary import HEADER, lines, table
from pipeline.judgement.schema import BASELINE, CANDIDATE, LOOKUP, PLAIN, SIDES, Benefit, Decision, Side, TrainingStep
from pipeline.judgement.speed import conditions, drafts, not_measurable, per_second, remarks, speedup_text, with_length
from pipeline.review.charts import Charts
from pipeline.store.own_files import reads_own_files

_TEMPLATE = Path(__file__).with_name("page.html")
_ELEMENTS = {ACCEPTED: "b", CORRECTED: "i", BONUS: "u"}  # as short as HTML has them: there is one for each token
_RULE_CLASSES = {"pass": "pass", "fail": "fail", "inconclusive": "none"}
_MOST_BYTES = 1_900_000
_TABLE, _ROW = re.compile("<table.*?</table>", re.DOTALL), re.compile("<tr>.*?</tr>", re.DOTALL)
_HEADER, _CELL, _TAG = re.compile("<th [^<>]*>(.*?)</th>"), re.compile(r"<td\b"), re.compile("<[^<>]*>")


def review_page(
    decision: Decision,
    examples: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
) -> str:
    """The page of `decision.json` and `examples.json`, under 2 MB.

    `config`: the resolved config, to repeat the run. `run`: its `id` and `promotion` (name, version, result, or None), where they
    are known.
    """
    shown = list(examples["examples"])
    while True:
        page = _render(decision, shown, len(examples["examples"]) - len(shown), config, run)
        size = len(page.encode())
        if size <= _MOST_BYTES or not shown:
            return page
        shown = shown[: int(len(shown) * 0.9 * min(1.0, _MOST_BYTES / size))]


@cache
@reads_own_files("a template of this installation")
def _template() -> Template:
    environment = Environment(autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "interval": interval,
        "points": points,
        "three": lambda value: f"{value:,.0f}" if value >= 1000 else f"{value:.3g}",
        "signed": _signed,
    }
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def _render(
    decision: Decision,
    examples: Sequence[Mapping[str, Any]],
    left_out: int,
    config: Mapping[str, Any] | None,
    run: Mapping[str, Any] | None,
) -> str:
    decision = _in_order(decision)
    benefit = decision.benefit
    lengths = sorted(benefit.by_draft_length.items()) if benefit else []
    promotion = run["promotion"] if run else None
    shown, names = headline(decision, promotion), _names(decision)
    page = _template().render(
        title=f"{mark(decision, promotion)} {shown[0]}",
        decision=decision,
        lines=_without_remarks(decision, shown),
        about_rows=[_sentence(line) for line in lines(decision)],
        rows_header=HEADER,
        rows_table=table(decision.new_vocabulary) if decision.new_vocabulary else [],
        mark=mark(decision, promotion),
        names=names,
        gamma=decision.gamma,
        prompts=max((draft.prompts for draft in decision.drafts.values()), default=0),
        rates=rates_are_of(
            [KINDS[examined.draft.kind].by_token for examined in decision.drafts.values()], decision.gamma
        ),
        prompts_by_domain=_prompts_by_domain(decision),
        order=SIDES,
        trials=_by_rate(split_trials(decision.training)[0]),
        rate=next((row.learning_rate for row in decision.training if row.learning_rate is not None), None),
        timed=any(variant.seconds is not None for variant in decision.variants),
        speed=_speed(decision, names),
        rule_class=_RULE_CLASSES,
        power=power_lines(decision),
        benefit_text=_sentence(benefit_line(decision, benefit)) if benefit else "",
        quantiles=_quantiles(benefit) if benefit else [],
        rates_by_requests=list(zip(*(rates for _, rates in lengths), strict=True)),
        lengths=[length for length, _ in lengths],
        charts=_charts(decision, names),
        examples=examples,
        worst=min(10, len(examples)),
        left_out=left_out,
        by_round=[names[side].lower() for side in (CANDIDATE, BASELINE) if _is_by_round(decision, side)],
        sides=(CANDIDATE, BASELINE),
        domains=sorted({example["domain"] for example in examples}),
        painted=_painted,
        provenance=_provenance(asdict(decision.provenance)),
        config=yaml_text(dict(config)) if config else "",
        run=run,
        undo=undo(decision, promotion).replace("`", ""),
    )
    return _TABLE.sub(lambda match: _labelled(match[0]), page)


def _names(decision: Decision) -> dict[Side, str]:
    """What the page calls the sides of the comparison."""
    return {
        CANDIDATE: "Candidate",
        BASELINE: baseline_name(decision).removeprefix("the ").capitalize(),
        LOOKUP: "Prompt-lookup",
        PLAIN: "Plain decoding",
    }


def _is_by_round(decision: Decision, side: Side) -> bool:
    """Whether it depends on where a round began which tokens of a completion the draft is accepted at."""
    figures = decision.drafts.get(side)
    return figures is not None and not KINDS[figures.draft.kind].by_token


def _by_rate(trials: Sequence[TrainingStep]) -> list[TrainingStep]:
    return sorted(trials, key=lambda row: row.trial_learning_rate or 0.0)


def _labelled(table: str) -> str:
    """The table with its column's name at each cell: a narrow page shows a row as a list of names and values, so that no figure
    is out of sight. Text of others is escaped, so it holds no tags."""
    columns = [_TAG.sub("", cell) for cell in _HEADER.findall(table.partition("</thead>")[0])]

    def row(match: re.Match[str]) -> str:
        labels = iter(columns[1:])
        return _CELL.sub(lambda _: f'<td data-label="{next(labels)}"', match[0])

    return _ROW.sub(row, table) if columns else table


def _speed(decision: Decision, names: Mapping[Side, str]) -> dict[str, Any] | None:
    """The table of measured tokens per second: conditions, and rows of text."""
    speed = decision.speed
    if speed is None:
        return None
    rows = [(names[PLAIN], per_second(speed.plain), "")]
    rows += [
        (with_length(names[side], draft), per_second(draft.tokens_per_second), speedup_text(draft))
        for side, draft in drafts(speed)
    ]
    return {
        "conditions": _sentence(conditions(speed)),
        "rows": rows,
        "confidence": speed.confidence,
        "remarks": [_sentence(line) for line in remarks(speed, side_names(decision))],
    }


def _prompts_by_domain(decision: Decision) -> dict[str, int]:
    """Prompts by domain, from the figures of any draft: a broken candidate has no figures, and an engine may have left prompts
    out for one draft."""
    counts: dict[str, int] = {}
    for draft in decision.drafts.values():
        for domain, figures in draft.domains.items():
            counts.setdefault(domain, figures.prompts)
    return counts


def _quantiles(benefit: Benefit) -> list[str]:
    """Names of the latency quantiles, which are the same for each side."""
    return [name for side in list(benefit.sides.values())[:1] for name in side.quantile_seconds]


def _without_remarks(decision: Decision, lines: Sequence[str]) -> list[str]:
    """The lines of the verdict. Remarks on measured speeds are below their table, so only why there is no speedup stays."""
    if decision.speed is None:
        return list(lines)
    names = side_names(decision)
    below = set(remarks(decision.speed, names)).difference(not_measurable(decision.speed, names))
    return [line for line in lines if line not in below]


def _in_order(decision: Decision) -> Decision:
    """Drafts in the order in which people read them; JSON files sort them by name."""
    return replace(decision, drafts={side: decision.drafts[side] for side in SIDES if side in decision.drafts})


_drawn: list[tuple[Decision, Mapping[Side, str], list[tuple[str, Markup]]]] = []  # of the last decision


def _charts(decision: Decision, names: Mapping[Side, str]) -> list[tuple[str, Markup]]:
    """Drawn once for a decision: matplotlib takes half a second, and a run writes its page after the gate and each later job."""
    if not _drawn or _drawn[0][:2] != (decision, names):
        _drawn[:] = [(decision, names, _draw(decision, Charts(names)))]
    return _drawn[0][2]


def _draw(decision: Decision, charts: Charts) -> list[tuple[str, Markup]]:
    drafts, gamma, benefit = decision.drafts, decision.gamma, decision.benefit
    if CANDIDATE not in drafts:
        return []
    models = {side: figures for side, figures in drafts.items() if side != LOOKUP and not _is_by_round(decision, side)}
    rows = [
        (
            "Tokens per target call by draft length. The dotted line is the draft length of the run (evaluate.gamma).",
            charts.by_draft_length(drafts, gamma),
        ),
        ("Acceptance by position in the draft, of draft tokens that are reached.", charts.by_position_in_draft(drafts)),
    ]
    for caption, axis, bins in (
        (
            "Acceptance rate by position in the output.",
            "position in the output (tokens)",
            {side: draft.by_output_position for side, draft in models.items()},
        ),
        (
            "Acceptance rate by context length.",
            "context length (tokens)",
            {side: draft.by_context_length for side, draft in models.items()},
        ),
    ):
        if bins:
            rows.append((caption, charts.by_bin(bins, axis)))
    if benefit:
        points, stated = benefit.by_load, benefit.requests_per_second
        rows += [
            (
                "Mean request latency by load. The dotted line is the stated load.",
                charts.latency_by_load(points, stated),
            ),
            ("Speedup by load.", charts.speedup_by_load(points, stated)),
        ]
    if benefit and benefit.output_tokens:
        limits = _latency_limits(decision)
        caption = (
            f"Tokens/s of the replica against those of one user, from 1 request (right) to {benefit.max_batch} at once (left). "
            f"The dotted line is the stated load{', a star a latency limit for a request of mean length' if limits else ''}."
        )
        rows.append((caption, charts.tokens_by_draft_length(benefit, benefit.output_tokens, limits)))
    training = split_trials(decision.training)[1]
    if sum(row.dev_acceptance_rate is not None for row in training) > 1:
        rows.append(("Acceptance rate on dev prompts during training.", charts.training(training)))
    return [(caption, Markup(svg)) for caption, svg in rows]


def _latency_limits(decision: Decision) -> dict[str, float]:
    """The limits of the latency in seconds, by name, such as `p95 8 s`."""
    rules = ((rule.name.partition(":"), rule.threshold) for rule in decision.rules)
    return {
        f"{quantile} {most:g} s": most
        for (name, _, quantile), most in rules
        if name == "max_latency_seconds" and most is not None
    }


def _painted(tokens: Sequence[str], outcomes: str) -> Markup:
    """Every token as an element whose class is what became of it."""
    parts = []
    for text, outcome in zip(tokens, outcomes, strict=True):
        element = _ELEMENTS.get(outcome)
        parts.append(f"<{element}>{html(text)}</{element}>" if element and text else str(html(text)))
    return Markup("".join(parts))


def _provenance(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of the table by name, nested names joined."""
    rows = []
    for name, value in sorted(provenance.items()):
        if isinstance(value, Mapping):
            shown = ", ".join(f"{key} {item}" for key, item in sorted(value.items()) if item is not None)
        else:
            shown = str(value)
        rows.append((name.replace("_", " "), shown))
    return rows


def _sentence(line: str) -> str:
    return line[:1].upper() + line[1:] + ("" if line.endswith("?") else ".")


def _signed(gain: Figure, digits: int) -> str:
    shown = f"{gain.value:+.{digits}f}"
    return shown if gain.low is None else f"{shown} [{gain.low:+.{digits}f}, {gain.high:+.{digits}f}]"
