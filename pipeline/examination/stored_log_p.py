"""Compares stored completions with teacher-forced passes of the target: was the text, and its log p, computed right?

The pass is the model's own over one completion alone, without a cache or a batch. So a fault of the decoder shows, whatever the
decoder compares itself with. Token by token the difference is |stored log p - log p|; at temperature 0, where log p means
nothing, it is the gap between the highest logit and that of the stored token.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.acceptance.schema import DifferentCompletion, LogPCheck
from pipeline.models.placement import input_device
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling

# Largest mean difference of a completion's tokens, in nats, at temperature 1 or above. In lower precision passes of different
# shapes round differently; an attention window that is ignored costs some nats.
TOLERANCE, TOLERANCE_LOWER_PRECISION = 1e-3, 0.1
_MOST = 1.0  # a token counts at most this: rounding may put one on the other side of a top-k or top-p limit


class CompletionWithLogP(Protocol):
    """A stored completion with the log p of its tokens."""

    @property
    def id(self) -> str: ...

    @property
    def prompt(self) -> NDArray[np.int32]: ...

    @property
    def tokens(self) -> NDArray[np.int32]: ...

    @property
    def domain(self) -> str: ...

    @property
    def log_p(self) -> NDArray[np.float32]: ...

    @property
    def sampling(self) -> Sampling: ...


def compare_log_p(
    target: Any, stored: Sequence[CompletionWithLogP], vocabulary: int, exact_arithmetic: bool
) -> LogPCheck:
    """The largest mean difference of a completion, and the completions that differ by more than the tolerance."""
    base = TOLERANCE if exact_arithmetic else TOLERANCE_LOWER_PRECISION
    largest, different = 0.0, []
    for item in stored:
        difference = float(_differences(target, item, vocabulary).mean())
        largest = max(largest, difference)
        temperature = 1.0 if item.sampling.greedy else item.sampling.temperature
        if difference > base / min(1.0, temperature):  # a temperature below 1 enlarges differences of logits
            different.append(DifferentCompletion(item.id, difference))
    return LogPCheck(
        completions=len(stored),
        largest_difference=largest,
        tolerance=base,
        different=different,
        agrees=not different,
    )


@torch.inference_mode()
def _differences(target: Any, item: CompletionWithLogP, vocabulary: int) -> NDArray[np.float64]:
    count, ids = len(item.tokens), [*item.prompt.tolist(), *item.tokens.tolist()]
    # With the last token, whose own logits are not used: a served target gives log p of the tokens that it reads.
    ids_1S = torch.tensor([ids], device=input_device(target))
    output = target(input_ids=ids_1S, use_cache=False, logits_to_keep=count + 1)
    logits_TV = output.logits[0, -count - 1 : -1, :vocabulary]
    logits_TV = logits_TV if logits_TV.dtype == torch.float64 else logits_TV.float()
    tokens_T1 = torch.tensor(ids[-count:], device=input_device(target)).unsqueeze(1)
    if item.sampling.greedy:
        found_T = logits_TV.amax(-1) - logits_TV.gather(-1, tokens_T1).squeeze(-1)
        difference_T = found_T.double().cpu().numpy()
    else:
        log_p_T = log_probabilities(logits_TV, item.sampling).gather(-1, tokens_T1).squeeze(-1)
        difference_T = np.abs(log_p_T.double().cpu().numpy() - item.log_p)
    capped_T: NDArray[np.float64] = np.minimum(np.nan_to_num(difference_T, nan=_MOST, posinf=_MOST), _MOST)
    return capped_T
