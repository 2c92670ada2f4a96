"""A server that speaks vLLM's HTTP protocol, with a pure function in the place of a model, and faults on demand.

The distribution over tokens is a softmax of logits that a hash of the last tokens gives, so that completions and scorings agree
and log p can be checked exactly. It runs in a thread of the test's process, on a real socket.
"""

import argparse
import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
VOCABULARY = 512
EOS = 7
_ORDER = 3  # tokens that the next distribution depends on
_NO_CUT_OFFS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def log_p_of(prefix: Sequence[int], weights: int = 0, scale: float = 1.0) -> NDArray[np.float64]:
    """(V,), read-only: log p of the next token at temperature 1, for a model called `weights`, with its logits times `scale`."""
    return _log_p_of(tuple(prefix[-_ORDER:]), weights, scale)


@functools.lru_cache(maxsize=8192)
def _log_p_of(last: tuple[int, ...], weights: int, scale: float) -> NDArray[np.float64]:
    digest = hashlib.sha256(f"{weights}/{list(last)}".encode()).digest()
    logits = 3.0 * np.random.Generator(np.random.SFC64(list(digest[:8]))).standard_normal(VOCABULARY)
    logits[EOS] += 6.0  # so that some completions end
    logits *= scale
    log_p = np.asarray(logits - np.log(np.exp(logits).sum()))
    log_p.setflags(write=False)
    return log_p


def sampled_from(log_p: NDArray[np.float64], body: dict[str, Any]) -> NDArray[np.float64]:
    """log p as sampled from: temperature, then top_k, then top_p, then min_p, as vLLM applies them."""
    temperature = body["temperature"] or 1.0
    found = log_p / temperature
    found = found - np.log(np.exp(found).sum())
    if body["temperature"] == 0:
        return found
    order = np.argsort(-found, kind="stable")
    keep = np.ones(len(found), dtype=bool)
    if body["top_k"] > 0:
        keep[order[body["top_k"] :]] = False
    if body["top_p"] < 1:
        p = np.where(keep, np.exp(found), 0)[order]
        p /= p.sum()
        keep[order[np.cumsum(p) - p > body["top_p"]]] = False
    if body["min_p"] > 0:
        keep &= found >= found[order[0]] + np.log(body["min_p"])
    found = np.where(keep, found, -np.inf)
    return np.asarray(found - np.log(np.exp(found).sum()))


@dataclass(frozen=True)
class Computed:
    """A completion, and log p of the prompt where they are asked for."""

    tokens: list[int]
    log_p: list[float]
    top: list[dict[int, float]]
    reason: str
    of_prompt: list[dict[int, float]] | None  # of all tokens but the first


Law = Callable[[Sequence[int]], NDArray[np.float64]]  # log p of the next token, (V,)


