"""Compares the examination with a real greedy decode of the same prompts, allowing for near-ties, and stored completions with
teacher-forced passes of the target.

A forward pass over a block rounds differently from one over a single token, so a greedy decode may differ from the stored
text where two logits are nearly equal. In fp32 only a gap below NEAR_TIE explains a difference; in lower precision
differences are listed and counted.
"""

from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.acceptance.schema import CrossCheck, Difference
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.loading import DraftWithWeights
from pipeline.examination.examiner import Examiner
from pipeline.examination.stored_log_p import CompletionWithLogP, compare_log_p
from pipeline.models.placement import input_device
from pipeline.speculation.batch import Completion, Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.sampling import precise
from pipeline.speculation.settings import GREEDY

NEAR_TIE = 2e-5
_BATCH_TOKENS = 4096


class GreedyCompletion(CompletionWithLogP, Protocol):
    """A stored greedy completion."""

    @property
    def length(self) -> int: ...


class _Decoded:
    """A completion of the decoder, in the form that the examiner reads."""

    def __init__(self, prompt: NDArray[np.int32], tokens: Sequence[int], domain: str) -> None:
        self.prompt, self.domain = prompt, domain
        self.tokens = np.array(tokens, dtype=np.int32)
        self.log_p = np.zeros(len(tokens), dtype=np.float32)


def cross_check(
    target: Any,
    draft: DraftWithWeights,
    stored: Sequence[GreedyCompletion],
    settings: EvaluateConfig,
    stop_tokens: Sequence[int],
    sampled: Sequence[CompletionWithLogP] = (),
) -> CrossCheck:
    """Decode the first `settings.crosscheck_tokens` tokens of each stored completion with draft length
    `settings.crosscheck_gamma`; compare text and rounds. Compare these completions and those in `sampled`, at other settings,
    with teacher-forced passes of the target.

    `agrees`: in fp32, every difference is a near-tie; in lower precision, the number of rounds is within 10% (or 2); and the
    completions are the target's (`stored_log_p.py`).
    """
    gamma, vocabulary = settings.crosscheck_gamma, draft.vocabulary
    requests = [
        Request(item.prompt.tolist(), min(settings.crosscheck_tokens, item.length), 0, domain=item.domain)
        for item in stored
    ]
    decoder = Decoder(target, draft, sampling=GREEDY, vocabulary=vocabulary, gamma=gamma, stop_tokens=stop_tokens)
    completions = decoder.decode(requests)
    decoded = [
        _Decoded(item.prompt, completion.tokens, item.domain)
        for item, completion in zip(stored, completions, strict=True)
    ]
    # A batch size of its own: in lower precision rounding, and so `agrees`, must not depend on a setting for memory.
    examiner = Examiner(GREEDY, settings).in_batches(_BATCH_TOKENS)
    accepted = examiner.at_gamma(gamma).acceptance(draft, decoded)
    ties: list[Difference] = []
    predicted = seen = 0
    for item, own, completion, a_T in zip(stored, decoded, completions, accepted, strict=True):
        ties += _text_difference(target, item, own, vocabulary)
        predicted += len(trace := round_starts(a_T, gamma))
        seen += len(actual := decoded_starts(completion))
        ties += _trace_difference(draft, item, own, trace, actual)
    exact = all(_is_fp32(model) for model in (target, *draft.models))
    log_p = compare_log_p(target, [*stored, *sampled], vocabulary, _is_fp32(target))
    same_rounds = all(tie.gap < NEAR_TIE for tie in ties) if exact else abs(seen - predicted) <= _leeway(predicted)
    return CrossCheck(
        prompts=len(stored),
        tokens=sum(len(own.tokens) for own in decoded),
        gamma=gamma,
        rounds_predicted=predicted,
        rounds_decoded=seen,
        differences=ties,
        exact_arithmetic=exact,
        log_p=log_p,
        agrees=same_rounds and log_p.agrees,
    )


