"""What `understudy probe` prints: a table of drafts, what decays where, a verdict each."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.examination.probe import LOOKUP, Finding, Probe

_PIPE_WIDTH = 140


def print_probe(found: Probe, conditions: Mapping[str, Any], notes: Sequence[str]) -> None:
    """To stdout; a pipe gets plain text of a fixed width."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    drafts = [item for item in found.findings if item.name != LOOKUP]
    greedy = conditions["sampling"]["temperature"] == 0
    for line in (_headline(found, conditions), *notes):
        console.print(line, markup=False, soft_wrap=True)
    console.print(_table(found.findings, greedy))
    how = "as given, verification taken as free" if conditions["cost_ratio_given"] else "measured here"
    console.print(
        f"tokens / call at the best γ; cost: a draft pass over a target pass, {how}; arithmetic: of a token over plain "
        "decoding's; speedup: from forward times alone, so at most that",
        markup=False,
        soft_wrap=True,
    )
    if greedy:
        console.print(
            "Loops flatter drafts at temperature 0: look at the rate without them.", markup=False, soft_wrap=True
        )
    for finding in drafts:
        console.print(f"{finding.name}, acceptance rate", markup=False, soft_wrap=True)
        if len(finding.domains) > 1:
            console.print("  by domain: " + _list(_domains(finding)), markup=False, soft_wrap=True)
        console.print(
            "  by position in the output: " + _list(_bins(finding.figures["by_output_position"])), markup=False
        )
        console.print(
            "  by context length: " + _list(_bins(finding.figures["by_context_length"])), markup=False, soft_wrap=True
        )
    console.print()
    for name, reason in found.broken.items():
        console.print(f"{name}: cannot be examined: {reason}", markup=False, soft_wrap=True)
    for finding in found.findings:
        console.print(finding.verdict, markup=False, soft_wrap=True)


def _headline(found: Probe, conditions: Mapping[str, Any]) -> str:
    figures, sampling = found.findings[0].figures, conditions["sampling"]
    filters = "".join(
        f", {name} {sampling[name]:g}"
        for name, off in (("top_k", 0), ("top_p", 1), ("min_p", 0))
        if sampling[name] != off
    )
    of = f" of {found.stored:,}" if found.stored > found.examined else ""
    of += f" ({found.seen:,} more left out: a draft was trained on them)" if found.seen else ""
    return (
        f"{found.examined:,}{of} prompts, {figures['tokens']:,} tokens of the target at temperature "
        f"{sampling['temperature']:g}{filters}; draft sampled: {conditions['draft_sampling']}; target calls as counted by "
        f"'{conditions['convention']}'"
    )


def _table(findings: Sequence[Finding], greedy: bool) -> Table:
    table = Table()
    longest = max(len(finding.name) for finding in findings)
    table.add_column("draft", overflow="fold", min_width=min(longest, 16))  # or the figures would squeeze it away
    loops = ("without loops", "loops") if greedy else ()
    for title in ("acceptance rate", *loops, "break-even", "best γ", "tokens / call", "cost", "arithmetic", "speedup"):
        table.add_column(title, justify="right", no_wrap=True)
    for finding in findings:
        table.add_row(finding.name, _interval(finding.figures["acceptance_rate"], 3), *_cells(finding, greedy))
    return table


def _cells(finding: Finding, greedy: bool) -> list[str]:
    figures = finding.figures
    without = figures["acceptance_rate_without_loops"]
    loops = ["-" if without is None else f"{without:.3f}", f"{figures['loop_share']:.0%}"] if greedy else []
    # Prompt-lookup proposes nothing in many rounds: its rate says nothing of the others.
    never = "-" if finding.name == LOOKUP else "never"
    return [
        *loops,
        never if finding.break_even is None else f"{finding.break_even:.3f}",
        str(finding.gamma),
        _interval(figures["tokens_per_target_call"][str(finding.gamma)], 2),
        f"{finding.cost_ratio:.3f}",
        "-" if finding.arithmetic is None else f"{finding.arithmetic:.2f}",
        _interval(finding.speedup, 2),
    ]


def _domains(finding: Finding) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, entry["acceptance_rate"]) for name, entry in finding.domains.items()]


def _bins(bins: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(f"{entry['from']}+", entry["acceptance_rate"]) for entry in bins]


def _list(entries: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    return ", ".join(f"{name} {rate['value']:.3f}" for name, rate in entries)


def _interval(entry: Mapping[str, Any], digits: int) -> str:
    if entry["low"] is None:
        return f"{entry['value']:.{digits}f}"
    return f"{entry['value']:.{digits}f} [{entry['low']:.{digits}f}, {entry['high']:.{digits}f}]"
