"""The target's distributions at every position of completions sampled from the draft, for on-policy distillation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.generation.completion_store import StoredCompletion, canonical
from pipeline.generation.distributions import Selection, pack, sparsify
from pipeline.models.out_of_memory import batch_named
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch, TeacherForced, batches


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
    found: dict[int, StoredCompletion] = {}
    scored = partial(_score, TeacherForced(target), sampling=sampling, kept=kept, method=method, vocabulary=vocabulary)
    attempt = _attempt_batch(scored, completions)
    for numbers in batches(list(map(_length, completions)), batch_tokens):
        rows = [completions[number] for number in numbers]
        with batch_named("evaluate.batch_tokens", batch_tokens, attempt):
            columns = scored(rows)
        for number, row, own in zip(numbers, rows, columns, strict=True):
            found[number] = StoredCompletion(
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
                log_p=own["log_p"],
                entries=own["entries"],
                certain=own["certain"],
                rest_log_p=own["rest_log_p"],
                vocabulary=vocabulary,
            )
    return [found[number] for number in range(len(completions))]


def _length(item: DraftCompletion) -> int:
    return len(item.prompt) + len(item.tokens)


def _attempt_batch(
    scored: Callable[[Sequence[DraftCompletion]], object], completions: Sequence[DraftCompletion]
) -> Callable[[int], object]:
    """A function that scores one batch of at least n tokens, all of the longest of `completions`."""

    def attempt(batch_tokens: int) -> object:
        longest = max(completions, key=_length)
        return scored([longest] * -(-batch_tokens // _length(longest)))

    return attempt


def _score(
    model: TeacherForced,
    rows: Sequence[DraftCompletion],
    sampling: Sampling,
    kept: int,
    method: Selection,
    vocabulary: int,
) -> list[dict[str, NDArray[Any]]]:
    """The fields of each completion that the target's logits decide, from one pass over them."""
    batch = PaddedBatch(rows)
    uniform_N = np.concatenate([np.random.default_rng([row.seed, 1]).random(len(row.tokens)) for row in rows])
    columns: dict[str, list[NDArray[Any]]] = {"log_p": [], "entries": [], "certain": [], "rest_log_p": []}
    for part, logits_nV in model.logits(batch, vocabulary):
        part_nV = logits_nV.float()
        tokens_n1 = batch.tokens_N[part].to(part_nV.device).unsqueeze(1)
        log_p_n = log_probabilities(part_nV, sampling).gather(1, tokens_n1).squeeze(1)
        found = sparsify(part_nV.log_softmax(-1), kept, method, uniform_N[part])
        columns["log_p"].append(log_p_n.cpu().numpy().astype(np.float32))
        columns["entries"].append(pack(found, vocabulary))
        columns["certain"].append(found.certain_N)
        columns["rest_log_p"].append(found.rest_log_p_N)
    by_row = {name: batch.by_row(np.concatenate(parts)) for name, parts in columns.items()}
    return [{name: values[index] for name, values in by_row.items()} for index in range(len(rows))]
