"""Examination without decoding: one teacher-forced pass of a draft over stored completions of the target.

Takes a loaded model and arrays; does not read files. Shapes: B completions of a batch, T positions, V shared tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import BrokenDraft
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import GREEDY, Sampling

Floats = NDArray[np.float64]
_CHUNK_ELEMENTS = 1 << 26  # logits held at once: 256 MiB in fp32


class TokenizedCompletion(Protocol):
    """Token ids of a prompt and its completion."""

    @property
    def prompt(self) -> NDArray[np.int32]: ...

    @property
    def tokens(self) -> NDArray[np.int32]: ...  # including the lookahead


class ScoredCompletion(TokenizedCompletion, Protocol):
    """The fields of a stored completion that the examination reads."""

    @property
    def log_p(self) -> NDArray[np.float32]: ...  # of each token, under the target's sampling settings


def acceptance_probabilities(
    model: Any,
    completions: Sequence[ScoredCompletion],
    sampling: Sampling,
    draft_sampling: Sampling,
    vocabulary: int,
    batch_tokens: int,
) -> list[Floats]:
    """`examine` for one draft: a_t of every token of every completion. Raises BrokenDraft if it cannot be examined."""
    found = examine({"draft": model}, completions, sampling, draft_sampling, vocabulary, batch_tokens)["draft"]
    if isinstance(found, BrokenDraft):
        raise found
    return found


def examine(
    models: Mapping[str, Any],
    completions: Sequence[ScoredCompletion],
    sampling: Sampling,
    draft_sampling: Sampling,
    vocabulary: int,
    batch_tokens: int,
    on_done: Callable[[int], None] = lambda count: None,
    first_number: int = 0,
) -> dict[str, list[Floats] | BrokenDraft]:
    """a_t of every token of every completion, including the lookahead, in the given order, for each draft in `models`.

    a_t = min(1, q(x_t) / p(x_t)); if the target or the draft is greedy, a_t = 1 if argmax q = x_t, else 0
    (`pipeline/acceptance/rounds.py` computes target calls from it). `sampling` are the settings of the target's log_p,
    `draft_sampling` those that the engine applies to the draft. Batches depend only on the completions; each is built
    once for all drafts. For a draft that cannot be examined (NaN logits, a smaller vocabulary, a context too short) the
    result is a BrokenDraft that names the completion; other drafts are not affected. Completions are numbered from
    `first_number`.
    """
    found: dict[str, list[Floats]] = {name: [np.empty(0)] * len(completions) for name in models}
    broken: dict[str, BrokenDraft] = {}
    for numbers in batches([len(item.prompt) + len(item.tokens) for item in completions], batch_tokens):
        rows = [completions[number] for number in numbers]
        batch = PaddedBatch(rows)
        for name in [name for name in models if name not in broken]:
            try:
                values = _examine_batch(models[name], rows, batch, sampling, draft_sampling, vocabulary)
            except BrokenDraft as error:
                broken[name] = BrokenDraft(f"{error} (completion {first_number + numbers[-1]})")
                continue
            for number, a_T in zip(numbers, values, strict=True):
                if not np.isfinite(a_T).all():
                    broken[name] = BrokenDraft(
                        f"the draft returned NaN logits on completion {first_number + number}: its weights are damaged"
                    )
                    break
                found[name][number] = a_T
        if len(broken) == len(models):
            break
        on_done(len(numbers))
    return {name: broken.get(name, found[name]) for name in models}


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Row numbers of each batch: sorted by length, at most `batch_tokens` tokens with padding, at least one row."""
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: (lengths[number], number)):
        if group and (len(group) + 1) * lengths[number] > batch_tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


