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


def print_concurrencies(points: Sequence[ClosedPoint], quantiles: Sequence[float], notes: Sequence[str]) -> None:
    """Print a row for each concurrency to stdout."""
    out = Report()
    out.table(
        _columns(quantiles),
        [
            [
                str(point.loop.concurrency),
                str(point.loop.gamma or "none"),
                *(f"{seconds:.3g}" for seconds in (point.loop.mean, *map(point.loop.distribution.quantile, quantiles))),
                f"{point.loop.first_token:.3g}",
                f"{1000 * point.loop.token:.3g}",
                f"{point.loop.throughput:,.0f}",
                "-" if point.measured is None else f"{point.measured:,.0f}",
                point.accuracy.short,
            ]
            for point in points
        ],
    )
    out.text(
        "of one replica that always has so many requests open, as a load test with --max-concurrency; TTFT and TPOT are means. "
        "measured: what the costs file has at this concurrency and draft length"
    )
    for note in notes:
        out.text(note)


def concurrencies_json(points: Sequence[ClosedPoint], quantiles: Sequence[float]) -> list[dict[str, Any]]:
    """All figures, in seconds and tokens per second."""

    def figures(loop: ClosedLoop) -> dict[str, float]:
        latencies = {quantile_name(quantile): loop.distribution.quantile(quantile) for quantile in quantiles}
        return {"mean": loop.mean, **latencies, "ttft": loop.first_token, "tpot": loop.token}

    return [
        {
            "concurrency": point.loop.concurrency,
            "draft_length": point.loop.gamma,
            "batch": point.loop.batch,
            **figures(point.loop),
            "tokens_per_second": point.loop.throughput,
            "measured_tokens_per_second": point.measured,
            "accuracy": point.accuracy.json(),
        }
        for point in points
    ]
