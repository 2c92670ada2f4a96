"""The target's distributions at every place of a text that another wrote: what on-policy distillation learns from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.acceptance.examine import Batch, batches
from pipeline.generation.completion_store import StoredCompletion, canonical
from pipeline.generation.distributions import Keep, keep, pack
from pipeline.speculation.sampling import Sampling, log_probabilities

_CHUNK_ELEMENTS = 1 << 24  # of one distribution a position: 64 MiB of fp32


@dataclass(frozen=True)
class Written:
    """A text after a prompt. `seed` decides what of the target's distributions is drawn to be kept."""

    id: str  # of the prompt
    split: str
    domain: str
    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    stopped: bool
    seed: int


@torch.inference_mode()
def score(
    target: Any,
    written: Sequence[Written],
    sampling: Sampling,
    kept: int,
    how: Keep,
    vocabulary: int,
    batch_tokens: int,
    on_done: Callable[[int], None] = lambda count: None,
) -> list[StoredCompletion]:
    """Each text as a stored completion whose columns are the target's, in one teacher-forced pass, in the order given.

    Prompt and text must fit the target's context. Batches depend on the texts alone.
    """
    found: dict[int, StoredCompletion] = {}
    for numbers in batches([len(item.prompt) + len(item.tokens) for item in written], batch_tokens):
        rows = [written[number] for number in numbers]
        batch = Batch(rows)
        logits_BTV = target(
            input_ids=batch.ids_BT.to(target.device), use_cache=False, logits_to_keep=batch.width - batch.first
        ).logits[..., :vocabulary]
        for index, (number, row) in enumerate(zip(numbers, rows, strict=True)):
            begin = len(row.prompt) - 1 - batch.first
            found[number] = _spoken(row, logits_BTV[index, begin : begin + len(row.tokens)], sampling, kept, how)
        on_done(len(numbers))
    return [found[number] for number in range(len(written))]


def _spoken(row: Written, logits_NV: torch.Tensor, sampling: Sampling, kept: int, how: Keep) -> StoredCompletion:
    count, vocabulary = logits_NV.shape
    uniform_N = np.random.default_rng([row.seed, 1]).random(count)
    log_p, entries, certain, rest = [], [], [], []
    step = max(1, _CHUNK_ELEMENTS // vocabulary)
    for begin in range(0, count, step):
        part_nV = logits_NV[begin : begin + step].float()
        tokens_n1 = torch.from_numpy(row.tokens[begin : begin + step].astype(np.int64)).to(part_nV.device).unsqueeze(1)
        log_p.append(log_probabilities(part_nV, sampling).gather(1, tokens_n1).squeeze(1).cpu().numpy())
        found = keep(part_nV.log_softmax(-1), kept, how, uniform_N[begin : begin + step])
        entries.append(pack(found, vocabulary))
        certain.append(found.certain_N)
        rest.append(found.rest_log_p_N)
    return StoredCompletion(
        row.id,
        row.split,
        row.domain,
        canonical(sampling),
        row.prompt,
        count,
        row.stopped,
        row.tokens,
        np.concatenate(log_p).astype(np.float32),
        np.concatenate(entries),
        np.concatenate(certain),
        np.concatenate(rest),
        vocabulary,
    )
