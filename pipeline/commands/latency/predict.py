"""`understudy latency predict`: what requests take at a load, with speculation and without."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.latency.options import (
    AlphaOption,
    CapOption,
    JsonOption,
    PlotOption,
    PromptTokensOption,
    TokensOption,
)


def predict(
    times: Annotated[Path, typer.DraftOption(metavar="F", help="A profile, or costs of `latency fit`.")],
    acceptance: Annotated[
        Path | None,
        typer.DraftOption(metavar="F", help="An evaluate artifact, its acceptance.json or a check's baseline."),
    ] = None,
    acceptance_rate: AlphaOption = None,
    tokens: TokensOption = None,
    prompt_tokens: PromptTokensOption = 128,
    gamma: Annotated[
        int | None, typer.DraftOption(min=1, help="Draft length; by default the best one for every number of requests.")
    ] = None,
    rate: Annotated[
        str | None, typer.DraftOption(help="Requests a second, with commas; shares of the stability limit by default.")
    ] = None,
    batch_cap: CapOption = None,
    replicas: Annotated[int, typer.DraftOption(min=1, help="Servers that share the requests.")] = 1,
    simulate: Annotated[
        int, typer.DraftOption(min=0, help="Also simulate so many requests step by step, for the 95th percentile.")
    ] = 0,
    seed: Annotated[int, typer.DraftOption(min=0, help="Of the simulation.")] = 0,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mean and 95th percentile of latency, throughput and speedup against load, and where each way stops being stable."""
    import dataclasses
    import json

    from pipeline.commands.latency.options import batch_cap_of, check_plot, notes, read_pair
    from pipeline.errors import UsageError
    from pipeline.latency.load.prediction import chosen_lengths
    from pipeline.latency.load.prediction import predict as predicted
    from pipeline.report.latency_predict import plot_prediction, print_prediction

    check_plot(plot)
    rates = _rates(rate)
    step_costs, workload = read_pair(times, acceptance, acceptance_rate, tokens, prompt_tokens)
    if gamma is not None and gamma > workload.max_gamma:
        raise UsageError(f"--gamma {gamma}: draft lengths 1 to {workload.max_gamma} were measured and examined")
    cap = batch_cap_of(batch_cap, step_costs)
    lengths_N = chosen_lengths(workload, step_costs, cap, gamma)
    found = predicted(workload, step_costs, lengths_N, rates, replicas, simulate, seed)
    if as_json:
        print(json.dumps({"draft_lengths": lengths_N.tolist(), **dataclasses.asdict(found)}, indent=1, allow_nan=False))
    else:
        print_prediction(found, lengths_N, float(workload.tokens_W.mean()), notes(step_costs, workload, cap))
    if plot is not None:
        plot_prediction(found, plot)


def _rates(text: str | None) -> list[float]:
    from pipeline.errors import UsageError

    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [0.0]
    if not all(0 < one < float("inf") for one in found):
        raise UsageError(f"--rate {text}: give numbers above 0, with commas, such as 0.5,2,8")
    return found
