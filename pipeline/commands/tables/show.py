"""The summary of a run as text for a terminal, a log file or a pipe."""

import shlex
from typing import Any

from pipeline.acceptance.decoding_speed import DecodingSpeed
from pipeline.acceptance.schema import Figure
from pipeline.commands.tables.console import NO_BREAK, Report
from pipeline.commands.tables.plan import curve_text
from pipeline.commands.tables.summary import DraftLine, Summary
from pipeline.drafts.kinds import rates_are_of
from pipeline.judgement.headline import compared, interval, outcome, power_summary, reasons, side_names
from pipeline.judgement.schema import PLAIN, REFUSE, BriefDecision
from pipeline.judgement.speed import conditions, drafts, per_second, remarks, speedup_text, with_length

COLUMNS = (
    "draft",
    "acceptance rate",
    "tokens / target call, γ={gamma}",
    "acceptance rate (T=0)",
    "repetition (T=0)",
    "MB",
)
SEGMENT_COLUMNS = (
    "segment",
    "of tokens",
    "draft",
    "acceptance rate",
    "tokens / target call, γ={gamma}",
    "acceptance of the segment's first tokens",
)
SPEED_COLUMNS = ("decoding", "tokens/s", "speedup")
_NAMES = {
    "base-before": "base draft, old target",
    "base": "base draft, new target",
    "champion": "champion",
    "candidate": "candidate",
    "int8": "candidate, int8",
    "int4": "candidate, int4",
    "fp8": "candidate, fp8",
    "prompt-lookup": "prompt-lookup",
}


def print_summary(summary: Summary, with_commands: bool = True) -> None:
    """Print to stdout. `with_commands`: those that predict speedup and latency, with the directories of the run."""
    out = Report()
    out.line()
    out.line(f"run {summary.run}: {summary.state}")
    if summary.failure:
        out.text(summary.failure, indent=2)
    if summary.decision:
        _print_verdict(out, summary.decision, summary.promotion)
    if summary.promotion:
        out.text(f"  {summary.promotion['name']} is made of {summary.naming}", indent=2)
    if summary.drafts:
        out.line()
        _print_drafts(out, summary)
        _print_segments(out, summary)
    if summary.perplexity:
        out.text(_perplexity(summary.perplexity))
    if summary.learning_curve:
        out.text(curve_text(summary.learning_curve))
    if summary.decision:
        _print_rules(out, summary.decision)
    _print_stages(out, summary)
    if with_commands:
        _print_commands(out, summary)
    elif summary.examination:
        out.line(
            f"to predict its speedup and latency elsewhere: understudy show {shlex.quote(summary.run)} has the commands"
        )
    if summary.page:
        out.line(f"review page: {summary.page}")
    if summary.mlflow:
        out.line(f"MLflow: {summary.mlflow}")
    if summary.decision and summary.decision.speed:
        _print_speed(out, summary.decision, summary.decision.speed)


def _print_commands(out: Report, summary: Summary) -> None:
    if {"target", "draft"} <= set(summary.directories):
        named = (f"--{option} {shlex.quote(value)}" for option, value in summary.directories.items())
        out.line(f"to predict the speedup on this machine: understudy probe {' '.join(named)}")
    if summary.examination:
        out.line(
            f"to predict latency: understudy latency predict --costs PROFILE --acceptance {shlex.quote(summary.examination)}"
        )
        models = (shlex.quote(summary.directories.get(name, name.upper())) for name in ("target", "draft"))
        measure = "understudy profile --target {} --draft {} --out PROFILE".format(*models)
        out.line(
            f"to make PROFILE: {measure} on the machine that serves, or understudy latency fit from its load tests"
        )


def _print_stages(out: Report, summary: Summary) -> None:
    done = [
        f"{line.job} {line.seconds:.0f} s".replace(" ", NO_BREAK) for line in summary.stages if line.state == "done"
    ]
    skipped = [line for line in summary.stages if line.state == "skipped"]
    shared = [f"{line.job} (of {line.shared_with})".replace(" ", NO_BREAK) for line in skipped if line.shared_with]
    reused = [line.job for line in skipped if not line.shared_with]
    for label, jobs in (("completed", done), ("shared within this run", shared), ("already in the store", reused)):
        if jobs:
            out.text(f"{label}: {', '.join(jobs)}", indent=2)
    if resumed := [line.job for line in summary.stages if line.resumed]:
        before = "not in these times: what tasks of a scheduler or a killed run had made before"
        out.text(f"{before} ({', '.join(resumed)})", indent=2)


