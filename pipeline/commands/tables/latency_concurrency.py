"""What `understudy latency predict --concurrency` prints: a load test that keeps so many requests open."""

from collections.abc import Sequence
from typing import Any

from pipeline.commands.tables.console import Report
from pipeline.config.quantiles import quantile_name
from pipeline.latency.load.closed_loop import ClosedLoop
from pipeline.latency.load.prediction import ClosedPoint


def _columns(quantiles: Sequence[float]) -> tuple[str, ...]:
    names = [f"{name} s" for name in ("mean", *map(quantile_name, quantiles))]
    return ("concurrency", "draft", *names, "TTFT s", "TPOT ms", "tokens/s", "measured tokens/s", "step times off by")


COLUMNS = _columns([0.95])


def print_concurrencies(found: Sequence[ClosedPoint], quantiles: Sequence[float], notes: Sequence[str]) -> None:
    """To stdout."""
    out = Report()
    out.table(
        _columns(quantiles),
        [
            [
                str(one.loop.concurrency),
                str(one.loop.gamma or "none"),
                *(f"{seconds:.3g}" for seconds in (one.loop.mean, *map(one.loop.distribution.quantile, quantiles))),
                f"{one.loop.first_token:.3g}",
                f"{1000 * one.loop.token:.3g}",
                f"{one.loop.throughput:,.0f}",
                "-" if one.measured is None else f"{one.measured:,.0f}",
                one.accuracy.short,
            ]
            for one in found
        ],
    )
    out.text(
        "of one replica that always has so many requests open, as a load test with --max-concurrency; TTFT and TPOT are means. "
        "measured: what the costs file has at this concurrency and draft length"
    )
    for note in notes:
        out.text(note)


def concurrencies_json(found: Sequence[ClosedPoint], quantiles: Sequence[float]) -> list[dict[str, Any]]:
    """All figures, in seconds and tokens per second."""

    def figures(loop: ClosedLoop) -> dict[str, float]:
        latencies = {quantile_name(one): loop.distribution.quantile(one) for one in quantiles}
        return {"mean": loop.mean, **latencies, "ttft": loop.first_token, "tpot": loop.token}

    return [
        {
            "concurrency": one.loop.concurrency,
            "draft_length": one.loop.gamma,
            "batch": one.loop.batch,
            **figures(one.loop),
            "tokens_per_second": one.loop.throughput,
            "measured_tokens_per_second": one.measured,
            "accuracy": one.accuracy.json(),
        }
        for one in found
    ]
