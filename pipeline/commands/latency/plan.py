"""`understudy latency plan`: replicas and draft length for a request rate and a percentile of the latency."""

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
from pipeline.progress import Progress, say_json

_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0}


def plan(
    costs: Annotated[
        Path, typer.Option(metavar="F", help="Step costs: a file of `understudy profile` or of `latency fit`.")
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
        typer.Option(metavar="F", help="An evaluate artifact, its acceptance.json, or a baseline file of `check`."),
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

    import numpy as np

    from pipeline.commands.latency.options import check_plot, default_max_num_seqs, notes, read_costs_and_workload
    from pipeline.commands.tables.latency_plan import plan_json, plot_plan, print_plan
    from pipeline.config.quantiles import quantile_name
    from pipeline.errors import UsageError
    from pipeline.latency.load.closed_loop import curves
    from pipeline.latency.load.plan import Goal, make_plan, next_measurement
    from pipeline.latency.load.workload import measured_lengths

    check_plot(plot)
    if (p95 is None) == (p99 is None):
        raise UsageError("give --p95 or --p99: the longest time that this share of requests may take, such as 8s")
    for option, value in (("--request-rate", request_rate), ("--replica-cost", replica_cost)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{option} {value:g}: give a number above 0")
    goal = (
        Goal(request_rate, 0.95, _seconds("--p95", p95))
        if p95 is not None
        else Goal(request_rate, 0.99, _seconds("--p99", p99 or ""))
    )
    step_costs, workload = read_costs_and_workload(
        costs, acceptance, acceptance_rate, output_tokens, prompt_tokens, plain=False
    )
    if acceptance is None and output_tokens is None:
        mean = workload.tokens_W[0]
        raise UsageError(
            f"give --output-tokens: long outputs decide the percentile, and the costs have only their mean, {mean}; {mean} if "
            f"all are alike, {mean}:CAP with the most tokens of an output, or a result of the lightest load test"
        )
    cap = default_max_num_seqs(max_num_seqs, step_costs)
    found = make_plan(workload, step_costs, cap, goal)
    measure = next_measurement(workload, step_costs, found)
    tokens, told = float(workload.tokens_W.mean()), notes(step_costs, workload, cap)
    longest = np.quantile(workload.tokens_W, goal.quantile)
    told.append(f"output lengths: mean {tokens:.0f} tokens, {quantile_name(goal.quantile)} {longest:.0f}")
    if acceptance_rate is not None:
        told.append("note: --acceptance-rate is taken as exact; --acceptance gives the interval its error")
    if as_json:
        for note in told:
            Progress().line(note)
        say_json(plan_json(found, measure, tokens, replica_cost))
    else:
        print_plan(found, measure, tokens, replica_cost, told)
    if plot is not None:
        drawn = curves(workload, step_costs, cap, measured_lengths(workload, step_costs))
        plot_plan(found, drawn, tokens, replica_gpus, plot)


def _seconds(option: str, text: str) -> float:
    from pipeline.errors import UsageError

    number = text.strip().rstrip("ms ")
    try:
        found = float(number) * _UNITS[text.strip()[len(number) :].strip()]
    except (KeyError, ValueError):
        found = 0.0
    if not 0 < found < float("inf"):
        raise UsageError(f"{option} {text}: give a time above 0, such as 8s or 800ms")
    return found
