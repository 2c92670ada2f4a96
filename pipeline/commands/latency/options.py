"""What `latency predict` and `latency schedule` are told of a machine and of its requests."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipeline.latency.costs.step_costs import StepCosts
    from pipeline.latency.load.workload import Workload

_MOST_CAP = 512  # where none is given

AlphaOption = Annotated[
    float | None,
    typer.DraftOption(
        "--acceptance-rate", min=0, max=1, help="Instead of --acceptance: one rate for every token. Needs --tokens."
    ),
]
TokensOption = Annotated[int | None, typer.DraftOption(min=2, max=32768, help="Of an answer, with --acceptance-rate.")]
PromptTokensOption = Annotated[int, typer.DraftOption(min=1, help="Of a prompt, with --acceptance-rate.")]
CapOption = Annotated[
    int | None,
    typer.DraftOption(
        "--batch-cap",
        min=1,
        max=4096,
        help="Requests a replica serves at once, at most; as many as were measured by default.",
    ),
]
JsonOption = Annotated[bool, typer.DraftOption("--json", help="All figures, as JSON.")]
PlotOption = Annotated[Path | None, typer.DraftOption(metavar="F", help="Draw it into this PNG file.")]


def batch_cap_of(given: int | None, *step_costs: "StepCosts") -> int:
    """As many as were measured for all of them, where none is given, and not more than anybody serves."""
    return given or min(_MOST_CAP, *(step_costs.max_requests for step_costs in step_costs))


def read_pair(
    times: Path, acceptance: Path | None, alpha: float | None, tokens: int | None, prompt_tokens: int
) -> "tuple[StepCosts, Workload]":
    """Both to the same draft lengths: those that were measured and examined. UsageError for what is missing or too much."""
    from pipeline.errors import UsageError
    from pipeline.latency.costs.step_costs import read_step_costs
    from pipeline.latency.load.workload import constant_acceptance_workload, read_workload

    if (acceptance is None) == (alpha is None):
        raise UsageError("give either --acceptance, an examination, or --acceptance-rate, a number")
    if (alpha is None) != (tokens is None):
        raise UsageError("--acceptance-rate and --tokens go together; an examination knows how long its answers are")
    step_costs = read_step_costs(times)
    if not step_costs.plain:
        raise UsageError(
            f"{times}: plain decoding (draft length 0) was never measured, and there is nothing to hold speculation against"
        )
    if acceptance is not None:
        workload = read_workload(acceptance)
    else:
        assert alpha is not None
        assert tokens is not None
        workload = constant_acceptance_workload(alpha, prompt_tokens, tokens, step_costs.max_gamma)
    gammas = min(step_costs.max_gamma, workload.max_gamma)
    if gammas < 1:
        raise UsageError(f"--times {times}: nothing was measured with a draft; there is no draft length to choose")
    return step_costs, workload.up_to(gammas)


def check_plot(plot: Path | None) -> None:
    from pipeline.errors import UsageError

    if plot is not None and (plot.suffix != ".png" or not plot.parent.is_dir()):
        raise UsageError(f"--plot {plot}: give a .png file in a directory that is there")


def notes(step_costs: "StepCosts", workload: "Workload", cap: int) -> list[str]:
    """A line for what whoever reads the figures should know: how the machine was measured, whose examination it is, what lies
    past what was measured."""
    context, found = round(workload.context), list(step_costs.notes)
    if step_costs.draft_digest and workload.draft_digest and step_costs.draft_digest != workload.draft_digest:
        found.append(
            "note: the examination is of another draft than was timed; fine for one of the same shape and number format"
        )
    if not step_costs.prefills([max(1, context)]).any():
        found.append("note: the times know no prefill, so the wait for a first token is left out")
    if not step_costs.covers(cap, workload.max_gamma, context):
        found.append(
            f"note: {cap} requests at once with {context} tokens each lie past what was measured; their times are carried on "
            "from the last that were"
        )
    return found
