"""What `understudy probe` prints: a table of drafts, acceptance by domain and position, a verdict for each draft."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.acceptance.schema import Figure, PositionBin
from pipeline.commands.tables.console import Report
from pipeline.drafts.kinds import rates_are_of
from pipeline.examination.probe import Finding, Probe
from pipeline.latency.costs.profile import UNEQUAL

_GREEDY_COLUMNS = ("without repetition", "repetition")  # shown at temperature 0 only
COLUMNS = (
    "draft",
    "acceptance rate",
    *_GREEDY_COLUMNS,
    "break-even acceptance",
    "best draft length (γ)",
    "tokens / target call",
    "cost ratio",
    "compute vs plain decoding",
    "speedup",
)


def print_probe(probe: Probe, conditions: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Print the figures of all drafts to stdout."""
    out = Report()
    greedy = conditions["sampling"]["temperature"] == 0
    for line in (_headline(probe, conditions), *notes):
        out.text(line)
    columns = [column for column in COLUMNS if greedy or column not in _GREEDY_COLUMNS]
    rows = [
        [finding.name, _interval(finding.figures.acceptance_rate, 3), *_cells(finding, greedy)]
        for finding in probe.findings
    ]
    out.table(columns, rows, left=("draft",))
    given = conditions["cost_ratio_given"]
    how = "as given, verification cost ignored" if given else f"measured here, on {conditions['device']}"
    out.text(
        "Tokens / target call, compute and speedup are at the best draft length. Cost ratio: "
        f"time of a draft pass / time of a target pass, "
        f"{how}. Compute: FLOPs per token / FLOPs per token of plain decoding. Speedup: computed from forward times alone, so it "
        "is an upper bound."
    )
    if probe.unequal_passes:
        out.text(f"Cost ratio: {UNEQUAL}. --cost-ratio states that of an engine.")
    out.text(
        rates_are_of(
            [finding.figures.by_output_position is not None for finding in probe.findings], conditions["gamma"]
        )
    )
    if greedy:
        out.text("At temperature 0 repetition raises acceptance: read the rate without repetition.")
    for finding in probe.findings:
        if finding.figures.by_output_position is not None:
            _print_acceptance(out, finding)
    out.line()
    out.text(_compared(probe, conditions["gamma"], conditions["gamma_from"]))
    for name, reason in probe.broken.items():
        out.text(f"{name}: cannot be examined: {reason}")
    for finding in probe.findings:
        out.text(finding.verdict)


def _print_acceptance(out: Report, finding: Finding) -> None:
    out.line(f"{finding.name}, acceptance rate")
    if len(finding.domains) > 1:
        out.text("  by domain: " + _list(_domains(finding)), indent=4)
    if finding.figures.by_segment:
        out.text("  by segment: " + _list(_segments(finding)), indent=4)
    out.text("  by position in the output: " + _list(_bins(finding.figures.by_output_position)), indent=4)
    out.text("  by context length: " + _list(_bins(finding.figures.by_context_length)), indent=4)


def _headline(probe: Probe, conditions: Mapping[str, Any]) -> str:
    figures, sampling = probe.findings[0].figures, conditions["sampling"]
    filters = "".join(
        f", {name} {sampling[name]:g}"
        for name, off in (("top_k", 0), ("top_p", 1), ("min_p", 0))
        if sampling[name] != off
    )
    of = f" of {probe.stored:,}" if probe.stored > probe.examined else ""
    of += f" ({probe.seen:,} more were left out because a draft was trained on them)" if probe.seen else ""
    return (
        f"{probe.examined:,}{of} prompts, {figures.tokens:,} target tokens at temperature "
        f"{sampling['temperature']:g}{filters}; draft sampling: {conditions['draft_sampling']}; convention for "
        f"target calls: {conditions['convention']}; {100 * conditions['confidence']:g}% intervals"
    )


def _compared(probe: Probe, gamma: int, source: str) -> str:
    """The drafts compared by the measure of `gate.beats_prompt_lookup`, at one draft length for all."""
    shown = (
        f"{finding.name} {_interval(finding.figures.tokens_per_target_call[gamma], 2)}" for finding in probe.findings
    )
    return (
        f"tokens / target call at {gamma} draft tokens ({source}), by which a run with this evaluate.gamma compares drafts with "
        f"prompt-lookup: {', '.join(shown)}"
    )


def _cells(finding: Finding, greedy: bool) -> list[str]:
    figures = finding.figures
    without = figures.acceptance_rate_without_loops
    loops = ["-" if without is None else f"{without:.3f}", f"{figures.loop_share:.0%}"] if greedy else []
    return [
        *loops,
        _break_even(finding),
        str(finding.gamma),
        _interval(figures.tokens_per_target_call[finding.gamma], 2),
        f"{finding.cost_ratio:.3f}",
        "-" if finding.arithmetic is None else f"{finding.arithmetic:.2f}",
        "not measurable" if finding.speedup is None else _interval(finding.speedup, 2),
    ]


def _break_even(finding: Finding) -> str:
    """A draft of which not every token is examined, such as prompt-lookup, has no break-even of its acceptance rate."""
    if finding.speedup is None or finding.figures.by_output_position is None:
        return "-"
    if finding.break_even is not None:
        return f"{finding.break_even:.3f}"
    return "never" if finding.least_break_even is None else f"above {finding.least_break_even:.3f}"


def _domains(finding: Finding) -> list[tuple[str, Figure]]:
    return [(name, entry.acceptance_rate) for name, entry in finding.domains.items()]


def _segments(finding: Finding) -> list[tuple[str, Figure]]:
    return [(name, part.acceptance_rate) for name, part in finding.figures.by_segment.items()]


def _bins(bins: Sequence[PositionBin] | None) -> list[tuple[str, Figure]]:
    return [
        (f"{entry.start}{'+' if entry.end is None else f'-{entry.end - 1}'}:", entry.acceptance_rate)
        for entry in bins or ()
    ]


def _list(entries: Sequence[tuple[str, Figure]]) -> str:
    return ", ".join(f"{name} {rate.value:.3f}" for name, rate in entries)


def _interval(figure: Figure, digits: int) -> str:
    if figure.low is None or figure.high is None:
        return f"{figure.value:.{digits}f}"
    return f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"