@dataclass(frozen=True)
class Speculation:
    """A draft that proposes its argmax, `gamma` tokens a round, past the end too, as vLLM does. `by_request`: with
    --per-request-spec-decode-metrics summary."""

    draft: Law
    gamma: int = 5
    by_request: bool = True

    def choice(self, ids: Sequence[int], begun: int) -> int:
        """The next draft token of a round that began when so many tokens were known."""
        return int(self.draft(ids).argmax())

    def rounds(self, target: Law, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """The accepted tokens of each round that makes the greedy completion `tokens`."""
        ids, end, found = [*prompt, *tokens[:1]], len(prompt) + len(tokens), list[int]()
        known = [*prompt, *tokens]
        while len(ids) < end:
            accepted, begun = 0, len(ids)
            while True:
                own = known[len(ids)] if len(ids) < end else int(target(ids).argmax())
                same = accepted < self.gamma and self.choice(ids, begun) == own
                ids.append(own)
                if not same:
                    break
                accepted += 1
            found.append(accepted)
        return found


Fault = Callable[
    [web.Request, bytes], Any
]  # given the request and the right answer, a coroutine that answers otherwise


@dataclass
class StandIn:
    """Options as the flags of vLLM; `faults` is asked with the number of each completion request (from 0) for a fault."""

    processed: bool = False
    scaled: bool = False  # log p of completions is at the temperature, before cut-offs
    max_logprobs: int = 128
    weights: int = 0
    scale: float = 1.0  # of the logits: greedy tokens stay the same
    rounding: float = 0.0  # standard deviation of an error of each log p, as of another batch in a coarse number format
    latency: float = 0.0
    defaults: dict[str, float] = field(default_factory=dict)  # of the generation config
    draws: int | None = None  # seeds requests without a seed, with their prompts: an answer depends on nothing else
    sampler_temperature: float | None = None  # a broken sampler: it uses this one, whatever is asked
    speculates: bool = False  # then log p of completions is wrong (vLLM 34497)
    law: Law | None = None  # in the place of `log_p_of`
    emits: Law | None = None  # greedy tokens are of it, while log p are of the law, as with a corrupted cache
    speculation: Speculation | None = None
    rounds: list[int] = field(default_factory=list)  # accepted tokens of every round, of all requests
    token: str | None = None  # bearer token that is required
    silent: bool = False  # it accepts connections and answers nothing
    context: int = 4096
    model: str = "target"
    version: str = "0.32.0"
    owner: str = "vllm"
    eos: int = EOS  # ends a completion; the distribution does not depend on it
    faults: Callable[[int], Fault | None] = lambda number: None
    log: bool = True  # whether `requests` and `served` are kept
    requests: list[dict[str, Any]] = field(default_factory=list)  # bodies of all completion requests
    served: list[tuple[list[int], list[int]]] = field(
        default_factory=list
    )  # prompt and tokens of right answers that were sent
    served_by: list[int] = field(default_factory=list)  # the weights that made each of them
    most_at_once: int = 0
    url: str = ""
    restart: Callable[[float], Any] = lambda seconds: None  # a coroutine: no connections for so long; set by `running`
    _at_once: int = 0
    _number: int = 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.middlewares.append(self._or_silence)
        app.router.add_get("/v1/models", self._models)
        self.add_routes(app.router)
        return app

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """What other engines have elsewhere."""
        router.add_get("/version", self.say_version)
        router.add_post("/v1/completions", self.complete)
        router.add_get("/metrics", self.say_metrics)

    @web.middleware
    async def _or_silence(self, request: web.Request, handler: Any) -> web.StreamResponse:
        while self.silent:
            await asyncio.sleep(0.02)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if (refused := self._unauthorised(request)) is not None:
            return refused
        entry = {"id": self.model, "object": "model", "root": f"/models/{self.model}", "max_model_len": self.context}
        entry["owned_by"] = self.owner
        return web.json_response({"object": "list", "data": [entry]})

    async def say_version(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"version": self.version})

    async def say_metrics(self, request: web.Request) -> web.StreamResponse:
        """vLLM's counters of speculation."""
        gamma = self.speculation.gamma if self.speculation else 0
        labels = f'engine="0",model_name="{self.model}"'
        values = {
            "drafts": len(self.rounds),
            "draft_tokens": gamma * len(self.rounds),
            "accepted_tokens": sum(self.rounds),
        }
        lines = [f"vllm:spec_decode_num_{name}_total{{{labels}}} {value}.0" for name, value in values.items()]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{place}"}} '
            f"{sum(accepted > place for accepted in self.rounds)}.0"
            for place in range(gamma)
        ]
        return web.Response(text="".join(f"{line}\n" for line in lines), content_type="text/plain")

    def target(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """(V,): log p of the next token."""
        return log_p_of(prefix, self.weights, self.scale) if self.law is None else self.law(prefix)

    def _unauthorised(self, request: web.Request) -> web.Response | None:
        if self.token is None or request.headers.get("Authorization") == f"Bearer {self.token}":
            return None
        return web.json_response({"error": "Unauthorized"}, status=401)

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a request in vLLM's form."""
        return body

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if (refused := self._unauthorised(request)) is not None:
            return refused
        received = await request.json()
        body = self.read(received)
        number = self._number
        self._number += 1
        if self.log:
            self.requests.append(received)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self.latency:
                await asyncio.sleep(self.latency)
            if (error := self._refusal(body)) is not None:
                return web.json_response({"error": {"message": error, "code": 400}}, status=400)
            computed = self.compute(body)
            raw = json.dumps(self.answer(body, computed)).encode()
            if (fault := self.faults(number)) is not None:
                answer: web.StreamResponse = await fault(request, raw)
                return answer
            if self.log and body.get("prompt_logprobs") is None:
                self.served.append((body["prompt"], computed.tokens))
                self.served_by.append(self.weights)
            return web.Response(body=raw, content_type="application/json")
        finally:
            self._at_once -= 1

    def _refusal(self, body: dict[str, Any]) -> str | None:
        if body["model"] != self.model:
            return f"The model `{body['model']}` does not exist."
        for name, what in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
            if (body.get(name) or 0) > self.max_logprobs:
                return (
                    f"Requested {what} logprobs of {body[name]}, which is greater than max allowed: {self.max_logprobs}"
                )
        if len(body["prompt"]) + body["max_tokens"] > self.context:
            return f"This model's maximum context length is {self.context} tokens."
        return None

    def right_answer(self, received: dict[str, Any]) -> dict[str, Any]:
        """To the body of a request."""
        body = self.read(received)
        return self.answer(body, self.compute(body))

    def compute(self, body: dict[str, Any]) -> Computed:
        """What a request asks for."""
        body = (
            {"temperature": 1.0, **_NO_CUT_OFFS}
            | self.defaults
            | {key: value for key, value in body.items() if value is not None}
        )
        seed = body.get("seed", None if self.draws is None else [self.draws, *body["prompt"]])
        rng = np.random.default_rng(seed)
        ids, tokens, log_p, top, reason = list(body["prompt"]), [], [], [], "length"
        while len(tokens) < body["max_tokens"]:
            plain = self.target(ids)
            broken = {} if self.sampler_temperature is None else {"temperature": self.sampler_temperature}
            by = sampled_from(plain, body | broken)
            greedy = plain if self.emits is None else self.emits(ids)
            token = int(greedy.argmax()) if body["temperature"] == 0 else _drawn(by, rng)
            given = by if self.processed else self._scaled(plain, body) if self.scaled else plain
            given = given - 0.5 if self.speculates else given
            given = self._rounded(given)
            tokens.append(token)
            log_p.append(float(max(given[token], -9999.0)))
            top.append(_listed(given, token, body.get("logprobs") or 0))
            ids.append(token)
            if not body.get("ignore_eos") and token in (self.eos, *body.get("stop_token_ids", [])):
                reason = "stop"
                break
        return Computed(tokens, log_p, top, reason, self._prompt_logprobs(body))

    def answer(self, body: dict[str, Any], found: Computed) -> dict[str, Any]:
        """The right answer to a request, as vLLM writes it."""
        of_prompt = [
            {str(token): {"logprob": value, "rank": 1} for token, value in listed.items()}
            for listed in found.of_prompt or []
        ]
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": found.reason,
            "token_ids": found.tokens,
            "prompt_token_ids": body["prompt"],
            "prompt_logprobs": None if found.of_prompt is None else [None, *of_prompt],
            "logprobs": {
                "tokens": [f"token_id:{token}" for token in found.tokens],
                "token_logprobs": found.log_p,
                "top_logprobs": [{f"token_id:{token}": value for token, value in one.items()} for one in found.top],
            },
        }
        answer: dict[str, Any] = {"object": "text_completion", "model": self.model, "choices": [choice]}
        if self.speculation is not None and body["temperature"] == 0:
            rounds = self.speculation.rounds(self.target, body["prompt"], found.tokens)
            self.rounds += rounds
            if self.speculation.by_request:
                answer["metrics"] = {"speculative_decoding": _statistics(rounds, self.speculation.gamma)}
        return answer

    def _scaled(self, plain: NDArray[np.float64], body: dict[str, Any]) -> NDArray[np.float64]:
        """As SGLang: a request with top_k 1 is greedy, at temperature 1."""
        return (
            plain if body["top_k"] == 1 else sampled_from(plain, {**_NO_CUT_OFFS, "temperature": body["temperature"]})
        )

    def _rounded(self, log_p: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self.rounding:
            return log_p
        return np.minimum(log_p + np.random.default_rng().normal(0, self.rounding, VOCABULARY), 0.0)

    def _prompt_logprobs(self, body: dict[str, Any]) -> list[dict[int, float]] | None:
        if body.get("prompt_logprobs") is None:
            return None
        found = []
        for place in range(1, len(body["prompt"])):
            log_p = self._rounded(self.target(body["prompt"][:place]))
            found.append(_listed(log_p, body["prompt"][place], body["prompt_logprobs"]))
        return found


def _statistics(rounds: Sequence[int], gamma: int) -> dict[str, Any]:
    """As vLLM 0.32 writes them."""
    return {
        "acceptance_histogram": [sum(accepted == count for accepted in rounds) for count in range(gamma + 1)],
        "num_spec_steps": len(rounds),
        "num_accepted_draft_tokens": sum(rounds),
        "num_draft_tokens": gamma * len(rounds),
        "num_spec_tokens": gamma,
    }


def _drawn(log_p: NDArray[np.float64], rng: np.random.Generator) -> int:
    cumulative = np.exp(log_p).cumsum()
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def _listed(log_p: NDArray[np.float64], token: int, count: int) -> dict[int, float]:
    """The token and the `count` likeliest ones, with log p as vLLM prints it."""
    likeliest = np.argpartition(-log_p, count - 1)[:count] if count else np.zeros(0, int)
    best = likeliest[np.lexsort((likeliest, -log_p[likeliest]))].tolist()
    return {one: float(max(log_p[one], -9999.0)) for one in dict.fromkeys([token, *best])}


@contextlib.contextmanager
def running(server: StandIn, port: int = 0, unix: str | None = None, ssl: Any = None) -> Iterator[StandIn]:
    """The server on a port of loopback, or on a Unix socket; `server.url` says where."""
    ready, stop = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        silent = logging.getLogger("tests.standin_server")  # a connection that is cut is no error here
        silent.setLevel(logging.CRITICAL + 1)
        runner = web.AppRunner(
            server.application(), handler_cancellation=True, shutdown_timeout=0.1, access_log=None, logger=silent
        )
        await runner.setup()
        site: web.BaseSite = (
            web.UnixSite(runner, unix) if unix else web.TCPSite(runner, "127.0.0.1", port, ssl_context=ssl)
        )
        await site.start()
        server.url = f"unix://{unix}" if unix else f"http{'s' if ssl else ''}://127.0.0.1:{runner.addresses[0][1]}"

        async def restart(seconds: float) -> None:
            """In a task of its own: the request that asks for it is cancelled with its connection."""
            restarts.add(asyncio.create_task(away(seconds)))

        restarts: set[asyncio.Task[None]] = set()

        async def away(seconds: float) -> None:
            nonlocal site
            await site.stop()
            for connection in runner.server.connections if runner.server else ():
                if connection.transport is not None:
                    connection.transport.abort()
            await asyncio.sleep(seconds)
            site = web.TCPSite(runner, "127.0.0.1", runner_port, ssl_context=ssl)
            await site.start()

        runner_port = 0 if unix else runner.addresses[0][1]
        server.restart = restart
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.005)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # handlers that are silent, too
            task.cancel()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        stop.set()
        thread.join(10)
        loop.close()


