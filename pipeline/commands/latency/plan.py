"""`understudy latency plan`: replicas and draft length for a request rate and a percentile of the latency."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

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
from pipeline.progress import say_json

if TYPE_CHECKING:
    from pipeline.latency.load.plan import Goal
    from pipeline.latency.load.workload import Workload

_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0}


def plan(
    costs: Annotated[
        Path, path_option(metavar="F", help="Step costs: a file of `understudy profile` or of `latency fit`.")
    ],
    request_rate: Annotated[float, typer.Option(help="Requests per second over all replicas.")],
    p95: Annotated[
        str | None, typer.Option("--p95", metavar="T", help="95 of 100 requests take at most this long: 8s or 800ms.")
    ] = None,
    p99: Annotated[
        str | None, typer.Option("--p99", metavar="T", help="Instead: 99 of 100 requests take at most this long.")
    ] = None,
    acceptance: Annotated[
        Path | None,
        path_option(metavar="F", help="An evaluate artifact, its acceptance.json, or a baseline file of `check`."),
    ] = None,
    acceptance_rate: AlphaOption = None,
    output_tokens: TokensOption = None,
    prompt_tokens: PromptTokensOption = 128,
    max_num_seqs: CapOption = None,
    replica_cost: Annotated[
        float | None, typer.Option(metavar="N", help="Cost of a replica in an hour, in any currency.")
    ] = None,
    replica_gpus: Annotated[int, typer.Option(min=1, help="GPUs of a replica, for --plot.")] = 1,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the fewest replicas for a request rate and percentile.

    Prints a line for no draft, each draft length, and a schedule; the cheapest first.
    """
    from pipeline.commands.latency.options import check_plot, default_max_num_seqs, notes_on, read_costs_and_workload
    from pipeline.commands.tables.latency_plan import plan_json, plot_plan, print_plan
    from pipeline.errors import UsageError
    from pipeline.latency.load.closed_loop import curves
    from pipeline.latency.load.plan import make_plan, next_measurement
    from pipeline.latency.load.workload import measured_lengths

    check_plot(plot)
    for option, value in (("--request-rate", request_rate), ("--replica-cost", replica_cost)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{option} {value:g}: give a number above 0")
    goal = _goal(request_rate, p95, p99)
    step_costs, workload = read_costs_and_workload(
        costs, acceptance, acceptance_rate, output_tokens, prompt_tokens, plain=False
    )
    if acceptance is None and output_tokens is None:
        _refuse_mean_only(workload.tokens_W[0])
    cap, tokens = default_max_num_seqs(max_num_seqs, step_costs), float(workload.tokens_W.mean())
    best = make_plan(workload, step_costs, cap, goal)
    measure = next_measurement(workload, step_costs, best)
    notes = [*notes_on(step_costs, workload, cap), _lengths_note(workload, goal)]
    if acceptance_rate is not None:
        notes.append("note: --acceptance-rate is taken as exact; --acceptance gives the interval its error")
    if as_json:
        say_json(plan_json(best, measure, tokens, replica_cost), notes=notes)
    else:
        print_plan(best, measure, tokens, replica_cost, notes)
    if plot is not None:
        drawn = curves(workload, step_costs, cap, measured_lengths(workload, step_costs))
        plot_plan(best, drawn, tokens, replica_gpus, plot)


def _goal(request_rate: float, p95: str | None, p99: str | None) -> "Goal":
    """The request rate, and the percentile of the latency with its limit. UsageError unless one of the two options is given."""
    from pipeline.errors import UsageError
    from pipeline.latency.load.plan import Goal

    if (p95 is None) == (p99 is None):
        raise UsageError("give --p95 or --p99: the longest time that this share of requests may take, such as 8s")
    if p95 is not None:
        return Goal(request_rate, 0.95, _seconds("--p95", p95))
    return Goal(request_rate, 0.99, _seconds("--p99", p99 or ""))


def _refuse_mean_only(mean: int) -> NoReturn:
    from pipeline.errors import UsageError

    raise UsageError(
        f"give --output-tokens: long outputs decide the percentile, and the costs have only their mean, {mean}; {mean} if "
        f"all are alike, {mean}:CAP with the most tokens of an output, or a result of the lightest load test"
    )


def _lengths_note(workload: "Workload", goal: "Goal") -> str:
    import numpy as np

    from pipeline.config.quantiles import quantile_name

    longest = np.quantile(workload.tokens_W, goal.quantile)
    return f"output lengths: mean {workload.tokens_W.mean():.0f} tokens, {quantile_name(goal.quantile)} {longest:.0f}"


def _seconds(option: str, text: str) -> float:
    from pipeline.errors import UsageError

    number = text.strip().rstrip("ms ")
    try:
        seconds = float(number) * _UNITS[text.strip()[len(number) :].strip()]
    except (KeyError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{option} {text}: give a time above 0, such as 8s or 800ms")
    return seconds
