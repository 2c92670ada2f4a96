"""Requests to a server of the target as data, and the interface that each engine's API implements. Torch-free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.servers.answers import Generated, Plain, Scored
from pipeline.speculation.settings import Sampling


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """A completion of `prompt` of at most `max_tokens` tokens."""

    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int
    stop_tokens: Sequence[int]
    ignore_eos: bool = False  # then it always has max_tokens tokens
    seed: int | None = None
    kept: int = 0  # likeliest tokens wanted for each token of the completion

    @property
    def tokens(self) -> int:
        """The most tokens that the server computes."""
        return len(self.prompt) + self.max_tokens


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Log-probabilities at temperature 1 of the tokens of `ids` from number `start` (at least 1) to the end."""

    ids: Sequence[int]
    start: int
    kept: int

    @property
    def tokens(self) -> int:
        """The most tokens that the server computes."""
        return len(self.ids) + 1


Body = dict[str, Any]


class Api(Protocol):
    """One engine's HTTP API. Paths are relative to the endpoint's URL; answers are parsed JSON."""

    name: str
    scores: bool  # whether it gives the log-probabilities of a prompt
    applies_in_order: bool  # top_p cuts what top_k has left, as here; else both cut the same distribution
    states_defaults: (
        bool  # a request without sampling settings is sampled with those of the deployment, and seeds have an effect
    )

    def generate(self, request: GenerateRequest, model: str) -> tuple[str, Body]: ...

    def read_generated(self, request: GenerateRequest, answer: Mapping[str, Any], vocabulary: int) -> Generated: ...

    def plain(self, request: GenerateRequest, model: str) -> tuple[str, Body]:
        """The request of `generate`, without log-probabilities and with what the engine counts of speculation."""
        ...

    def read_plain(self, request: GenerateRequest, answer: Mapping[str, Any], vocabulary: int) -> Plain: ...

    def score(self, request: ScoreRequest, model: str) -> tuple[str, Body]: ...

    def read_scored(self, request: ScoreRequest, answer: Mapping[str, Any], vocabulary: int) -> Scored: ...

    def too_many_logprobs(self, message: str) -> bool:
        """Whether a refused request asked for more log-probabilities than the server gives."""
        ...

    logprobs_flag: str  # what raises that limit
    processed_flag: str  # "start it ...", so that log p of a completion follows from what it gives; empty: no way
