"""The summary of a run as text for a terminal, a log file or a pipe."""

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.report.plan import curve_text
from pipeline.report.summary import DraftLine, Summary

_NAMES = {
    "stock-before": "stock, before the move",
    "stock": "stock, now",
    "champion": "champion",
    "candidate": "candidate",
    "int8": "candidate, int8",
    "int4": "candidate, int4",
    "fp8": "candidate, fp8",
    "prompt-lookup": "prompt-lookup",
}
_PIPE_WIDTH = 110
_VERDICTS = {"promote": "passed", "refuse": "REFUSED", "already_champion": "already champion"}


def print_summary(summary: Summary) -> None:
    """Print to stdout; a pipe gets plain text of a fixed width."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    console.print(f"\nrun {summary.run}: {summary.state}", markup=False)
    if summary.stages:
        console.print(_stages(summary), markup=False)
    if summary.drafts:
        console.print(_drafts(summary))
        for line in summary.drafts:
            if line.broken:
                console.print(f"{_NAMES.get(line.name, line.name)}: {line.broken}", markup=False)
    if summary.perplexity:
        console.print(_perplexity(summary.perplexity), markup=False)
    if summary.learning_curve:
        console.print(curve_text(summary.learning_curve), markup=False, soft_wrap=True)
    if summary.decision:
        _print_decision(console, summary.decision)
    if summary.promotion:
        promotion = summary.promotion
        console.print(
            f"promotion: {promotion['result']}, {promotion['name']} version {promotion['version']}", markup=False
        )
    if summary.directories:
        named = "  ".join(f"--{role} {path}" for role, path in summary.directories.items())
        console.print(f"for probe: {named}", markup=False, soft_wrap=True)
    if summary.examination:
        console.print(f"for latency: --acceptance {summary.examination}", markup=False, soft_wrap=True)
    if summary.mlflow:
        console.print(f"MLflow: {summary.mlflow}", markup=False, soft_wrap=True)


def _stages(summary: Summary) -> str:
    done = [f"{line.job} {line.seconds:.0f} s" for line in summary.stages if line.state == "done"]
    skipped = [line.job for line in summary.stages if line.state == "skipped"]
    parts = ([f"done: {', '.join(done)}"] if done else []) + (
        [f"in the store already: {', '.join(skipped)}"] if skipped else []
    )
    return "\n".join(parts)


def _drafts(summary: Summary) -> Table:
    prompts = max((line.acceptance_rate["prompts"] for line in summary.drafts if line.acceptance_rate), default=0)
    table = Table(title=f"Temperature {summary.temperature:g}, {prompts} unseen prompts", title_justify="left")
    table.add_column("draft")
    for column in ("acceptance rate", f"tokens / target call, γ={summary.gamma}", "at temp. 0", "loops at 0", "MB"):
        table.add_column(column, justify="right")
    for line in summary.drafts:
        figures = ["broken", "-", "-", "-"] if line.broken else _figures(line)
        table.add_row(_NAMES.get(line.name, line.name), *figures, f"{line.megabytes:.2f}" if line.megabytes else "-")
    return table


def _figures(line: DraftLine) -> list[str]:
    return [
        _interval(line.acceptance_rate, 3),
        _interval(line.tokens_per_target_call, 2),
        f"{line.acceptance_rate_greedy:.3f}",
        f"{line.loop_share:.0%}",
    ]


def _interval(figure: dict[str, Any] | None, digits: int) -> str:
    if figure is None:
        return "-"
    if figure["low"] is None:
        return f"{figure['value']:.{digits}f} [no interval]"
    return f"{figure['value']:.{digits}f} [{figure['low']:.{digits}f}, {figure['high']:.{digits}f}]"


def _perplexity(figures: dict[str, float]) -> str:
    flavours = sorted({name.split("_")[1] for name in figures})
    moved = (
        f"{flavour} {figures[f'perplexity_{flavour}_before']:.1f} -> {figures[f'perplexity_{flavour}_after']:.1f}"
        for flavour in flavours
    )
    return f"target's perplexity on unseen files, before -> after its move: {', '.join(moved)}"


def _print_decision(console: Console, decision: dict[str, Any]) -> None:
    dropped = f", {decision['dropped_prompts']} prompts dropped" if decision.get("dropped_prompts") else ""
    console.print(
        f"\ndecision: {_VERDICTS[decision['verdict']]} (judged against the {decision['baseline']}{dropped})",
        markup=False,
    )
    forms = decision.get("forms", [])
    if any(form["verdict"] in ("slower", "refused") for form in forms):  # else nothing was chosen between
        for form in forms:
            console.print(f"  {form['verdict']:>12}  {form['text']}", markup=False)
    for rule in decision["rules"]:
        console.print(f"  {rule['verdict']:>10}  {rule['name']}: {rule['text']}", markup=False)
