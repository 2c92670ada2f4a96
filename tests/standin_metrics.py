"""Engines that decode nothing: they count what a test tells them, and show it as vLLM, SGLang, TensorRT-LLM or llama.cpp do.

The pages have the form of the sources (vllm 0.32.0 `v1/metrics`, sglang 0.5.23 `srt/observability/metrics_collector.py`,
llama.cpp b11434 `tools/server/server-task.cpp`, TensorRT-LLM `tensorrt_llm/metrics/collector.py`), less what is not read.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pipeline.engines.counts import Counts
from pipeline.engines.facts import WatchedEngine

LENGTH = 3  # draft tokens of a draft


@dataclass
class CountingEngine:
    """One engine. `began`: when it was started, in Unix seconds."""

    kind: WatchedEngine
    began: float = 1.7956e9
    model: str = "target"
    rank: str = "0"
    running: float = 0.0
    drafts: int = 0
    requests: int = 0
    accepted: list[int] = field(default_factory=lambda: [0] * LENGTH)  # by position
    is_streaming: bool = False

    def decode(self, drafts: int, accepted: tuple[int, ...], requests: int = 1) -> Counts:
        """Counts so many drafts; `accepted` by position. What a reader should find of them."""
        self.drafts += drafts
        self.requests += requests
        self.accepted = [one + more for one, more in zip(self.accepted, accepted, strict=True)]
        whole = self.kind != "sglang"
        return Counts(
            drafts=drafts,
            draft_tokens=drafts * LENGTH if whole else None,
            accepted=sum(accepted),
            accepted_first=accepted[0] if whole else None,
            tokens=drafts + sum(accepted) + requests,
        )

    def restart(self, at: float) -> None:
        self.began, self.drafts, self.requests, self.accepted = at, 0, 0, [0] * LENGTH

    @property
    def tokens(self) -> int:
        return self.drafts + sum(self.accepted) + self.requests

    def page(self) -> str:
        """The metrics page."""
        pages = {"vllm": self._vllm, "sglang": self._sglang, "llama.cpp": self._llama_cpp, "tensorrt-llm": self._trtllm}
        return "".join(pages[self.kind]())

    def _vllm(self) -> Iterator[str]:
        labels = {"engine": self.rank, "model_name": self.model}
        totals = {
            "num_drafts": self.drafts,
            "num_draft_tokens": self.drafts * LENGTH,
            "num_accepted_tokens": sum(self.accepted),
        }
        for name, value in totals.items():
            yield from _counter(f"vllm:spec_decode_{name}", [(labels, value)], self.began)
        places = [(labels | {"position": str(place)}, count) for place, count in enumerate(self.accepted)]
        yield from _counter("vllm:spec_decode_num_accepted_tokens_per_pos", places, self.began)
        yield from _gauge("vllm:num_requests_running", labels, self.running)
        yield from _counter("vllm:generation_tokens", [(labels, self.tokens)], self.began)

    def _sglang(self) -> Iterator[str]:
        """Several processes write these, so nothing says when a series began. A series is there when it first counts."""
        labels = {"engine_type": "unified", "model_name": self.model}
        streamed = labels | {"is_streaming": str(self.is_streaming).lower()}
        yield from _gauge("sglang:num_running_reqs", labels | {"dp_rank": self.rank, "tp_rank": "0"}, self.running)
        if self.requests:
            yield from _counter("sglang:generation_tokens", [(streamed, self.tokens)])
            yield from _counter("sglang:num_requests", [(streamed, self.requests)])
        if self.drafts:
            yield from _counter("sglang:spec_verify_calls", [(labels, self.drafts)])

    def _trtllm(self) -> Iterator[str]:
        labels = {"engine_type": "undefined", "model_name": self.model}
        yield from _counter("trtllm_generation_tokens", [(labels, self.tokens)], self.began)
        yield from _gauge("trtllm_num_requests_running", labels, self.running)
        for name, counts in (("drafted", [self.drafts] * LENGTH), ("accepted", self.accepted)):
            places = [(labels | {"token_position": str(place)}, count) for place, count in enumerate(counts) if count]
            yield from _counter(f"trtllm_spec_decode_{name}_tokens", places, self.began)

    def _llama_cpp(self) -> Iterator[str]:
        totals = {
            "tokens_predicted": self.tokens,
            "spec_decode_num_draft_tokens": self.drafts * LENGTH,
            "spec_decode_num_accepted_tokens": sum(self.accepted),
            "spec_decode_num_drafts": self.drafts,
        }
        for name, value in totals.items():
            yield f"# HELP llamacpp:{name}_total x\n# TYPE llamacpp:{name}_total counter\nllamacpp:{name}_total {value:.6g}\n"
        yield "# HELP llamacpp:requests_processing x\n# TYPE llamacpp:requests_processing gauge\n"
        yield f"llamacpp:requests_processing {self.running:.6g}\n"
        if self.drafts:
            name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
            yield f"# HELP {name} x\n# TYPE {name} counter\n"
            yield from (f'{name}{{position="{place}"}} {count}\n' for place, count in enumerate(self.accepted))


def _counter(name: str, series: list[tuple[Mapping[str, str], float]], began: float | None = None) -> Iterator[str]:
    yield f"# HELP {name}_total Number of {name}.\n# TYPE {name}_total counter\n"
    yield from (f"{name}_total{_labels(labels)} {float(value)!r}\n" for labels, value in series)
    if began is not None:
        yield f"# HELP {name}_created Number of {name}.\n# TYPE {name}_created gauge\n"
        yield from (f"{name}_created{_labels(labels)} {began!r}\n" for labels, _ in series)


def _gauge(name: str, labels: Mapping[str, str], value: float) -> Iterator[str]:
    yield f"# HELP {name} Number of requests.\n# TYPE {name} gauge\n{name}{_labels(labels)} {value!r}\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"


Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


@contextlib.contextmanager
def showing(answer: Callable[[str, Mapping[str, str]], Answer | None]) -> Iterator[str]:
    """An HTTP server on loopback, which yields its URL. `answer`: of the path and the headers of a request; None: it says nothing
    and closes the connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answer(self.path, {name.lower(): value for name, value in self.headers.items()})
            if found is None:
                return
            status, headers, body = found
            self.send_response(status)
            for name, value in (
                {"Content-Length": str(len(body)), "Content-Type": "text/plain"} | dict(headers)
            ).items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
