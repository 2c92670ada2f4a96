"""How tokens are drafted and verified under the sampling settings: from logits to tokens. Does not depend on models.

`TorchRules` works on any device. `compiled_rules.CompiledRules` computes the same in compiled code, for sampling without filters
on a CPU. Shapes: B sequences, G drafted tokens, T = G + 1 positions of a target pass, V shared tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from pipeline.models.devices import upload
from pipeline.speculation.sampling import draw, finite_or_nan, probabilities
from pipeline.speculation.settings import Sampling, Verification
from pipeline.speculation.verification import (
    VerificationResult,
    verify_block,
    verify_greedy,
    verify_imposed,
    verify_tokens,
)


@dataclass(frozen=True)
class ImposedAcceptance:
    """Rates of acceptance by position, which replace the acceptance test. The output no longer follows the target: it is only for
    timing models with random weights."""

    rates: Sequence[float]


Method = Verification | ImposedAcceptance
_Verify = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], VerificationResult]


class Drawn(NamedTuple):
    """One draft token of each row."""

    token_B: torch.Tensor
    q: Any  # the distribution it was drawn from, as the same rules' `verify` reads it; None for a token that was not drawn
    sums_B: torch.Tensor  # for `sampling.check_weight_sums`


class Rules(Protocol):
    """Drawing and verification for one pair of sampling settings."""

    def draw(self, logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> Drawn:
        """A draft token for each row, by its number `uniform_B` in [0, 1) (fp64; a column of a larger tensor)."""

    def verify(
        self,
        logits_BTV: torch.Tensor,
        draft_BG: torch.Tensor,
        q_G: Sequence[Any],
        drafted: Sequence[int],
        accept_BG: torch.Tensor,
        next_B: torch.Tensor,
    ) -> VerificationResult:
        """Which tokens of `draft_BG` are accepted, and the token after them. `q_G` are those of `draw` by place, or None by place
        for tokens that were not drawn, whose q is 1. `drafted` is the number of draft tokens that count in each row. `accept_BG`
        and `next_B` are numbers in [0, 1) (fp64), for the acceptance tests and for the token after the accepted ones."""


VERIFICATIONS: dict[Verification, _Verify] = {"token": verify_tokens, "block": verify_block}


class TorchRules:
    """`Rules` in PyTorch, for all settings and devices."""

    def __init__(
        self,
        sampling: Sampling,
        draft_sampling: Sampling,
        verification: Method = "token",
        device: torch.device | None = None,
    ) -> None:
        self.sampling, self.draft_sampling = sampling, draft_sampling
        if isinstance(verification, ImposedAcceptance):
            self._verify: _Verify = partial(verify_imposed, torch.tensor(verification.rates, device=device))
        else:
            self._verify = VERIFICATIONS[verification]

    def draw(self, logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> Drawn:
        if self.draft_sampling.greedy:
            best = logits_BV.max(-1)
            return Drawn(best.indices, None, finite_or_nan(best.values))
        q_BV = probabilities(logits_BV, self.draft_sampling)
        token_B, sum_B = draw(q_BV, uniform_B)
        return Drawn(token_B, q_BV, sum_B)

    def verify(
        self,
        logits_BTV: torch.Tensor,
        draft_BG: torch.Tensor,
        q_G: Sequence[Any],
        drafted: Sequence[int],
        accept_BG: torch.Tensor,
        next_B: torch.Tensor,
    ) -> VerificationResult:
        drafted_B = upload(drafted, logits_BTV.device)
        if self.sampling.greedy:
            best = logits_BTV.max(-1)
            result = verify_greedy(best.indices, draft_BG, drafted_B)
            return result._replace(sums_B=finite_or_nan(best.values).amin(-1))
        p_BTV = probabilities(logits_BTV, self.sampling)
        if q_G and q_G[0] is None:
            q_BGV = torch.zeros_like(p_BTV[:, :-1]).scatter_(-1, draft_BG.unsqueeze(-1), 1.0)
        else:
            q_BGV = torch.stack(list(q_G), dim=1).to(p_BTV.dtype) if q_G else p_BTV[:, :0]
        uniform_BT = torch.cat([accept_BG, next_B.unsqueeze(1)], dim=1)
        verify = self._verify if q_G else verify_tokens
        return verify(p_BTV, q_BGV, draft_BG, drafted_B, uniform_BT)
