"""What `understudy probe` prints: a table of drafts, what decays where, a verdict each."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.probe import LOOKUP, Finding

_PIPE_WIDTH = 120


def print_findings(findings: Sequence[Finding], temperature: float, convention: str) -> None:
    """To stdout; a pipe gets plain text of a fixed width."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    drafts = [finding for finding in findings if finding.name != LOOKUP]
    first = drafts[0].figures
    console.print(
        f"{first['prompts']} prompts, {first['tokens']:,} tokens of the target at temperature {temperature:g}; "
        f"target calls as counted by '{convention}'",
        markup=False,
    )
    console.print(_table(findings))
    console.print(
        "tokens / call at the best γ; cost: a draft pass over a target pass; speedup: predicted from forward times alone",
        markup=False,
    )
    for finding in drafts:
        console.print(f"{finding.name}, acceptance rate", markup=False)
        if len(finding.domains) > 1:
            console.print("  by domain: " + _list(_domains(finding)), markup=False)
        console.print(
            "  by position in the output: " + _list(_bins(finding.figures["by_output_position"])), markup=False
        )
        console.print("  by context length: " + _list(_bins(finding.figures["by_context_length"])), markup=False)
    console.print()
    for finding in findings:
        console.print(finding.verdict, markup=False)
    best = max(findings, key=lambda finding: finding.speedup["value"] or 0.0)
    if len(findings) > 1 and best.pays:
        console.print(f"of these, {best.name}", markup=False)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table()
    table.add_column("draft", overflow="fold")
    for title in ("acceptance rate", "break-even", "best γ", "tokens / call", "cost", "speedup"):
        table.add_column(title, justify="right", no_wrap=True)
    for finding in findings:
        omega = finding.figures["tokens_per_target_call"][str(finding.gamma)]
        table.add_row(
            finding.name,
            _interval(finding.figures["acceptance_rate"], 3),
            _break_even(finding),
            str(finding.gamma),
            _interval(omega, 2),
            f"{finding.cost_ratio:.3f}",
            _interval(finding.speedup, 2),
        )
    return table


def _break_even(finding: Finding) -> str:
    if finding.name == LOOKUP:  # proposes nothing in many rounds: its rate says nothing of the others
        return "-"
    return "never" if finding.break_even is None else f"{finding.break_even:.3f}"


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
