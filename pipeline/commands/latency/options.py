"""Options that `latency predict` and `latency schedule` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.latency.costs.step_costs import StepCosts
    from pipeline.latency.load.workload import Workload

_MAX_DEFAULT_CAP = 512

AlphaOption = Annotated[
    float | None,
    typer.Option(
        "--acceptance-rate",
        min=0,
        max=1,
        help="Instead of --acceptance: the same acceptance rate for every token. Needs --output-tokens.",
    ),
]
TokensOption = Annotated[
    int | None, typer.Option("--output-tokens", min=2, max=32768, help="Output length, with --acceptance-rate.")
]
PromptTokensOption = Annotated[int, typer.Option(min=1, help="Prompt length, with --acceptance-rate.")]
CapOption = Annotated[
    int | None,
    typer.Option(
        "--max-num-seqs",
        min=1,
        max=4096,
        help="Batch cap: the most requests that one replica decodes at once. Default: the largest measured batch.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")]
PlotOption = Annotated[Path | None, typer.Option(metavar="F", help="Write a plot to this PNG file.")]


def default_max_num_seqs(given: int | None, *costs: "StepCosts") -> int:
    """`given`, or the largest batch size that was measured in all of `costs`, at most 512."""
    return given or min(_MAX_DEFAULT_CAP, *(one.max_requests for one in costs))


def read_costs_and_workload(
    path: Path, acceptance: Path | None, alpha: float | None, tokens: int | None, prompt_tokens: int
) -> "tuple[StepCosts, Workload]":
    """Step costs and workload, cut to the draft lengths that were both measured and examined. UsageError for options that are
    missing or exclude each other."""
    from pipeline.latency.costs.step_costs import read_step_costs
    from pipeline.latency.load.workload import constant_acceptance_workload, read_workload

    if (acceptance is None) == (alpha is None):
        raise UsageError("give either --acceptance (an examination) or --acceptance-rate (a number)")
    if (alpha is None) != (tokens is None):
        raise UsageError("--acceptance-rate needs --output-tokens; --acceptance has its own output lengths")
    step_costs = read_step_costs(path)
    if not step_costs.plain:
        raise UsageError(
            f"{path}: no measurement of plain decoding (draft length 0), so there is no baseline for the speedup; add one"
        )
    if acceptance is not None:
        workload = read_workload(acceptance)
    else:
        assert alpha is not None
        assert tokens is not None
        workload = constant_acceptance_workload(alpha, prompt_tokens, tokens, step_costs.max_gamma)
    gammas = min(step_costs.max_gamma, workload.max_gamma)
    if gammas < 1:
        raise UsageError(f"--costs {path}: no measurement with a draft, so there is no draft length to choose; add one")
    return step_costs, workload.up_to(gammas)


def check_plot(plot: Path | None) -> None:
    if plot is not None and (plot.suffix != ".png" or not plot.parent.is_dir()):
        raise UsageError(f"--plot {plot}: give a .png file in an existing directory")


def notes(step_costs: "StepCosts", workload: "Workload", cap: int) -> list[str]:
    """Warnings for the reader of the figures: measurement beside other work, another draft, no prefill, extrapolation."""
    context, found = round(workload.context), list(step_costs.notes)
    if step_costs.draft_digest and workload.draft_digest and step_costs.draft_digest != workload.draft_digest:
        found.append(
            "note: the profile and the examination are of different drafts; this is fine if both have the same shape and dtype"
        )
    if not step_costs.prefills([max(1, context)]).any():
        found.append("note: prefill time is unknown, so latency leaves out TTFT")
    if not step_costs.covers(cap, workload.max_gamma, context):
        found.append(
            f"note: batch size {cap} with {context} tokens of context is outside the measured range; its times are extrapolated"
        )
    return found