async def _cut(request: web.Request, raw: bytes, at: int) -> web.StreamResponse:
    """The first `at` bytes of the answer, then the connection is closed."""
    answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(raw))})
    await answer.prepare(request)
    await answer.write(raw[:at])
    assert request.transport is not None
    request.transport.abort()
    return answer


async def _slowly(request: web.Request, raw: bytes, seconds: float) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": str(len(raw))})
    await answer.prepare(request)
    for byte in raw:
        await answer.write(bytes([byte]))
        await asyncio.sleep(seconds)
    return answer


def _changed(raw: bytes, change: Callable[[dict[str, Any]], None]) -> web.Response:
    answer = json.loads(raw)
    change(answer["choices"][0])
    return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


def _of(make: Callable[[bytes], web.Response]) -> Fault:
    async def fault(request: web.Request, raw: bytes) -> web.StreamResponse:
        return make(raw)

    return fault


def cut_at(share: float) -> Fault:
    """The connection ends after a share of the body."""
    return lambda request, raw: _cut(request, raw, int(share * len(raw)))


def overloaded(after: str | None, status: int = 429) -> Fault:
    """A request for a pause, with `after` in Retry-After."""
    headers = {} if after is None else {"Retry-After": after}
    return _of(lambda raw: web.json_response({"error": {"message": "busy"}}, status=status, headers=headers))