def _print_drafts(out: Report, summary: Summary) -> None:
    prompts = max((line.acceptance_rate.prompts for line in summary.drafts if line.acceptance_rate), default=0)
    names = draft_names(summary)
    rows = [
        [
            names.get(line.name, line.name),
            *(["broken", "-", "-", "-"] if line.broken else _figures(line)),
            f"{line.megabytes:.2f}" if line.megabytes else "-",
        ]
        for line in summary.drafts
    ]
    columns = [column.format(gamma=summary.gamma) for column in COLUMNS]
    title = (
        f"Temperature {summary.temperature:g}, {prompts} examination prompts, {100 * summary.confidence:g}% intervals"
    )
    out.table(columns, rows, left=("draft",), title=title)
    examined = [line.by_token for line in summary.drafts if line.acceptance_rate]
    if examined and not all(examined):
        out.text(rates_are_of(examined, summary.gamma))
    for line in summary.drafts:
        if line.broken:
            out.text(f"{names.get(line.name, line.name)}: {line.broken}")


def _print_segments(out: Report, summary: Summary) -> None:
    """The candidate by segment, and what it is compared with."""
    shown = [line for line in summary.drafts if line.name in ("champion", "base", "candidate") and line.segments]
    if any(line.name == "champion" for line in shown):
        shown = [line for line in shown if line.name != "base"]
    names, rows = draft_names(summary), []
    for segment in shown[-1].segments if shown else ():
        for line in shown:
            figures, first = line.segments[segment], line is shown[0]
            omega = figures.tokens_per_target_call.get(summary.gamma)
            begins = figures.acceptance_of_begins
            rows.append(
                [
                    segment if first else "",
                    f"{figures.share:.0%}" if first else "",
                    names.get(line.name, line.name),
                    _interval(figures.acceptance_rate, 3),
                    _interval(omega, 2),
                    "-" if begins is None else f"{begins.value:.3f}",
                ]
            )
    if rows:
        columns = [column.format(gamma=summary.gamma) for column in SEGMENT_COLUMNS]
        if all(row[-1] == "-" for row in rows):  # heads have rates of rounds, not of tokens
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        out.table(columns, rows, left=("segment", "draft"), title="By segment of the completion")


def draft_names(summary: Summary) -> dict[str, str]:
    """What the table calls each draft. The base draft is said to be for the new target only where there is an old one."""
    changed = any(line.name == "base-before" for line in summary.drafts)
    return _NAMES if changed else _NAMES | {"base": "base draft"}


def _figures(line: DraftLine) -> list[str]:
    return [
        _interval(line.acceptance_rate, 3),
        _interval(line.tokens_per_target_call, 2),
        f"{line.acceptance_rate_greedy:.3f}",
        f"{line.loop_share:.0%}",
    ]


def _interval(figure: Figure | None, digits: int) -> str:
    return "-" if figure is None else interval(figure, digits)


def _perplexity(figures: dict[str, float]) -> str:
    domains = sorted({name.split("_")[1] for name in figures})
    changes = (
        f"{domain} {figures[f'perplexity_{domain}_before']:.1f} -> {figures[f'perplexity_{domain}_after']:.1f}"
        for domain in domains
    )
    return f"perplexity of the target on held-out files by domain, old -> new target: {', '.join(changes)}"


def _print_verdict(out: Report, decision: BriefDecision, promotion: dict[str, Any] | None) -> None:
    dropped = f"; {decision.dropped_prompts} prompts left out" if decision.dropped_prompts else ""
    verdict = "REFUSED" if decision.verdict == REFUSE else outcome(decision)
    out.line(f"decision: {verdict}")
    out.text(f"  {compared(decision)}{dropped}", indent=4)
    for reason in reasons(decision) if decision.verdict == REFUSE else ():
        out.text(f"  {reason}", indent=4)
    for line in decision.what_now:
        out.text(f"what now: {line}", indent=4)
    if promotion:
        out.line(f"promotion: {promotion['result']}, {promotion['name']} version {promotion['version']}")
        if "approve_with" in promotion:
            out.line(f"to approve it: {promotion['approve_with']}")


def _print_rules(out: Report, decision: BriefDecision) -> None:
    out.line()
    if any(variant.verdict in ("slower", "refused", "not made") for variant in decision.variants):
        # Otherwise there was only one variant to choose.
        _print_verdicts(out, [(standing.verdict, standing.text) for standing in decision.variants])
    _print_verdicts(out, [(rule.verdict, f"{rule.name}: {rule.text}") for rule in decision.rules])
    for line in power_summary(decision):
        out.text(f"power of {line}")


def _print_speed(out: Report, decision: BriefDecision, speed: DecodingSpeed) -> None:
    """The last lines of a run: what its draft is worth on this machine."""
    names = side_names(decision)
    rows = [[names[PLAIN], per_second(speed.plain), "-"]]
    rows += [
        [with_length(names[side], draft), per_second(draft.tokens_per_second), speedup_text(draft)]
        for side, draft in drafts(speed)
    ]
    out.line()
    out.table(SPEED_COLUMNS, rows, left=("decoding",), title=f"Measured: {conditions(speed)}")
    for line in remarks(speed, names):
        out.text(line)


def _print_verdicts(out: Report, lines: list[tuple[str, str]]) -> None:
    width = max((len(verdict) for verdict, _ in lines), default=0)
    for verdict, text in lines:
        out.text(f"  {verdict:<{width}}  {text}", indent=width + 4)
