"""The examination without decoding: one teacher-forced pass of a draft over what the target said.

Takes a loaded model and arrays; knows no files. Shapes: B completions of a batch, T positions, V shared tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import BrokenDraft
from pipeline.speculation.sampling import GREEDY, Sampling, log_probabilities

Floats = NDArray[np.float64]
_CHUNK_ELEMENTS = 1 << 26  # logits held at once: 256 MiB in fp32


class Text(Protocol):
    """A prompt and what was said after it."""

    @property
    def prompt(self) -> NDArray[np.int32]: ...

    @property
    def tokens(self) -> NDArray[np.int32]: ...  # lookahead included


class ScoredCompletion(Text, Protocol):
    """What of a stored completion the examination reads: what the target said after a prompt."""

    @property
    def log_p(self) -> NDArray[np.float32]: ...  # of each token, at the target's sampling settings


def acceptance_probabilities(
    model: Any,
    spoken: Sequence[ScoredCompletion],
    sampling: Sampling,
    draft_sampling: Sampling,
    vocabulary: int,
    batch_tokens: int,
    on_done: Callable[[int], None] = lambda count: None,
) -> list[Floats]:
    """`examine` of one draft: a_t of every token of every completion. Raises BrokenDraft if it cannot be examined."""
    found = examine({"draft": model}, spoken, sampling, draft_sampling, vocabulary, batch_tokens, on_done)["draft"]
    if isinstance(found, BrokenDraft):
        raise found
    return found


def examine(
    models: Mapping[str, Any],
    spoken: Sequence[ScoredCompletion],
    sampling: Sampling,
    draft_sampling: Sampling,
    vocabulary: int,
    batch_tokens: int,
    on_done: Callable[[int], None] = lambda count: None,
    first_number: int = 0,
) -> dict[str, list[Floats] | BrokenDraft]:
    """a_t of every token of every completion, lookahead included, in the order given, under each draft of `models`.

    a_t = min(1, q(x_t) / p(x_t)); where the target is greedy, or the draft is, 1 if argmax q = x_t, else 0
    (`pipeline/acceptance/rounds.py` says what follows from it). `sampling` is what the target's log_p are under,
    `draft_sampling` what the engine applies to the draft. Batches depend on the completions alone, and each is read and
    padded once for all drafts. A draft that cannot be examined gets the reason instead of figures and spoils no other:
    logits that are no numbers or fewer than the pair's tokens, a context too short. It names the completion, the first
    of which is `first_number`.
    """
    found: dict[str, list[Floats]] = {name: [np.empty(0)] * len(spoken) for name in models}
    broken: dict[str, BrokenDraft] = {}
    for numbers in batches([len(item.prompt) + len(item.tokens) for item in spoken], batch_tokens):
        rows = [spoken[number] for number in numbers]
        batch = Batch(rows)
        for name in [name for name in models if name not in broken]:
            try:
                values = _examine_batch(models[name], rows, batch, sampling, draft_sampling, vocabulary)
            except BrokenDraft as error:
                broken[name] = BrokenDraft(f"{error} (completion {first_number + numbers[-1]})")
                continue
            for number, a_T in zip(numbers, values, strict=True):
                if not np.isfinite(a_T).all():
                    broken[name] = BrokenDraft(
                        f"the draft's logits are not numbers on completion {first_number + number}: its weights are damaged"
                    )
                    break
                found[name][number] = a_T
        if len(broken) == len(models):
            break
        on_done(len(numbers))
    return {name: broken.get(name, found[name]) for name in models}


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of rows that go together: sorted by length, at most `batch_tokens` with padding, at least one row."""
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: (lengths[number], number)):
        if group and (len(group) + 1) * lengths[number] > batch_tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


class Batch:
    """Texts side by side. Padding lies to the right, where no causal position before it can see it, so no mask is
    needed."""

    def __init__(self, rows: Sequence[Text]) -> None:
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
    batch: Batch,
    sampling: Sampling,
    draft_sampling: Sampling,
    vocabulary: int,
) -> list[Floats]:
    context = _context(model)
    if batch.width > context:
        raise BrokenDraft(
            f"a prompt and its completion are {batch.width} tokens long and the draft's context is {context}: lower "
            "corpus.max_prompt_tokens or generate.max_new_tokens, or take a draft with a longer context"
        )
    first, ids_BT = batch.first, batch.ids_BT.to(model.device)
    logits_BTV = model(input_ids=ids_BT, use_cache=False, logits_to_keep=batch.width - first).logits
    if logits_BTV.shape[-1] < vocabulary:
        raise BrokenDraft(
            f"the draft has logits for {logits_BTV.shape[-1]} tokens and the pair shares {vocabulary}: "
            "take a draft of the target's vocabulary"
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
    """Most tokens that a model was made for; infinite where it does not say."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "max_position_embeddings", None) or float("inf")


def _score(
    logits_BTV: torch.Tensor, next_BT: torch.Tensor, sampling: Sampling, draft_sampling: Sampling
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """log q of each next token (NaN where any logit is), or where a side is greedy the draft's argmax (-1 there); a few
    positions at a time so that memory stays bounded."""
    batch, positions, vocabulary = logits_BTV.shape
    log_q_BT, best_BT = torch.zeros(batch, positions), torch.zeros(batch, positions, dtype=torch.long)
    greedy = sampling.greedy or draft_sampling.greedy
    step = max(1, _CHUNK_ELEMENTS // (batch * vocabulary))
    for begin in range(0, positions, step):
        chunk = slice(begin, begin + step)
        part_BTV = logits_BTV[:, chunk]
        if greedy:
            largest = part_BTV.max(-1)  # NaN if any is; the lowest id among equals
            best_BT[:, chunk] = torch.where(torch.isnan(largest.values), -1, largest.indices).cpu()
        else:
            log_q_BTV = log_probabilities(part_BTV, draft_sampling)
            log_q_BT[:, chunk] = log_q_BTV.gather(-1, next_BT[:, chunk].unsqueeze(-1)).squeeze(-1).cpu()
    return log_q_BT.numpy(), best_BT.numpy()


def engine_sampling(convention: str, deployed: Sampling, draft_sampling: str) -> Sampling:
    """What the engine applies to the draft: vLLM the temperature alone, the others what they apply to the target;
    argmax where the draft is sampled greedily or the target is."""
    if draft_sampling == "greedy" or deployed.greedy:
        return GREEDY
    return Sampling(temperature=deployed.temperature) if convention == "vllm" else deployed
