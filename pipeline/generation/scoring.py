"""The target's distributions at every position of given completions: those that a draft sampled, and those that a log holds."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.generation.completion_store import StoredCompletion, canonical
from pipeline.generation.distributions import Selection, pack, sparsify
from pipeline.models.out_of_memory import batch_named
from pipeline.speculation.sampling import check_weight_sums, finite_or_nan, log_probabilities
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch, TeacherForced, TokenizedCompletion, batches


@dataclass(frozen=True, kw_only=True)
class DraftCompletion:
    """A completion sampled from the draft. `seed` decides which tokens of the target's distributions are sampled."""

    id: str  # of the prompt
    text_id: str  # of the prompt
    conversation: str  # of the prompt
    split: str
    domain: str
    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    stopped: bool
    seed: int


class SeededCompletion(TokenizedCompletion, Protocol):
    """What is scored: a prompt with its completion. `seed` decides which tokens of the target's distributions are sampled."""

    @property
    def seed(self) -> int: ...


def score(
    target: Any,
    completions: Sequence[DraftCompletion],
    sampling: Sampling,
    kept: int,
    method: Selection,
    vocabulary: int,
    batch_tokens: int,
) -> list[StoredCompletion]:
    """The target's log p and distributions for every token of `completions`, from one teacher-forced pass over each.

    Returns one StoredCompletion per completion, in the given order. `kept` entries of each distribution are stored, chosen by
    `method`. `vocabulary`: number of shared tokens V; further logits are dropped. `batch_tokens`: the most tokens of a batch,
    padding included (`evaluate.batch_tokens`, as an error for a full memory names it). The caller makes sure that prompt and
    completion fit the target's context.
    """
    completions_by_number: dict[int, StoredCompletion] = {}
    for number, own in score_rows(target, completions, sampling, kept, method, vocabulary, batch_tokens):
        row = completions[number]
        completions_by_number[number] = StoredCompletion(
            id=row.id,
            text_id=row.text_id,
            conversation=row.conversation,
            split=row.split,
            domain=row.domain,
            sampling=canonical(sampling),
            prompt=row.prompt,
            length=len(row.tokens),
            stopped=row.stopped,
            tokens=row.tokens,
            vocabulary=vocabulary,
            **own,
        )
    return [completions_by_number[number] for number in range(len(completions))]


def score_rows(
    target: Any,
    rows: Sequence[SeededCompletion],
    sampling: Sampling,
    kept: int,
    method: Selection,
    vocabulary: int,
    batch_tokens: int,
    listed: int = 0,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields for each of `rows`, in no certain order, its number, and by name the arrays that `StoredCompletion` has of its N
    tokens: log_p, entries, certain, rest_log_p. With `listed`, which is at most V, also what tells whether they are samples:

    - `listed_ids` and `listed_log_p`, (N, listed): the likeliest tokens at `sampling`, -inf for those that cannot be sampled;
    - `margin`, (N,): log p at temperature 1 less that of the least likely token that can be sampled. Below 0: this one cannot.
    """
    scored = partial(
        _score, TeacherForced(target), sampling=sampling, kept=kept, method=method, vocabulary=vocabulary, listed=listed
    )
    attempt = _attempt_batch(scored, rows)
    for numbers in batches(list(map(_length, rows)), batch_tokens):
        with batch_named("evaluate.batch_tokens", batch_tokens, attempt):
            columns = scored([rows[number] for number in numbers])
        yield from zip(numbers, columns, strict=True)


def _length(item: SeededCompletion) -> int:
    return len(item.prompt) + len(item.tokens)


def _attempt_batch(
    scored: Callable[[Sequence[SeededCompletion]], object], completions: Sequence[SeededCompletion]
) -> Callable[[int], object]:
    """A function that scores one batch of at least n tokens, all of the longest of `completions`."""

    def attempt(batch_tokens: int) -> object:
        longest = max(completions, key=_length)
        return scored([longest] * -(-batch_tokens // _length(longest)))

    return attempt


def _score(
    model: TeacherForced,
    rows: Sequence[SeededCompletion],
    sampling: Sampling,
    kept: int,
    method: Selection,
    vocabulary: int,
    listed: int = 0,
) -> list[dict[str, NDArray[Any]]]:
    """The columns of `score_rows` for each completion, from one pass over them."""
    batch = PaddedBatch(rows)
    uniform_N = np.concatenate([np.random.default_rng([row.seed, 1]).random(len(row.tokens)) for row in rows])
    columns = defaultdict[str, list[NDArray[Any]]](list)
    for part, logits_nV in model.logits(batch, vocabulary):
        part_nV = logits_nV.float()
        check_weight_sums(finite_or_nan(part_nV.amax(-1)))
        tokens_n1 = batch.tokens_N[part].to(part_nV.device).unsqueeze(1)
        log_p1_nV = part_nV.log_softmax(-1)
        sampled_nV = log_p1_nV if sampling.unchanged else log_probabilities(part_nV, sampling)
        sparse = sparsify(log_p1_nV, kept, method, uniform_N[part])
        columns["log_p"].append(_at(sampled_nV, tokens_n1))
        columns["entries"].append(pack(sparse, vocabulary))
        columns["certain"].append(sparse.certain_N)
        columns["rest_log_p"].append(sparse.rest_log_p_N)
        if listed:
            top = sampled_nV.topk(listed, -1)
            columns["listed_ids"].append(top.indices.cpu().numpy().astype(np.int32))
            columns["listed_log_p"].append(top.values.cpu().numpy().astype(np.float32))
            with np.errstate(
                invalid="ignore"
            ):  # -inf less -inf, of a token that the target excludes: no number, so not >= 0
                columns["margin"].append(_at(log_p1_nV, tokens_n1) - _least(log_p1_nV, sampled_nV, sampling))
    by_row = {name: batch.by_row(np.concatenate(parts)) for name, parts in columns.items()}
    return [{name: values[index] for name, values in by_row.items()} for index in range(len(rows))]


def _at(values_nV: torch.Tensor, tokens_n1: torch.Tensor) -> NDArray[np.float32]:
    """(n,): the value of each position's token."""
    found_n: NDArray[np.float32] = values_nV.gather(1, tokens_n1).squeeze(1).cpu().numpy().astype(np.float32)
    return found_n


def _least(log_p1_nV: torch.Tensor, sampled_nV: torch.Tensor, sampling: Sampling) -> NDArray[np.float32]:
    """(n,): log p at temperature 1 of the least likely token that can be sampled."""
    if sampling.greedy:
        least_n = log_p1_nV.amax(-1)
    elif sampling.unchanged:
        least_n = log_p1_nV.amin(-1)
    else:
        least_n = log_p1_nV.masked_fill(sampled_nV == -torch.inf, torch.inf).amin(-1)
    found_n: NDArray[np.float32] = least_n.cpu().numpy().astype(np.float32)
    return found_n
