"""The target's distributions at every position of completions sampled from the draft, for on-policy distillation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.acceptance.examine import PaddedBatch, batches
from pipeline.generation.completion_store import StoredCompletion, canonical
from pipeline.generation.distributions import Selection, pack, sparsify
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling

_CHUNK_ELEMENTS = 1 << 24  # of one distribution a position: 64 MiB of fp32


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


@torch.inference_mode()
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
    padding included. The caller makes sure that prompt and completion fit the target's context.
    """
    found: dict[int, StoredCompletion] = {}
    for numbers in batches([len(item.prompt) + len(item.tokens) for item in completions], batch_tokens):
        rows = [completions[number] for number in numbers]
        batch = PaddedBatch(rows)
        logits_BTV = target(
            input_ids=batch.ids_BT.to(target.device), use_cache=False, logits_to_keep=batch.width - batch.first
        ).logits[..., :vocabulary]
        for index, (number, row) in enumerate(zip(numbers, rows, strict=True)):
            begin = len(row.prompt) - 1 - batch.first
            found[number] = _stored(row, logits_BTV[index, begin : begin + len(row.tokens)], sampling, kept, method)
    return [found[number] for number in range(len(completions))]


def _stored(
    row: DraftCompletion, logits_NV: torch.Tensor, sampling: Sampling, kept: int, method: Selection
) -> StoredCompletion:
    """One scored completion. `logits_NV`: the target's logits that predict its N tokens."""
    count, vocabulary = logits_NV.shape
    uniform_N = np.random.default_rng([row.seed, 1]).random(count)
    log_p, entries, certain, rest = [], [], [], []
    step = max(1, _CHUNK_ELEMENTS // vocabulary)
    for begin in range(0, count, step):
        part_nV = logits_NV[begin : begin + step].float()
        tokens_n1 = torch.from_numpy(row.tokens[begin : begin + step].astype(np.int64)).to(part_nV.device).unsqueeze(1)
        log_p.append(log_probabilities(part_nV, sampling).gather(1, tokens_n1).squeeze(1).cpu().numpy())
        found = sparsify(part_nV.log_softmax(-1), kept, method, uniform_N[begin : begin + step])
        entries.append(pack(found, vocabulary))
        certain.append(found.certain_N)
        rest.append(found.rest_log_p_N)
    return StoredCompletion(
        id=row.id,
        text_id=row.text_id,
        conversation=row.conversation,
        split=row.split,
        domain=row.domain,
        sampling=canonical(sampling),
        prompt=row.prompt,
        length=count,
        stopped=row.stopped,
        tokens=row.tokens,
        log_p=np.concatenate(log_p).astype(np.float32),
        entries=np.concatenate(entries),
        certain=np.concatenate(certain),
        rest_log_p=np.concatenate(rest),
        vocabulary=vocabulary,
    )
