"""`understudy latency predict`: latency by load, with speculation and without."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.latency.options import (
    AlphaOption,
    CapOption,
    JsonOption,
    PlotOption,
    PromptTokensOption,
    TokensOption,
)
from pipeline.commands.options import path_option
from pipeline.config.quantiles import DEFAULT_QUANTILE, LEAST_QUANTILE, MOST_QUANTILE
from pipeline.progress import say_json

if TYPE_CHECKING:
    from pipeline.latency.costs.step_costs import StepCosts
    from pipeline.latency.load.workload import Workload


def predict(
    costs: Annotated[
        Path, path_option(metavar="F", help="Step costs: a file of `understudy profile` or of `latency fit`.")
    ],
    acceptance: Annotated[
        Path | None,
        path_option(metavar="F", help="An evaluate artifact, its acceptance.json, or a baseline file of `check`."),
    ] = None,
    acceptance_rate: AlphaOption = None,
    output_tokens: TokensOption = None,
    prompt_tokens: PromptTokensOption = 128,
    gamma: Annotated[
        int | None, typer.Option(min=1, help="Draft length. Default: the best one for each batch size.")
    ] = None,
    request_rate: Annotated[
        str | None, typer.Option(help="Requests per second, comma-separated. Default: 10% to 90% of capacity.")
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Instead of request rates: requests that a load test keeps open (--max-concurrency), comma-separated.",
        ),
    ] = None,
    max_num_seqs: CapOption = None,
    quantile: Annotated[
        list[float] | None,
        typer.Option(
            metavar="Q",
            help="Quantile of the request latency, 0.5 to 0.99. May be given several times. Default: 0.95.",
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas that share the load.")] = 1,
    simulate: Annotated[int, typer.Option(min=0, help="Also simulate this many requests, step by step.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 0,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict latency, throughput and speedup by load.

    Prints the mean and quantiles of the request latency with speculation and without, and the capacity of both.
    """
    from pipeline.commands.latency.options import check_plot, default_max_num_seqs, notes_on, read_costs_and_workload
    from pipeline.commands.tables import latency_predict as tables
    from pipeline.commands.tables.latency_concurrency import concurrencies_json, print_concurrencies
    from pipeline.errors import UsageError
    from pipeline.latency.load import prediction as load
    from pipeline.review.at_load import plot_prediction

    check_plot(plot)
    rates, quantiles = _rates(request_rate), _quantiles(quantile or [DEFAULT_QUANTILE])
    clients = _concurrencies(concurrency)
    if clients and (rates or simulate or replicas > 1 or plot):
        raise UsageError("--concurrency: of one replica and without --request-rate, --replicas, --simulate and --plot")
    step_costs, workload = read_costs_and_workload(costs, acceptance, acceptance_rate, output_tokens, prompt_tokens)
    _check_gamma(gamma, workload, costs)
    cap, tokens = default_max_num_seqs(max_num_seqs, step_costs), float(workload.tokens_W.mean())
    lengths_N = load.chosen_lengths(workload, step_costs, cap, gamma)
    notes = notes_on(step_costs, workload, cap)
    notes += [*_equal_outputs(workload, acceptance), *_interpolated(gamma, step_costs)]
    if clients:
        closed = load.predict_closed(workload, step_costs, lengths_N, clients)
        if as_json:
            say_json({"concurrencies": concurrencies_json(closed, quantiles)}, notes=notes)
        else:
            print_concurrencies(closed, quantiles, notes)
        return
    prediction = load.predict(workload, step_costs, lengths_N, rates, replicas=replicas, simulated=simulate, seed=seed)
    notes += [*tables.above_measured(prediction, tokens), *tables.near_capacity(prediction)]
    if as_json:
        figures = {"draft_lengths": lengths_N.tolist(), **tables.prediction_json(prediction, quantiles)}
        say_json(figures, notes=notes)
    else:
        tables.print_prediction(prediction, quantiles, lengths_N, tokens, notes)
    if plot is not None:
        plot_prediction(prediction, quantiles, plot)


def _check_gamma(gamma: int | None, workload: "Workload", costs: Path) -> None:
    """UsageError for a draft length that was not measured or not examined."""
    from pipeline.errors import UsageError

    if gamma is not None and not workload.max_gamma:
        raise UsageError(f"--gamma {gamma}: --costs {costs} has no measurement with a draft; leave out --gamma")
    if gamma is not None and gamma > workload.max_gamma:
        raise UsageError(
            f"--gamma {gamma}: only draft lengths 1 to {workload.max_gamma} were measured and examined; choose one of them"
        )


def _equal_outputs(workload: "Workload", acceptance: Path | None) -> list[str]:
    """The note on outputs of one length, where they are not those of examined completions."""
    if acceptance is not None or len(set(workload.tokens_W.tolist())) > 1:
        return []
    return [
        f"note: every output has {workload.tokens_W[0]} tokens; if yours vary, so does the latency: give "
        "--output-tokens MEAN:CAP or a file of lengths"
    ]


def _interpolated(gamma: int | None, step_costs: "StepCosts") -> list[str]:
    """The note on a draft length that was not measured."""
    if gamma is None or step_costs.measured(gamma):
        return []
    return [f"note: draft length {gamma} was not measured; its times are interpolated"]


def _rates(text: str | None) -> list[float]:
    from pipeline.errors import UsageError

    try:
        rates = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < float("inf") for rate in rates):
        raise UsageError(f"--request-rate {text}: give numbers above 0, comma-separated, such as 0.5,2,8")
    return rates


def _concurrencies(text: str | None) -> list[int]:
    from pipeline.errors import UsageError

    parts = text.split(",") if text is not None else []
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--concurrency {text}: give whole numbers from 1, comma-separated, such as 1,8,32")
    return [int(part) for part in parts]


def _quantiles(asked: Sequence[float]) -> list[float]:
    from pipeline.errors import UsageError

    for quantile in asked:
        if not LEAST_QUANTILE <= quantile <= MOST_QUANTILE:
            raise UsageError(
                f"--quantile {quantile:g}: give a number from {LEAST_QUANTILE} to {MOST_QUANTILE}, such as 0.99"
            )
    return sorted(set(asked))
