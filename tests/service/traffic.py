"""Requests to the deployment at a steady rate, of one kind at a time; what became of each is kept."""

import json
import os
import random
import re
import statistics
import string
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.reference.text import read_text

PER_SECOND = 2.0
TOKENS = 24
_LETTERS, _AT_ONCE = 36, 16
_ASKED = 12  # prompts of a kind


@dataclass(frozen=True)
class Answered:
    """One request. `began`: Unix seconds; `seconds`: None where it failed; `drafted`, `accepted`: draft tokens."""

    kind: str
    began: float
    seconds: float | None
    drafted: int = 0
    accepted: int = 0


def prose(rng: random.Random) -> Iterator[str]:
    """Pieces of the docstrings of the standard library."""
    text = read_text(Path(os.__file__).parent, 1.0)
    found = [
        re.sub(r"\s+", " ", words)
        for document in (*text.modules, *text.tests)
        for words in re.findall(r'"""(.*?)"""', document.text, re.DOTALL)
        if len(words) > 3 * _LETTERS
    ]
    while True:
        words = rng.choice(found)
        begin = rng.randrange(len(words) - _LETTERS)
        yield words[begin : begin + _LETTERS].strip()


def _rows(row: Callable[[random.Random], str]) -> Callable[[random.Random], Iterator[str]]:
    """Prompts without end, each made by `row`."""

    def prompts(rng: random.Random) -> Iterator[str]:
        while True:
            yield row(rng)

    return prompts


def _word(rng: random.Random, letters: str, least: int, most: int) -> str:
    return "".join(rng.choice(letters) for _ in range(rng.randint(least, most)))


KINDS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "prose": prose,
    "numbers": _rows(lambda rng: " ".join(str(rng.randrange(1000)) for _ in range(9))),
    "bytes": _rows(lambda rng: ", ".join(f"0x{rng.randrange(256):02x}" for _ in range(6))),
    "capitals": _rows(lambda rng: " ".join(_word(rng, string.ascii_uppercase, 2, 6) for _ in range(7))),
    "keys": _rows(lambda rng: _word(rng, string.ascii_letters + string.digits, 24, 24)),
    "symbols": _rows(lambda rng: _word(rng, string.punctuation, 20, 20)),
    "dates": _rows(
        lambda rng: " ".join(
            f"20{rng.randrange(100):02}-0{rng.randrange(1, 10)}-{rng.randrange(10, 29)}" for _ in range(3)
        )
    ),
    "sums": _rows(
        lambda rng: "; ".join(
            f"{rng.choice('abcxyz')} = {rng.choice('abcxyz')} + {rng.randrange(100)}" for _ in range(3)
        )
    ),
}


@dataclass
class Traffic:
    """Starts a request every 1 / PER_SECOND seconds, whether or not those before it have ended."""

    url: str
    kind: str
    answered: list[Answered] = field(default_factory=list)
    changes: list[tuple[float, str]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._prompts = {name: kind(random.Random(name)) for name, kind in KINDS.items()}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "Traffic":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def drift(self, kind: str) -> float:
        """From now on requests are of this kind; now."""
        self.kind = kind
        self.changes.append((time.time(), kind))
        return self.changes[-1][0]

    def between(self, began: float, ended: float) -> "list[Answered]":
        return [one for one in list(self.answered) if began <= one.began < ended]

    def _run(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            due = time.monotonic()
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                pool.submit(self._ask, self.kind, next(self._prompts[self.kind]))
                due = max(due + 1 / PER_SECOND, time.monotonic() - 1.0)  # no rush after a pause of the machine

    def _ask(self, kind: str, prompt: str) -> None:
        began, clock = time.time(), time.monotonic()
        try:
            answer = _post(f"{self.url}/v1/completions", _body(prompt))
        except (OSError, urllib.error.URLError, ValueError):
            self.answered.append(Answered(kind, began, None))
            return
        counts = (answer.get("metrics") or {}).get("speculative_decoding") or {}
        drafted, accepted = counts.get("num_draft_tokens", 0), counts.get("num_accepted_draft_tokens", 0)
        self.answered.append(Answered(kind, began, time.monotonic() - clock, drafted, accepted))


def worst(url: str) -> str:
    """The kind whose first draft tokens the engine accepts least. Prompts are token ids, which the middleware does not log."""
    found = {kind: _first_accepted(url, kind) for kind in KINDS}
    print("first draft tokens accepted: " + ", ".join(f"{kind} {share:.2f}" for kind, share in found.items()))
    return min(found, key=lambda kind: found[kind])


def _first_accepted(url: str, kind: str) -> float:
    prompts = KINDS[kind](random.Random(f"asked {kind}"))
    rounds, none = 0, 0
    for _ in range(_ASKED):
        tokens = _post(f"{url}/tokenize", {"model": "target", "prompt": next(prompts)})["tokens"]
        answer = _post(f"{url}/v1/completions", _body(tokens))
        histogram = answer["metrics"]["speculative_decoding"]["acceptance_histogram"]
        rounds, none = rounds + sum(histogram), none + histogram[0]
    return 1 - none / rounds


def _body(prompt: str | list[int]) -> dict[str, Any]:
    return {"model": "target", "prompt": prompt, "temperature": 0, "max_tokens": TOKENS}


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return dict(json.load(reply))


def acceptance(answered: Sequence[Answered]) -> float:
    """Share of the draft tokens that were accepted."""
    return sum(one.accepted for one in answered) / max(1, sum(one.drafted for one in answered))


def p95(answered: Sequence[Answered]) -> float:
    """The 95th percentile of latency, in seconds, of the requests that were answered."""
    return statistics.quantiles([one.seconds for one in answered if one.seconds is not None], n=20)[-1]
