"""Load-test tools whose own results are nested JSON: which of their keys are which column of the documented header. Pure.

Only what a tool writes by itself is read. A result without what the formulas need is refused with the file that has it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UsageError
from pipeline.latency.costs.totals import SAME_LENGTH, check_failed, count, number

_SPEC, _LOAD = "decoding_stats", "input_config.perf_analyzer.stimulus"
_ACCEPTED = f"{_SPEC}.acceptance_length_percentiles.average"
_RATE = f"{_SPEC}.draft_acceptance_rate_percentiles.average"
Get = Callable[[str], Any]  # by the keys of a path


@dataclass(frozen=True)
class Tool:
    known_by: str  # a path that its files have, and those of the tools after it may have
    columns: Mapping[str, str]  # by our name the paths, separated by spaces, of which the first with a value is read
    needed: str  # columns
    else_: str  # what to do without
    requests: tuple[str, str] = ("", "")  # how many succeeded and failed
    gamma: Callable[[Get], float] | None = None  # the draft length, where it can be computed
    drafts: str = ""  # a path that indicates drafts, whose acceptance is then needed


TOOLS = {
    "AIPerf or GenAI-Perf": Tool(
        "request_throughput.avg aiperf_version metadata.benchmark_phase",
        {
            "concurrency": f"input_config.phases.concurrency input_config.loadgen.concurrency {_LOAD}.concurrency "
            "input_config.concurrency",
            "rate": f"input_config.phases.rate input_config.loadgen.request_rate {_LOAD}.request_rate input_config.request_rate",
            "served_rate": "request_throughput.avg",
            "tpot_ms": "inter_token_latency.avg",  # (latency - TTFT) / (tokens - 1) of each request
            "ttft_ms": "time_to_first_token.avg",
            "latency_ms": "request_latency.avg",
            "tokens": "output_sequence_length.avg",
            "output_tok_s": "output_token_throughput.avg",
            "acceptance_length": "spec_decode_token_weighted_acceptance_length.avg spec_decode_acceptance_length.avg",
        },
        "tpot_ms tokens",
        "run it with --streaming, and give profile_export_aiperf.json (profile_export_genai_perf.json) of each load",
        ("request_count.avg", "error_request_count.avg"),
        lambda get: get("total_draft_tokens.avg") / get("total_spec_decode_steps.avg"),
    ),
    "inference-perf": Tool(
        "load_summary",
        {
            "concurrency": "load_summary.concurrency",
            "rate": "load_summary.achieved_rate",  # what was sent: less than `requested_rate` if the clients are slow
            "served_rate": "successes.throughput.requests_per_sec",
            "tpot_s": "successes.latency.time_per_output_token.mean",
            "ttft_s": "successes.latency.time_to_first_token.mean",
            "latency_s": "successes.latency.request_latency.mean",
            "tokens": "successes.output_len.mean successes.output_tokens.mean",
            "output_tok_s": "successes.throughput.output_tokens_per_sec",
        },
        "rate tpot_s tokens",
        "give stage_N_lifecycle_metrics.json of each stage, of answers that were streamed (`streaming: true`)",
        ("successes.count", "failures.count"),
    ),
    "trtllm-bench": Tool(
        "request_info.avg_num_concurrent_requests",
        {
            "concurrency": "request_info.avg_num_concurrent_requests",  # a mean, by Little's law
            "served_rate": "performance.request_throughput_req_s",
            "tpot_ms": "streaming_metrics.avg_tpot_ms",
            "ttft_ms": "streaming_metrics.avg_ttft_ms",
            "latency_ms": "performance.avg_request_latency_ms",
            "tokens": "request_info.avg_output_length",
            "output_tok_s": "performance.system_output_throughput_tok_s",
            "acceptance_length": _ACCEPTED,
        },
        "tpot_ms tokens",
        "run it with --streaming",
        # Of each request the rate is (length - 1) / draft length, so that means give the draft length.
        gamma=lambda get: (get(_ACCEPTED) - 1) / get(_RATE),
        drafts=_SPEC,
    ),
    "GuideLLM": Tool(
        "metrics",
        {
            "concurrency": "metrics.request_concurrency.total.mean",  # over all requests, as the others over successful ones
            "served_rate": "metrics.requests_per_second.successful.mean",
            "tpot_ms": "metrics.inter_token_latency_ms.successful.mean",  # time after the first token / (tokens - 1)
            "ttft_ms": "metrics.time_to_first_token_ms.successful.mean",
            "latency": "metrics.request_latency.successful.mean",
            "tokens": "metrics.output_token_count.successful.mean",
        },
        "concurrency served_rate tpot_ms ttft_ms latency tokens",
        "unsupported GuideLLM schema; convert it to CSV",
        ("metrics.request_totals.successful", "metrics.request_totals.errored"),
    ),
}  # fmt: skip


def one_by_one(documents: Any) -> Iterator[Any]:
    """The results of a document, or of documents one after another."""
    for document in documents if isinstance(documents, list) else [documents]:
        several = document.get("benchmarks") if isinstance(document, Mapping) else None  # of a GuideLLM report
        yield from several if isinstance(several, list) else [document]


def tool_of(result: Mapping[str, Any]) -> str | None:
    """The name of the tool that wrote it, or another file."""
    return next((name for name, tool in TOOLS.items() if _first(result, tool.known_by) is not None), None)


def read_result(name: str, result: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Cells by column, and quantities that were computed. UsageError for a test of which too many requests failed, and for a file
    without what is needed."""
    tool = TOOLS[name]
    completed, failed = (count({"": _first(result, path)}, "") for path in tool.requests)
    check_failed(where, completed, failed)
    cells = {ours: value for ours, paths in tool.columns.items() if (value := _first(result, paths)) is not None}
    needed = (*tool.needed.split(), *(["acceptance_length"] if _first(result, tool.drafts) else []))
    if missing := [ours for ours in needed if ours not in cells]:
        raise UsageError(f"{where}: a file of {name} without {', '.join(missing)}: {tool.else_}")
    if name == "inference-perf" and "concurrency" in cells:  # its rate then follows from it
        del cells["rate"]
    computed = {"most": completed, "arrivals": completed} if completed and "rate" in cells else {}
    try:
        length = tool.gamma(lambda path: number(_first(result, path))) if tool.gamma else 0.0
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return cells, computed
    whole = {"gamma": float(round(length))} if abs(length - max(1, round(length))) <= SAME_LENGTH else {}
    return cells, computed | whole


def _first(result: Any, paths: str) -> Any:
    """What is at the first of these paths that has a value; of a list the phase that was measured, or its only member."""
    for path in paths.split():
        value = result
        for key in path.split("."):
            if isinstance(value, list):
                phases = [phase for phase in value if isinstance(phase, Mapping) and phase.get("name") == "profiling"]
                value = next(iter(phases or value), None)
            value = value.get(key) if isinstance(value, Mapping) else None
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is not None:
            return value
    return None
