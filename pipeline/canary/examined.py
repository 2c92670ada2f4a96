"""What the canary asks and compares with: the champion, a fixed slice of its examination, and log p of known tokens."""

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion, canonical, read_completions
from pipeline.generation.distributions import step, unpack
from pipeline.registry.named import Draft
from pipeline.servers.identity import Identity
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.store.own_files import reads_own_files


@dataclass(frozen=True)
class KnownSequence:
    """A sequence of token ids with the log p, at temperature 1, of its tokens from number `start` on, (N,). A recorded value
    may be off by `slack_N`: stored distributions are quantized."""

    ids: list[int]
    start: int
    log_p_N: NDArray[np.float64]
    slack_N: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ExaminedRun:
    """The slice of the run that trained the draft. `completions`: greedy ones, by prompt."""

    draft: Draft
    completions: list[StoredCompletion]
    known: list[KnownSequence]
    max_tokens: int


def examined_slice(draft: Draft, prompts: int, max_tokens: int) -> ExaminedRun:
    """The same prompts each time: those whose ids have the lowest hashes. UsageError where nothing is stored for them."""
    greedy = _slice(read_completions(draft.completions, {"examination"}, GREEDY), prompts)
    if not greedy:
        raise UsageError(
            f"{draft.completions}: it holds no greedy examination completions; run the config again (corpus.splits.examination "
            "above 0)"
        )
    limit = min(max_tokens, draft.config.generate.max_new_tokens)
    return ExaminedRun(draft=draft, completions=greedy, known=_known(draft, greedy, limit), max_tokens=limit)


def _slice(completions: Iterable[StoredCompletion], prompts: int) -> list[StoredCompletion]:
    return heapq.nsmallest(prompts, completions, key=lambda item: hashlib.sha256(item.id.encode()).digest())


def _known(draft: Draft, greedy: Sequence[StoredCompletion], limit: int) -> list[KnownSequence]:
    """The log p of known tokens from the most exact record that there is: answers of a served target; log p of what was sampled
    at temperature 1; the stored distributions."""
    served = draft.pair.facts.get("served")
    if served is not None:
        golden = Identity.from_facts(served).golden
        return [
            KnownSequence(list(ids), len(ids) - len(log_p), np.array(log_p), np.zeros(len(log_p)))
            for ids, log_p in zip(golden.sequences, golden.log_p, strict=True)
        ]
    deployed = canonical(Sampling.from_config(draft.config.sampling))
    if deployed.unchanged:
        chosen = {item.id for item in greedy}
        stored = read_completions(draft.completions, {"examination"}, deployed)
        return [_sampled(item, limit) for item in stored if item.id in chosen]
    return [_of_distributions(item, limit) for item in greedy]


def _sampled(item: StoredCompletion, limit: int) -> KnownSequence:
    count = min(item.length, limit)
    log_p_N = item.log_p[:count].astype(np.float64)
    return KnownSequence(_ids(item, count), len(item.prompt), log_p_N, np.zeros(count))


@reads_own_files("numbers of the completion store: nothing is parsed")
def _of_distributions(item: StoredCompletion, limit: int) -> KnownSequence:
    """A token that is not among the stored ones may have any log p."""
    rows = slice(min(item.length, limit))
    ids_NK, log_p_NK = unpack(item.entries[rows], item.certain[rows], item.rest_log_p[rows], item.vocabulary)
    is_own_NK = (ids_NK == item.tokens[rows, None]) & (np.arange(ids_NK.shape[1]) < item.certain[rows, None])
    listed_N = is_own_NK.any(1)
    log_p_N = np.where(is_own_NK, log_p_NK, 0.0).sum(1).astype(np.float64)
    slack_N = np.where(listed_N, step(log_p_N, item.vocabulary), np.inf)
    return KnownSequence(_ids(item, len(log_p_N)), len(item.prompt), log_p_N, slack_N)


def _ids(item: StoredCompletion, count: int) -> list[int]:
    return [*item.prompt.tolist(), *item.tokens[:count].tolist()]
