"""Which weights a server serves. No server reports a revision, so it is asked for the log-probabilities of fixed token sequences.

The first answers are remembered. A server whose answers differ from them by no more than rounding serves the same weights: the
mean absolute difference of log p is at most 0.001 for float32 and 0.03 for 16-bit and quantized formats. Any larger change is a
new target, whose digest, part of the completions' key, is that of its own first answers, unrounded. Torch-free.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from pipeline.config.pair import NumberFormat
from pipeline.errors import UnderstudyError
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.target import Asking, ServedModel
from pipeline.speculation.settings import GREEDY
from pipeline.store.files import content_key
from pipeline.store.parsing import Count, Number, Text, format_of, stored

_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 4, 32, 16
_LOWEST, _HIGHEST = 10, 500  # ids that every vocabulary has; the first ones are often special
# Mean difference of log p that rounding explains: of the same weights in bfloat16, 0.005 to 0.01 was measured between batches
# of different shape; retrained weights differed by about 1, and random changes of 1% of the weights by 0.02.
_ROUNDING = {"float32": 1e-3}
_ROUNDING_16_BIT = 0.03


class OtherWeights(UnderstudyError):
    """The endpoint at `url` serves other weights than the run began with."""

    def __init__(self, message: str, url: str) -> None:
        super().__init__(message)
        self.url = url


@stored(kw_only=False)
class Golden:
    """Fixed sequences, and their log p when they were first asked for."""

    sequences: list[list[Count]]  # prompt and greedy continuation
    log_p: list[list[Number]]  # of all tokens but the first; of the continuation where each token takes a request


def _is_whole(golden: Golden) -> Golden:
    if not golden.log_p or len(golden.log_p) != len(golden.sequences) or not all(golden.log_p):
        raise ValueError("each sequence needs its log p")
    return golden


@stored(name="identity of a served target", remedy="start a new run")
class Identity:
    """A served target. Equal digests: the same weights in the same engine version, as far as log p can tell."""

    digest: Text
    model: ServedModel
    revision: Text | None  # as the config declares it
    dtype: NumberFormat  # as the config declares it
    golden: Annotated[Golden, AfterValidator(_is_whole)]

    def facts(self) -> dict[str, Any]:
        """JSON, read by `Identity.from_facts`."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Identity":
        """The reverse of `facts`. UnderstudyError where they are not those of an identity."""
        return format_of(Identity).parse(facts, "the record of the served target")


def golden_prompts() -> list[list[int]]:
    """Token ids that every vocabulary has, in no order that a model knows: its log p of them changes with any weight."""

    def token(prompt: int, place: int) -> int:
        digest = hashlib.sha256(f"{prompt}/{place}".encode()).digest()
        return _LOWEST + int.from_bytes(digest[:4], "big") % (_HIGHEST - _LOWEST)

    return [[token(prompt, place) for place in range(_PROMPT_TOKENS)] for prompt in range(_PROMPTS)]


async def first_answers(endpoint: Endpoint, asking: Asking) -> Golden:
    """Greedy continuations of the fixed prompts, with log p of prompts and continuations."""
    sequences = []
    for prompt in golden_prompts():
        request = GenerateRequest(
            prompt=prompt, sampling=GREEDY, max_tokens=_NEW_TOKENS, stop_tokens=(), ignore_eos=True
        )
        generated, _ = await asking.generate(endpoint, request)
        sequences.append([*prompt, *generated.tokens_N.tolist()])
    return Golden(sequences, [await _score(endpoint, asking, sequence) for sequence in sequences])


async def mean_difference(endpoint: Endpoint, asking: Asking, golden: Golden) -> float:
    """Mean absolute difference of log p between `golden` and what the endpoint answers now."""
    now = [await _score(endpoint, asking, sequence) for sequence in golden.sequences]
    return difference(golden, Golden(golden.sequences, now))


def difference(one: Golden, other: Golden) -> float:
    """Mean absolute difference of log p of the same sequences. Infinite where they were scored from different places."""
    if [len(log_p) for log_p in one.log_p] != [len(log_p) for log_p in other.log_p]:
        return float("inf")
    return float(np.mean(np.abs(np.concatenate(one.log_p) - np.concatenate(other.log_p))))


async def _score(endpoint: Endpoint, asking: Asking, ids: Sequence[int]) -> list[float]:
    start = 1 if asking.scores_prompts else _PROMPT_TOKENS
    scored, _ = await asking.score(endpoint, ScoreRequest(ids=ids, start=start, kept=1))
    return [float(value) for value in scored.log_p_N]


def most_rounding(dtype: NumberFormat) -> float:
    """The mean absolute difference of log p, in nats, by which the same weights served in `dtype` can differ."""
    return _ROUNDING.get(dtype, _ROUNDING_16_BIT)


def is_rounding(difference: float, dtype: NumberFormat) -> bool:
    """Whether the same weights, served in `dtype`, can differ by so much."""
    return difference <= most_rounding(dtype)


def new_identity(model: ServedModel, golden: Golden, revision: str | None, dtype: NumberFormat) -> Identity:
    """The identity of a target that was not seen before. `revision` and `dtype` as declared in the config.

    Weights that were fine-tuned a little, or logits that were scaled, give the same greedy tokens: log p is in the key too.
    """
    key = [model.name, model.root, model.context, model.version, revision, dtype, golden.sequences, golden.log_p]
    return Identity(digest=content_key(key), model=model, revision=revision, dtype=dtype, golden=golden)


async def require_same(endpoint: Endpoint, asking: Asking, identity: Identity) -> None:
    """OtherWeights unless the endpoint serves the weights of `identity`; Unavailable if it does not answer."""
    differs_by = await mean_difference(endpoint, asking, identity.golden)
    if not is_rounding(differs_by, identity.dtype):
        raise OtherWeights(
            f"{endpoint.url} serves other weights than at the start of the run: log p of fixed tokens differs by "
            f"{differs_by:.2g} on average; completions of two targets are never mixed; start a new run for the new target",
            endpoint.url,
        )
