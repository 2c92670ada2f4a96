"""Tests, after each completion, that those of a run are samples of the target. Pools them over shards and over interrupted runs.

Completions arrive in an order that depends on their lengths. They are pooled in the order of the requests, which does not: the
error rate of `evidence.py` holds for any number of looks at completions in an order that was fixed before.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError
from pipeline.generation.completion_files import facts_of_shard, shard_facts
from pipeline.generation.evidence import (
    FALSE_ALARM,
    NO_EVIDENCE,
    ROUNDING,
    TEXT,
    CompletionEvidence,
    FirstToken,
    FirstTokens,
    findable_share,
    of_answer,
    of_tokens,
    power,
)
from pipeline.servers.answers import LikeliestTokens
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files


@dataclass(frozen=True, kw_only=True)
class SampleEvidence:
    """Evidence about completions, by where their tokens come from."""

    recorded: CompletionEvidence = NO_EVIDENCE  # a log
    generated: CompletionEvidence = NO_EVIDENCE  # the servers
    firsts: tuple[FirstToken, ...] = ()  # of the recorded answers, in their order

    def __add__(self, other: "SampleEvidence") -> "SampleEvidence":
        return SampleEvidence(
            recorded=self.recorded + other.recorded,
            generated=self.generated + other.generated,
            firsts=self.firsts + other.firsts,
        )

    @property
    def sums(self) -> "SampleEvidence":
        """The evidence without the first tokens, of which there is one for each recorded answer."""
        return replace(self, firsts=())

    def facts(self) -> dict[str, str]:
        """The evidence as it is stored with a completion or a shard."""
        evidence = {"recorded": self.recorded, "generated": self.generated}
        texts = {name: own.to_json() for name, own in evidence.items() if own.completions}
        return texts | ({"firsts": json.dumps(self.firsts)} if self.firsts else {})

    @classmethod
    @reads_own_files("metadata of a shard, which the manifest hashes, or a journal's record, which has a checksum")
    def of_facts(cls, facts: Mapping[str, Any]) -> "SampleEvidence":
        """The reverse of `facts`, which may have others beside it."""
        evidence = {
            name: CompletionEvidence.from_json(facts[name]) for name in ("recorded", "generated") if name in facts
        }
        return cls(**evidence, firsts=tuple(FirstToken(*first) for first in parse_json(facts.get("firsts", "[]"))))


def of_recorded(
    tokens_N: NDArray[np.int32], log_p_N: NDArray[np.float32], listed: LikeliestTokens | None, exact: bool
) -> SampleEvidence:
    """Evidence of a recorded answer that the target can have chosen. `listed`: the distributions as sampled from, which may go
    on past the answer, as `log_p_N` may; None where nothing is sampled. `exact`: the log has its token ids."""
    if listed is None:
        return SampleEvidence(recorded=of_answer(True, exact))
    own = listed[: len(tokens_N)]
    evidence = of_tokens(tokens_N, own.ids_NK, own.log_p_NK, ROUNDING if exact else TEXT)
    firsts = (FirstToken(int(tokens_N[0]), float(log_p_N[0])),)
    return SampleEvidence(recorded=of_answer(True, exact, evidence), firsts=firsts)


def stored_test(directory: Path, shards: str = "") -> SampleEvidence:
    """Evidence of all completions stored in `directory`, or those of shards whose names begin with `shards`; without the first
    tokens."""
    evidence = (SampleEvidence.of_facts(facts).sums for _, facts in shard_facts(directory, shards))
    return sum(evidence, start=SampleEvidence())


@dataclass
class SampleTest:
    """Completions by their place in the order of the requests. `vocabulary`: tokens that an answer can begin with."""

    vocabulary: int
    pooled: SampleEvidence = field(default_factory=SampleEvidence)  # of all places before `_next`
    _next: int = 0
    _waiting: dict[int, tuple[int, SampleEvidence]] = field(default_factory=dict)  # with how many places they take
    _firsts: FirstTokens = field(default_factory=FirstTokens)

    def add(self, place: int, tested: SampleEvidence, places: int = 1) -> None:
        """Adds the evidence of the completions at `place` and the `places` - 1 after it. A completion that was received twice
        counts once.

        UnderstudyError if the completions up to here are no samples.
        """
        if place >= self._next:
            self._waiting.setdefault(place, (places, tested))
        while self._next in self._waiting:
            count, evidence = self._waiting.pop(self._next)
            self.pooled, self._next = self.pooled + evidence.sums, self._next + count
            for first in evidence.firsts:
                self.pooled += SampleEvidence(recorded=self._firsts.evidence(first, self.vocabulary))
            _require_samples(self.pooled)


class StoredShards:
    """Tests the shards of `directory` in their order, each as soon as all before it are there: whoever made them, in this run or
    an earlier one. `vocabulary`: as in `SampleTest`."""

    def __init__(self, directory: Path, vocabulary: int) -> None:
        self._directory, self._test = directory, SampleTest(vocabulary)
        self._names: list[str] = []
        self._tested = 0

    def expect(self, names: Iterable[str]) -> None:
        """These shards come after those that were expected before."""
        self._names += names

    def look(self) -> None:
        """UnderstudyError if the completions of the shards that are there are no samples."""
        for name in self._names[self._tested :]:
            if (facts := facts_of_shard(self._directory, name)) is None:
                return
            self._test.add(self._tested, SampleEvidence.of_facts(facts))
            self._tested += 1


def _require_samples(evidence: SampleEvidence) -> None:
    if evidence.recorded.refuted:
        raise UnderstudyError(_not_recorded(evidence.recorded))
    if evidence.generated.refuted:
        raise UnderstudyError(
            f"the completions are not samples of the log-probabilities that came with them: {_why(evidence.generated)}; does the "
            "server's sampler work (vLLM issue 55005: "
            "not while speculating on a CPU), and do its log-probabilities belong to `sampling`?"
        )


def _not_recorded(evidence: CompletionEvidence) -> str:
    remedy = "shorten the window (corpus.sources.N.since), or set use_answers to false"
    if evidence.strongest.mixed:
        return (
            f"the recorded answers do not begin like samples of the target at `sampling`: {_why(evidence)}; they belong to other "
            f"prompts: check how the log was joined, {remedy}"
        )
    if not evidence.strongest.power:
        return (
            f"{evidence.impossible:,} of {evidence.completions:,} recorded answers have tokens that the target does not choose "
            f"at `sampling`; the log is of other weights, settings or another chat template: {remedy}"
        )
    if evidence.strongest.opening is not None:
        return (
            f"the recorded answers do not begin like samples of the target at `sampling`: {_why(evidence)}; they belong to other "
            "prompts, the chat template is another one, or many answers were left out, such as tool calls: check the log, "
            f"{remedy}"
        )
    return (
        f"the recorded answers are not samples of the target at `sampling`: {_why(evidence)}; the log is of other weights, "
        f"settings or another chat template, or its answers belong to other prompts: {remedy}"
    )


def _why(evidence: CompletionEvidence) -> str:
    return (
        f"after {evidence.completions:,} of them, {evidence.strongest.text}; samples give such evidence once in "
        f"{1 / FALSE_ALARM:,.0f} times"
    )


def passed(evidence: CompletionEvidence) -> str:
    """What a test that recorded answers have passed can find, in words; empty without answers."""
    if not evidence.completions:
        return ""
    length = evidence.tokens / max(evidence.completions - evidence.impossible, 1)
    answers = f"{evidence.completions:,} answers of {length:,.0f} tokens"
    chance = f"refuses one right log in {1 / FALSE_ALARM:,.0f}"
    if (finds := power(evidence)) is None:
        share = findable_share(evidence)
        return f"{evidence.completions:,} answers pass a test that {chance} and finds {share:.1%} of other answers"
    return (
        f"{answers} pass a test that {chance} and finds mean log p that differs by {finds.shift:.2g} nats per token: a KL "
        f"divergence of {finds.kl_temperature:.1g} if the temperature differs, of {finds.kl_noise:.1g} if every logit has noise"
    )


def figures(evidence: CompletionEvidence) -> dict[str, float]:
    """The evidence as figures of the artifact."""
    if not evidence.completions:
        return {}
    if (finds := power(evidence)) is None:
        return {"recorded_findable_share": findable_share(evidence)}
    return {
        "recorded_findable_shift": finds.shift,
        "recorded_findable_kl_temperature": finds.kl_temperature,
        "recorded_findable_kl_noise": finds.kl_noise,
    }
