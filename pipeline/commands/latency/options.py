"""What the commands on latency under load share: their options, and the reading of step costs and workload."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import path_option
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.latency.costs.step_costs import StepCosts
    from pipeline.latency.load.workload import Workload

_MAX_DEFAULT_CAP = 512
_HOW = "a number, MEAN:CAP, or a file"

AlphaOption = Annotated[
    float | None,
    typer.Option(
        "--acceptance-rate",
        min=0,
        max=1,
        help="Instead of --acceptance: the same acceptance rate for every token. Needs --output-tokens. Without both, the "
        "tokens per step that `latency fit` found in the measurements.",
    ),
]
TokensOption = Annotated[
    str | None,
    typer.Option(
        "--output-tokens",
        metavar="N|MEAN:CAP|F",
        help="Output lengths, without --acceptance: one number, a mean and a cap (lengths end at random), or a file: a table "
        "with a column output_tokens, or a result of `vllm bench serve`, best with --save-detailed. Default, but for `plan`: the "
        "mean of the measurements.",
    ),
]
PromptTokensOption = Annotated[int, typer.Option(min=1, help="Prompt length, without --acceptance.")]
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
PlotOption = Annotated[Path | None, path_option(metavar="F", help="Write a plot to this PNG file.")]


def default_max_num_seqs(given: int | None, *costs: "StepCosts") -> int:
    """`given`, or the largest batch size that was measured in all of `costs`, at most 512."""
    return given or min(_MAX_DEFAULT_CAP, *(file.max_requests for file in costs))


def read_costs_and_workload(
    path: Path,
    acceptance: Path | None,
    alpha: float | None,
    tokens: str | None,
    prompt_tokens: int,
    default_tokens: int | None = None,
    plain: bool = True,
    one_load: bool = False,
) -> "tuple[StepCosts, Workload]":
    """Step costs and workload, cut to the draft lengths that were both measured and examined. `default_tokens`: output length
    where neither an option nor the measurements have one; `plain`: whether plain decoding must have been measured; `one_load`:
    whether one load is enough.
    UsageError for options that are missing or exclude each other."""
    from pipeline.latency.costs.step_costs import read_step_costs
    from pipeline.latency.load.workload import read_workload

    if acceptance is not None and (alpha is not None or tokens is not None):
        given = "--acceptance-rate" if alpha is not None else "--output-tokens"
        raise UsageError(f"give either --acceptance (an examination, with its own output lengths) or {given}")
    if acceptance is None and alpha is not None and tokens is None:
        raise UsageError(f"--acceptance-rate needs --output-tokens: {_HOW}")
    step_costs = read_step_costs(path, one_load)
    if plain and not step_costs.plain:
        raise UsageError(
            f"{path}: no measurement of plain decoding (draft length 0), so there is no baseline for the speedup; add one"
        )
    if acceptance is not None:
        workload = read_workload(acceptance)
    else:
        workload = _workload_of_numbers(path, step_costs, alpha, tokens, prompt_tokens, default_tokens)
    gammas = min(step_costs.max_gamma, workload.max_gamma)
    return step_costs, workload.up_to(gammas)


def _workload_of_numbers(
    path: Path,
    step_costs: "StepCosts",
    alpha: float | None,
    tokens: str | None,
    prompt_tokens: int,
    default_tokens: int | None,
) -> "Workload":
    """A workload with one acceptance rate for every token, or with the tokens per step that the costs were measured with."""
    from pipeline.latency.load.output_lengths import MOST, parse_output_lengths
    from pipeline.latency.load.workload import constant_acceptance_workload, measured_acceptance_workload

    measured = step_costs.tokens_by_gamma
    if alpha is None and not measured:
        raise UsageError(f"{path} has no number of accepted tokens; give --acceptance or --acceptance-rate")
    mean = step_costs.output_tokens or default_tokens
    if tokens is None and mean is None:
        raise UsageError(f"give --output-tokens: {_HOW}; --acceptance has its own output lengths")
    lengths_W = parse_output_lengths(tokens or str(min(max(2, round(mean or 0)), MOST)))
    if alpha is not None:
        return constant_acceptance_workload(alpha, prompt_tokens, lengths_W, step_costs.max_gamma)
    workload = measured_acceptance_workload(measured, prompt_tokens, lengths_W, step_costs.max_gamma)
    return replace(workload, of_measurements=True, tokens_error=step_costs.tokens_error)


def check_plot(plot: Path | None) -> None:
    if plot is not None and (plot.suffix != ".png" or not plot.parent.is_dir()):
        raise UsageError(f"--plot {plot}: give a .png file in an existing directory")


def notes_on(step_costs: "StepCosts", workload: "Workload", cap: int) -> list[str]:
    """What the reader of the figures must know: measurement beside other work, another draft, no prefill, extrapolation."""
    context, notes = round(workload.context), list(step_costs.notes)
    if step_costs.draft_digest and workload.draft_digest and step_costs.draft_digest != workload.draft_digest:
        notes.append(
            "note: the profile and the examination are of different drafts; this is fine if both have the same shape and dtype"
        )
    if not step_costs.prefills([max(1, context)]).any() and not step_costs.first_token:
        notes.append("note: prefill time is unknown, so latency leaves out TTFT")
    if step_costs.load is not None:
        notes.append(
            f"note: measured at one load only ({step_costs.load} requests): which draft length is the best at others, and the "
            "latency by load, are unknown; measure other loads, one of them light"
        )
        return notes
    return notes + _extrapolations(step_costs, workload, cap)


def _extrapolations(step_costs: "StepCosts", workload: "Workload", cap: int) -> list[str]:
    """Batch sizes whose times are extrapolated: by draft length, at the batch cap, and below the lightest load."""
    ranges, context = step_costs.measured_requests, round(workload.context)
    lightest = min((low for low, _ in ranges.values()), default=1)
    notes = []
    for (low, high), gammas in groupby(
        sorted(ranges, key=lambda gamma: ranges[gamma]), key=lambda gamma: ranges[gamma]
    ):
        named = [str(gamma) for gamma in gammas if gamma <= workload.max_gamma]
        if named and (low, min(high, cap)) != (lightest, cap):
            notes.append(
                f"note: draft length {', '.join(named)} was measured at {low} to {high} requests only; times at other batch "
                "sizes are extrapolated"
            )
    if not ranges and not step_costs.covers(cap, workload.max_gamma, context):
        notes.append(
            f"note: batch size {cap} with {context} tokens of context is outside the measured range; its times are extrapolated"
        )
    if lightest > 1:
        notes.append(
            f"note: nothing was measured below batch size {lightest}; times there are extrapolated, so measure "
            "one request at a time too"
        )
    return notes
