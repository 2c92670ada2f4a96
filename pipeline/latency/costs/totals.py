"""What the counts of a load test state: whether it is void, and what follows from the totals of `vllm bench serve`. Pure."""

import math
import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import UsageError
from pipeline.latency.costs.columns import plain_name

_FAILED = re.compile(  # requests, in a table: whole names, since `slo_failed` or `error_code` count something else
    r"(num_)?(failed|failures|errors|errored)(_requests|_prompts|_count)?|(num_)?requests_(failed|errored)|error_(count|requests)"
)
_SUCCEEDED = re.compile(
    r"(num_)?(success\w*|succeed\w*|completed|ok)(_requests|_count)?|(num_)?requests_(completed|ok)"
)
_SHARE = re.compile(r"rate|%|pct|percent|ratio|std")
_MOST_FAILED = 0.05  # of the requests of a test
SAME_LENGTH = 0.1  # difference of mean draft tokens from a whole number that the ends of outputs make
_SAME_TOKENS = 1.5  # ratio of two counts of the same output tokens from which one has counted something else
TOTALS = ("completed", "duration", "total_output_tokens")  # of a result of `vllm bench serve`
_TIMES = ("mean_tpot_ms", "mean_itl_ms")
FROM_TOTALS = (*TOTALS, "max_concurrent_requests", "burstiness", "spec_decode_num_drafts", "spec_decode_draft_tokens")


def check_result(where: str, result: Mapping[str, Any], table: bool = False) -> None:
    """UsageError for a result that states itself that it is none: most of its requests failed, its answers were not streamed, or
    its output tokens are not the tokens of its answers. A table may have its times under other names."""
    completed, failed = count(result, "completed"), count(result, "failed")
    check_failed(where, completed, failed or max(0.0, count(result, "num_prompts") - completed))
    tokens = count(result, "total_output_tokens")
    times = [count(result, name) for name in _TIMES if not table or name in result]
    if tokens > completed and (times or not table) and not any(times):
        raise UsageError(f"{where}: no time per token: the answers were not streamed; run the benchmark with streaming")
    texts = count(result, "total_output_tokens_retokenized")
    counters = count(result, "spec_decode_num_drafts") + count(result, "spec_decode_accepted_tokens")
    for other, what in ((texts, "its texts have"), (counters, "the server's counters have")):
        if tokens and other > _SAME_TOKENS * tokens:
            raise UsageError(
                f"{where}: {tokens:,.0f} output tokens, and {what} {other:,.0f}: the benchmark counted the chunks of streams, "
                "which hold several tokens each, so times per token are too long; count by `usage`, or use a later version"
            )


def check_counted(where: str, cells: Mapping[str, Any]) -> None:
    """The check of `check_failed`, by columns of a table that count failed requests and others."""
    counts = {plain_name(name): count(cells, name) for name in cells if not _SHARE.search(name.lower())}
    whole = {name: count for name, count in counts.items() if count == int(count)}
    failed = [(count, name) for name, count in whole.items() if _FAILED.fullmatch(name)]
    completed = [(count, name) for name, count in whole.items() if _SUCCEEDED.fullmatch(name)]
    if failed and completed:
        (most, of), (others, of_others) = max(failed), max(completed)
        check_failed(where, others, most, f" by '{of}' and '{of_others}'")


def check_failed(where: str, completed: float, failed: float, by: str = "") -> None:
    if failed > _MOST_FAILED * (completed + failed):
        raise UsageError(
            f"{where}: {failed:,.0f} of {completed + failed:,.0f} requests failed{by}, so the times are not those of this load; "
            "fix the test, or remove the result"
        )


def count(result: Mapping[str, Any], name: str) -> float:
    """A number of requests, tokens or seconds; 0 where it is not stated."""
    try:
        return max(0.0, number(result.get(name)))
    except (TypeError, ValueError, OverflowError):
        return 0.0


def number(cell: Any) -> float:
    """TypeError or ValueError for anything else."""
    if isinstance(cell, bool) or not math.isfinite(value := float(cell)):
        raise ValueError(f"{cell!r} is not a number")
    return value


def of_totals(where: str, result: Mapping[str, Any]) -> dict[str, float]:
    """Quantities by the totals of a test: mean output length and latency, requests per second, the most requests at once
    (`most`), the arrivals less those that bursts take off (`arrivals`), and the draft length by the counters."""
    try:
        tokens, completed = number(result["total_output_tokens"]), number(result["completed"])
        drafts, drafted = (count(result, f"spec_decode_{name}") for name in ("num_drafts", "draft_tokens"))
        length = drafted / drafts if drafts else 0.0
        computed = {"tokens": tokens / max(1.0, completed)}
        if (
            drafts and abs(length - round(length)) <= SAME_LENGTH
        ):  # else it changed during the test, or outputs are short
            computed["gamma"] = float(round(length))
        if duration := count(result, "duration"):
            computed["served_rate"] = completed / duration
            computed["most"] = min(completed, count(result, "max_concurrent_requests") or completed)
            computed["arrivals"] = max(0.0, completed) * (count(result, "burstiness") or 1.0)
        if tpot := count(result, "mean_tpot_ms"):
            computed["latency"] = (count(result, "mean_ttft_ms") + tpot * (computed["tokens"] - 1)) / 1e3
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{where}: incomplete result of `vllm bench serve` ({error}); run it again with --save-result"
        ) from None
    return computed