class PaddedBatch:
    """Completions padded on the right. Causal attention never sees the padding, so no attention mask is needed."""

    def __init__(self, rows: Sequence[TokenizedCompletion]) -> None:
        self.width = max(len(row.prompt) + len(row.tokens) for row in rows)
        self.first = min(len(row.prompt) for row in rows) - 1  # the first position that predicts a token
        self.ids_BT = torch.zeros(len(rows), self.width, dtype=torch.long)
        for index, row in enumerate(rows):
            self.ids_BT[index, : len(row.prompt) + len(row.tokens)] = torch.from_numpy(
                np.concatenate([row.prompt, row.tokens]).astype(np.int64)
            )


@torch.inference_mode()
def _examine_batch(
    model: Any,
    rows: Sequence[ScoredCompletion],
    batch: PaddedBatch,
    sampling: Sampling,
    draft_sampling: Sampling,
    vocabulary: int,
) -> list[Floats]:
    context = _context(model)
    if batch.width > context:
        raise BrokenDraft(
            f"a prompt and its completion are {batch.width} tokens long and the draft's context is {context}: lower "
            "corpus.max_prompt_tokens or generate.max_new_tokens, or use a draft with a longer context"
        )
    first, ids_BT = batch.first, batch.ids_BT.to(model.device)
    logits_BTV = model(input_ids=ids_BT, use_cache=False, logits_to_keep=batch.width - first).logits
    if logits_BTV.shape[-1] < vocabulary:
        raise BrokenDraft(
            f"the draft has logits for {logits_BTV.shape[-1]} tokens and the pair shares {vocabulary}: "
            "use a draft with the target's vocabulary"
        )
    logits_BTV = logits_BTV[..., :vocabulary]
    log_q_BT, best_BT = _score(logits_BTV[:, :-1], ids_BT[:, first + 1 :], sampling, draft_sampling)
    found = []
    for index, row in enumerate(rows):
        begin = len(row.prompt) - 1 - first
        window = slice(begin, begin + len(row.tokens))
        if sampling.greedy or draft_sampling.greedy:
            best_T = best_BT[index, window]
            found.append(np.where(best_T < 0, np.nan, best_T == row.tokens))
        else:
            found.append(np.exp(np.minimum(log_q_BT[index, window].astype(np.float64) - row.log_p, 0.0)))
    return found


def _context(model: Any) -> float:
    """The model's maximum sequence length in tokens; infinite if its config does not state one."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "max_position_embeddings", None) or float("inf")


def _score(
    logits_BTV: torch.Tensor, next_BT: torch.Tensor, sampling: Sampling, draft_sampling: Sampling
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """log q of each next token (NaN if any logit is NaN); for a greedy target or draft, the draft's argmax instead (-1 if
    any logit is NaN). Computed in chunks of positions to bound memory."""
    batch, positions, vocabulary = logits_BTV.shape
    log_q_BT, best_BT = torch.zeros(batch, positions), torch.zeros(batch, positions, dtype=torch.long)
    greedy = sampling.greedy or draft_sampling.greedy
    step = max(1, _CHUNK_ELEMENTS // (batch * vocabulary))
    for begin in range(0, positions, step):
        chunk = slice(begin, begin + step)
        part_BTV = logits_BTV[:, chunk]
        if greedy:
            largest = part_BTV.max(-1)  # NaN if any logit is NaN; the lowest id among ties
            best_BT[:, chunk] = torch.where(torch.isnan(largest.values), -1, largest.indices).cpu()
        else:
            log_q_BTV = log_probabilities(part_BTV, draft_sampling)
            log_q_BT[:, chunk] = log_q_BTV.gather(-1, next_BT[:, chunk].unsqueeze(-1)).squeeze(-1).cpu()
    return log_q_BT.numpy(), best_BT.numpy()


def engine_sampling(convention: str, deployed: Sampling, draft_sampling: str) -> Sampling:
    """The sampling settings that the engine applies to the draft: only the temperature in vLLM, the target's settings in
    the others; argmax if the draft or the target is sampled greedily."""
    if draft_sampling == "greedy" or deployed.greedy:
        return GREEDY
    return Sampling(temperature=deployed.temperature) if convention == "vllm" else deployed
