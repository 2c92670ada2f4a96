"""What `understudy latency plan` prints and plots: replicas for a request rate within a percentile, by draft length."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.commands.tables.console import Report
from pipeline.config.quantiles import quantile_name
from pipeline.latency.load.closed_loop import ClosedLoop
from pipeline.latency.load.plan import NextMeasurement, Option, ReplicaPlan

_NONE, _MILLION = "-", 1_000_000


def _columns(percentile: str, unit: str) -> tuple[str, ...]:
    return ("draft", "replicas", f"{percentile} s", "alone s", "1 fewer s", "load", "measured", "by tokens/s", unit)


COLUMNS = _columns("p95", "cost/1M")


def print_plan(
    plan: ReplicaPlan, measure: NextMeasurement | None, tokens: float, replica_cost: float | None, notes: Sequence[str]
) -> None:
    """Print the plan to stdout. `tokens`: mean output length; `replica_cost`: the cost of a replica in an hour."""
    out, goal, best = Report(), plan.goal, plan.best
    percentile = quantile_name(goal.quantile)
    out.text(_answer(plan))
    out.table(
        _columns(percentile, "hours/1M" if replica_cost is None else "cost/1M"),
        [_row(option, goal.rate * tokens, replica_cost or 1.0) for option in plan.options],
    )
    unit = "replica hours" if replica_cost is None else f"cost at {replica_cost:g} a replica and hour,"
    out.text(
        f"replicas: the least number, and in brackets its interval by the errors of costs and acceptance. {percentile}: with "
        "these replicas; alone: of a request that no other delays; 1 fewer: with one replica fewer. load: offered load / "
        "capacity. measured: whether the costs have this draft length at such a batch. by tokens/s: replicas by the largest "
        f"throughput of the measurements, without the percentile. Last column: {unit} per million output tokens"
    )
    if best:
        out.text(f"{_named(best)}: {best.accuracy.said}; mean batch {best.batch:.1f}")
    if best and best.replicas and (best.by_throughput or 0) > best.replicas:
        out.text(
            f"by the largest measured throughput {best.by_throughput} are needed: no measurement shows what is expected of a "
            "replica. A short load test begins and ends with an empty batch; a longer one shows which number is right"
        )
    if plan.no_choice:
        names = ", ".join(option.name for option in plan.no_choice)
        out.text(f"no choice between {names}: they differ by less than the interval of the first")
    if measure:
        then = "" if measure.least is None else f" (then {_interval(measure.least, measure.most)})"
        out.text(f"to narrow the interval most, measure {measure.what}{then}")
    for note in notes:
        out.text(note)


def _answer(plan: ReplicaPlan) -> str:
    goal, best = plan.goal, plan.best
    asked = f"{goal.rate:g} requests/s within {goal.seconds:g} s ({quantile_name(goal.quantile)})"
    if best is None:
        fastest = min(plan.options, key=lambda option: option.alone)
        return (
            f"{asked}: impossible with any number of replicas; a request that is alone takes {fastest.alone:.3g} s with "
            f"{_named(fastest)}. Allow more time, or shorten the outputs" + _if_lucky(fastest)
        )
    assert best.replicas is not None
    return f"{asked}: {_replicas(best.replicas)} [{_interval(best.least, best.most)}], {_named(best)}"


def _if_lucky(option: Option) -> str:
    """The replicas if all errors are in favour, where the errors decide whether it is impossible."""
    return (
        ""
        if option.least is None
        else f" (with all errors of costs and acceptance in favour: {_replicas(option.least)})"
    )


def _row(option: Option, tokens_per_second: float, replica_cost: float) -> list[str]:
    if option.replicas is None:
        return [option.name, "impossible", _NONE, _number(option.alone), *[_NONE] * 5]
    return [
        option.name,
        f"{option.replicas} [{_interval(option.least, option.most)}]",
        _number(option.seconds),
        _number(option.alone),
        "unstable" if option.fewer is None and option.replicas > 1 else _number(option.fewer),
        f"{option.load:.0%}",
        "yes" if option.measured else "no",
        _NONE if option.by_throughput is None else str(option.by_throughput),
        f"{cost_per_million(option.replicas, tokens_per_second, replica_cost):.3g}",
    ]


def cost_per_million(replicas: int, tokens_per_second: float, replica_cost: float) -> float:
    """The cost of a million output tokens; `replica_cost` is that of an hour."""
    return replicas * replica_cost * _MILLION / (3600 * tokens_per_second)


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3g}"


def _interval(least: int | None, most: int | None) -> str:
    """A number of replicas that is unknown, or that no number is enough for, is infinite at its side."""
    if least == most and least is not None:
        return str(least)
    return f"{'?' if least is None else least} to {'?' if most is None else most}"


def _replicas(count: int) -> str:
    return f"{count} replica{'s' if count > 1 else ''}"


def _named(option: Option) -> str:
    if option.name == "none":
        return "no draft"
    return "a schedule" if option.name == "schedule" else f"draft length {option.name}"


def plan_json(
    plan: ReplicaPlan, measure: NextMeasurement | None, tokens: float, replica_cost: float | None
) -> dict[str, Any]:
    """All figures; null: no number of replicas is enough, or unknown. Costs are per million output tokens."""
    goal = plan.goal
    return {
        "request_rate": goal.rate,
        "quantile": goal.quantile,
        "seconds": goal.seconds,
        "output_tokens": tokens,
        "options": [
            {
                "draft_length": option.name,
                "draft_lengths": option.lengths_N.tolist(),
                "replicas": option.replicas,
                "least_replicas": option.least,
                "most_replicas": option.most,
                "seconds": option.seconds,
                "alone_seconds": option.alone,
                "one_fewer_seconds": option.fewer,
                "load": option.load,
                "batch": option.batch,
                "measured": option.measured,
                "accuracy": option.accuracy.json(),
                "replicas_by_throughput": option.by_throughput,
                "replica_hours": option.replicas and cost_per_million(option.replicas, goal.rate * tokens, 1.0),
                "cost": option.replicas
                and replica_cost
                and cost_per_million(option.replicas, goal.rate * tokens, replica_cost),
            }
            for option in plan.options
        ],
        "no_choice": [option.name for option in plan.no_choice],
        "next_measurement": measure
        and {"what": measure.what, "least_replicas": measure.least, "most_replicas": measure.most},
    }


def plot_plan(
    plan: ReplicaPlan, curves: Mapping[int, Sequence[ClosedLoop]], tokens: float, gpus: int, path: Path
) -> None:
    """Tokens per second of a GPU against those of one user, by draft length; a star: the plan's best option, with the load of its
    replicas. A dotted line: a request of the mean length that takes as long as the target."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    goal, best = plan.goal, plan.best
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    largest = max(loops[-1].concurrency for loops in curves.values())
    for gamma, loops in curves.items():
        axes.plot(
            [loop.each for loop in loops],
            [loop.throughput / gpus for loop in loops],
            "o-" if gamma else "s--",
            color=None if gamma else "tab:gray",
            markersize=4,
            label=f"draft length {gamma}" if gamma else "no draft",
        )
    percentile = quantile_name(goal.quantile)
    axes.axvline(tokens / goal.seconds, color="black", linestyle=":", label=f"{percentile} {goal.seconds:g} s")
    if best and best.replicas:
        each = goal.rate * tokens / best.replicas / gpus
        label = f"target: {goal.rate:g} requests/s on {_replicas(best.replicas)} [{_interval(best.least, best.most)}]"
        axes.plot(tokens / goal.seconds, each, "k*", markersize=14, label=label)
    axes.set(
        xlabel="tokens/s of a user (1 / time per output token)",
        ylabel=f"tokens/s of a {'GPU' if gpus > 1 else 'replica'}",
        title=f"from 1 request at a time (right) to {largest} (left)",
    )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)