def attempt_prompts(
    target: Any,
    draft: DraftWithWeights,
    stored: Sequence[GreedyCompletion],
    settings: EvaluateConfig,
    stop_tokens: Sequence[int],
    sampled: Sequence[CompletionWithLogP],
) -> Callable[[int], object]:
    """A function that cross-checks the longest n completions of each kind. For `out_of_memory.batch_named`."""

    def attempt(count: int) -> object:
        longest = nlargest(count, stored, key=_length)
        return cross_check(target, draft, longest, settings, stop_tokens, nlargest(count, sampled, key=_length))

    return attempt


def _length(item: CompletionWithLogP) -> int:
    return len(item.prompt) + len(item.tokens)


def _leeway(rounds: int) -> float:
    """Rounds by which a decode in lower precision may differ: ties are frequent there; a broken draft differs by far more."""
    return max(2.0, 0.1 * rounds)


def round_starts(a_T: NDArray[np.float64], gamma: int) -> list[int]:
    """The places where rounds start, given which tokens the draft would have proposed (1 or 0), by token, or by token and place.
    The first round starts at token 0."""
    a_TP, starts, position = np.broadcast_to(a_T if a_T.ndim > 1 else a_T[:, None], (len(a_T), gamma)), list[int](), 0
    while position < len(a_T):
        starts.append(position)
        accepted = 0
        while accepted < gamma and position + accepted < len(a_T) and a_TP[position + accepted, accepted] == 1:
            accepted += 1
        position += accepted + 1
    return starts


def decoded_starts(completion: Completion) -> list[int]:
    """The places where the rounds of a decode started."""
    ends = np.cumsum([accepted + 1 for accepted in completion.accepted])
    return [0, *(int(end) for end in ends[:-1])]


def _text_difference(target: Any, item: GreedyCompletion, own: _Decoded, vocabulary: int) -> list[Difference]:
    stored = item.tokens[: len(own.tokens)].tolist()
    divergence = first_divergence(target, item.prompt.tolist(), stored, own.tokens.tolist(), vocabulary)
    return (
        []
        if divergence is None
        else [Difference(prompt=item.id, position=divergence[0], of="target", gap=divergence[1])]
    )


def first_divergence(
    target: Any, prompt: Sequence[int], own: Sequence[int], other: Sequence[int], vocabulary: int
) -> tuple[int, float] | None:
    """The first token in which two greedy texts of the same length differ, and the gap between the two tokens' logits in a
    forward pass of the target; None where the texts are equal."""
    position = next((at for at, (left, right) in enumerate(zip(own, other, strict=True)) if left != right), None)
    if position is None:
        return None
    logits_V = _logits_at(target, [*prompt, *own[:position]], vocabulary)
    return position, float((logits_V[own[position]] - logits_V[other[position]]).abs())


def _trace_difference(
    draft: DraftWithWeights, item: GreedyCompletion, own: _Decoded, trace: list[int], actual: list[int]
) -> list[Difference]:
    """The first round that did not end where predicted, with the gap between the draft's two highest logits there.

    Where one side has one round more, the other side's last round reached the end of the text."""
    for number, (expected, other) in enumerate(zip_longest(trace, actual, fillvalue=len(own.tokens))):
        if expected != other:
            position = min(expected, other) - 1
            prefix = [*own.prompt.tolist(), *own.tokens[:position].tolist()]
            began = trace[number - 1] if number else 0
            best = draft.logits_after(prefix, len(own.prompt) + began).topk(2).values
            return [
                Difference(prompt=item.id, position=position, of="draft", round=number, gap=float(best[0] - best[1]))
            ]
    return []


@torch.inference_mode()
def _logits_at(model: Any, ids: Sequence[int], vocabulary: int) -> torch.Tensor:
    output = model(input_ids=torch.tensor([list(ids)], device=input_device(model)), use_cache=False, logits_to_keep=1)
    logits: torch.Tensor = output.logits[0, -1, :vocabulary]
    return precise(logits)


def _is_fp32(model: Any) -> bool:
    return model.dtype == torch.float32 and not getattr(model, "is_quantized", False)