def silence(seconds: float) -> Fault:
    """Nothing for so long."""

    async def fault(request: web.Request, raw: bytes) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.Response(body=raw)

    return fault


def _drop_last(name: str) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        where = choice if name in choice else choice["logprobs"]
        where[name] = (where[name] or [None])[:-1]

    return change


def _set_token(choice: dict[str, Any]) -> None:
    choice["token_ids"][-1] = 10**7
    choice["logprobs"]["tokens"][-1] = f"token_id:{10**7}"


def _set_log_p(value: float) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        choice["logprobs"]["token_logprobs"][-1] = value
        for row in choice["prompt_logprobs"] or []:
            for one in (row or {}).values():
                one["logprob"] = value

    return change


def _other_prompt(choice: dict[str, Any]) -> None:
    choice["prompt_token_ids"] = [1]


def _other_tokens(choice: dict[str, Any]) -> None:
    choice["token_ids"] = [token + 1 for token in choice["token_ids"]]


FAULTS: dict[str, Fault] = {
    "truncated JSON": _of(lambda raw: web.Response(body=raw[: len(raw) // 2], content_type="application/json")),
    "empty": _of(lambda raw: web.Response(body=b"")),
    "HTML": _of(lambda raw: web.Response(text="<html>Bad gateway</html>", content_type="text/html")),
    "HTML error": _of(lambda raw: web.Response(text="<html>Bad gateway</html>", status=502, content_type="text/html")),
    "500": _of(lambda raw: web.json_response({"error": {"message": "EngineCore died"}}, status=500)),
    "503": _of(lambda raw: web.json_response({"error": "loading"}, status=503)),
    "429": overloaded("0.02"),
    "429 without Retry-After": overloaded(None),
    "429 until a date that is over": overloaded("Mon, 23 Nov 2020 12:00:00 GMT"),
    "503 with Retry-After": overloaded("0.02", 503),
    "connection cut in the headers": cut_at(0.0),
    "connection cut in the body": cut_at(0.5),
    "connection cut at the last byte": cut_at(0.999),
    "too few tokens": _of(lambda raw: _changed(raw, _drop_last("token_ids"))),
    "too few log-probabilities": _of(lambda raw: _changed(raw, _drop_last("token_logprobs"))),
    "id beyond the vocabulary": _of(lambda raw: _changed(raw, _set_token)),
    "NaN": _of(lambda raw: _changed(raw, _set_log_p(float("nan")))),
    "positive log p": _of(lambda raw: _changed(raw, _set_log_p(0.5))),
    "answer to another prompt": _of(lambda raw: _changed(raw, _other_prompt)),
    "other tokens than the log-probabilities": _of(lambda raw: _changed(raw, _other_tokens)),
    "no choices": _of(lambda raw: web.json_response({"choices": []})),
    "a list": _of(lambda raw: web.json_response([1, 2])),
    "one byte at a time": lambda request, raw: _slowly(request, raw, 1.0),
    "silence": silence(30.0),
}


def main() -> None:
    """`python -m tests.standin_server`: a server in a process of its own. It prints its URL, and ends with its input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--weights", type=int, default=0)
    parser.add_argument("--processed", action="store_true")
    parser.add_argument("--eos", type=int, default=EOS)
    asked = parser.parse_args()
    server = StandIn(latency=asked.latency, weights=asked.weights, processed=asked.processed, eos=asked.eos, log=False)
    with running(server, asked.port):
        print(server.url, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def in_processes(count: int, *arguments: str) -> Iterator[list[StandIn]]:
    """So many servers in processes of their own; of each only `url` is known here."""
    command = [sys.executable, "-m", "tests.standin_server", *arguments]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(count)
    ]
    try:
        yield [StandIn(url=process.stdout.readline().strip()) for process in started if process.stdout]
    finally:
        for process in started:
            process.communicate()


if __name__ == "__main__":
    main()
