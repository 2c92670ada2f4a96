"""Examination without decoding: one teacher-forced pass of a draft over stored completions of the target.

Takes a loaded model and arrays; does not read files. Shapes: N or n tokens of completions, V shared tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.acceptance.teacher_forced import PaddedBatch, TeacherForced, TokenizedCompletion, batches
from pipeline.errors import BrokenDraft
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import GREEDY, Sampling

Floats = NDArray[np.float64]


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
    passes = {"draft": model if isinstance(model, TeacherForced) else TeacherForced(model)}
    found = examine(passes, completions, sampling, draft_sampling, vocabulary, batch_tokens)["draft"]
    if isinstance(found, BrokenDraft):
        raise found
    return found


def examine(
    models: Mapping[str, TeacherForced],
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


def _examine_batch(
    model: TeacherForced,
    rows: Sequence[ScoredCompletion],
    batch: PaddedBatch,
    sampling: Sampling,
    draft_sampling: Sampling,
    vocabulary: int,
) -> list[Floats]:
    context = _context(model.model)
    if batch.width > context:
        raise BrokenDraft(
            f"a prompt and its completion are {batch.width} tokens long and the draft's context is {context}: lower "
            "corpus.max_prompt_tokens or generate.max_new_tokens, or use a draft with a longer context"
        )
    found_N: Floats = np.empty(len(batch.tokens_N))
    greedy = sampling.greedy or draft_sampling.greedy
    for part, logits_nV in model.logits(batch, vocabulary):
        tokens_n = batch.tokens_N[part].to(logits_nV.device)
        found_N[part] = _is_best(logits_nV, tokens_n) if greedy else _log_q(logits_nV, tokens_n, draft_sampling)
    if not greedy:
        log_p_N = np.concatenate([row.log_p for row in rows])
        found_N = np.exp(np.minimum(found_N - log_p_N, 0.0))
    return batch.by_row(found_N)


def _context(model: Any) -> float:
    """The model's maximum sequence length in tokens; infinite if its config does not state one."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "max_position_embeddings", None) or float("inf")


def _log_q(logits_nV: torch.Tensor, tokens_n: torch.Tensor, draft_sampling: Sampling) -> Floats:
    """log q of each token; NaN if any logit of its position is NaN."""
    log_q_nV = log_probabilities(logits_nV, draft_sampling)
    found_n: Floats = log_q_nV.gather(-1, tokens_n.unsqueeze(-1)).squeeze(-1).double().cpu().numpy()
    return found_n


def _is_best(logits_nV: torch.Tensor, tokens_n: torch.Tensor) -> Floats:
    """1 where the token is the draft's argmax, else 0; NaN if any logit of its position is NaN."""
    largest = logits_nV.max(-1)  # NaN if any logit is NaN; the lowest id among ties
    found_n: Floats = (
        torch.where(torch.isnan(largest.values), torch.nan, (largest.indices == tokens_n).double()).cpu().numpy()
    )
    return found_n


def engine_sampling(convention: str, deployed: Sampling, draft_sampling: str) -> Sampling:
    """The sampling settings that the engine applies to the draft: only the temperature in vLLM, the target's settings in
    the others; argmax if the draft or the target is sampled greedily."""
    if draft_sampling == "greedy" or deployed.greedy:
        return GREEDY
    return Sampling(temperature=deployed.temperature) if convention == "vllm" else deployed
