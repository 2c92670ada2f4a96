"""Sampling settings applied to logits (temperature, top-k, top-p, min-p), and drawing tokens.

Does not depend on models or caches. Shapes: B sequences, T positions, V tokens; a leading `...` stands for any dimensions.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipeline.errors import UnderstudyError
from pipeline.models.devices import download
from pipeline.speculation.settings import Sampling

_FIRST_CHUNK, _LARGEST_CHUNK = 64, 4096  # numbers of a stream that are made at once
_BLOCK = 256  # tokens that are summed together before blocks are


def log_probabilities(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities of `logits_V` (..., V) under `sampling`; filtered tokens get -inf.

    At temperature 0 the result is one-hot on the argmax (the lowest id among ties). Computed in fp32, or in fp64 for fp64
    logits. NaN or infinite logits give NaN, at temperature 0 too.
    """
    if sampling.greedy:
        best = logits_V.argmax(-1, keepdim=True)
        value = logits_V.gather(-1, best)
        value = value if value.dtype == torch.float64 else value.float()
        # 0 if the best logit is finite, NaN otherwise, which a plain 0 would hide.
        return torch.full_like(logits_V, -torch.inf, dtype=value.dtype).scatter_(-1, best, value - value)
    return filtered(logits_V, sampling).log_softmax(-1)


def probabilities(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities of `logits_V` (..., V) under `sampling`; see `log_probabilities`."""
    return log_probabilities(logits_V, sampling).exp() if sampling.greedy else filtered(logits_V, sampling).softmax(-1)


def precise(logits_V: torch.Tensor) -> torch.Tensor:
    """The logits in fp32, or in fp64 if they are."""
    return logits_V if logits_V.dtype == torch.float64 else logits_V.float()


def filtered(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits divided by the temperature, filtered tokens at -inf. The filters follow in the order top-k, top-p, min-p, as in
    transformers. min-p is relative to the likeliest token, which no filter drops."""
    logits_V = precise(logits_V)
    scaled_V = logits_V if sampling.temperature == 1 else logits_V / sampling.temperature
    if 0 < sampling.top_k < scaled_V.shape[-1]:
        least = scaled_V.topk(sampling.top_k, dim=-1).values[..., -1:]
        scaled_V = scaled_V.masked_fill(scaled_V < least, -torch.inf)
    if sampling.top_p < 1:
        scaled_V = _keep_top_p(scaled_V, sampling.top_p)
    if sampling.min_p > 0:
        # p / max p = exp(logit - max logit), also after other filters.
        likeliest = scaled_V.amax(-1, keepdim=True)
        scaled_V = scaled_V.masked_fill(scaled_V - likeliest < math.log(sampling.min_p), -torch.inf)
    return scaled_V


def _keep_top_p(scaled_V: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of tokens whose mass reaches `top_p`, and always the likeliest token."""
    sorted_V, order_V = scaled_V.sort(-1, descending=True)
    p_V = sorted_V.softmax(-1)
    before_V = p_V.cumsum(-1) - p_V
    drop_V = torch.zeros_like(before_V, dtype=torch.bool).scatter(-1, order_V, before_V >= top_p)
    return scaled_V.masked_fill(drop_V, -torch.inf)


def draw(weights_V: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (...) drawn from unnormalised weights (..., V) by inverting their cumulative sum at `uniform` (...) in [0, 1),
    and the sums (...).

    Each draw uses one uniform number, so it depends only on the sequence's own random stream and not on the batch. A
    token of weight 0 is never drawn. The caller checks the sums once per round with `require_sound`: a check here would make the
    host wait at every draft token.
    """
    blocks_NK = _blocks(weights_V)
    sums_N = blocks_NK.sum(-1, dtype=torch.float64).cumsum(-1)
    total = sums_N[..., -1:]
    at = _below(uniform.double().unsqueeze(-1) * total, total)
    block = torch.searchsorted(sums_N, at, right=True).clamp(max=sums_N.shape[-1] - 1)
    before = torch.where(block > 0, sums_N.gather(-1, (block - 1).clamp(min=0)), 0.0)
    chosen_K = blocks_NK.gather(-2, block.unsqueeze(-1).expand(*block.shape, blocks_NK.shape[-1])).squeeze(-2)
    sums_K = chosen_K.cumsum(-1, dtype=torch.float64)
    place = torch.searchsorted(sums_K, _below(at - before, sums_K[..., -1:]), right=True)
    chosen = (block * blocks_NK.shape[-1] + place).squeeze(-1)
    return chosen.clamp(max=weights_V.shape[-1] - 1), total.squeeze(-1)


def _blocks(weights_V: torch.Tensor) -> torch.Tensor:
    """(..., N, K). A GPU computes one running sum by one block of its threads: over 150,000 tokens it waits for that."""
    size = min(_BLOCK, weights_V.shape[-1])
    lacking = -weights_V.shape[-1] % size
    padded_V = functional.pad(weights_V, (0, lacking)) if lacking else weights_V
    return padded_V.view(*padded_V.shape[:-1], -1, size)


def _below(at: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Strictly below the total even after rounding. `right=True` then skips tokens of weight 0, whose cumulative sum equals that
    of the token before them."""
    return torch.minimum(at, total.nextafter(torch.zeros_like(total)))


def finite_or_nan(best: torch.Tensor) -> torch.Tensor:
    """What `check_weight_sums` checks of a greedy choice: 1 if the best logit is finite, NaN otherwise."""
    return (best - best + 1).float()


def check_weight_sums(sums: torch.Tensor) -> None:
    """`require_sound`, of sums on a device. The host waits for them."""
    require_sound(*download(sums))


def require_sound(*sums: NDArray[Any]) -> None:
    """Raise UnderstudyError unless all weight sums are finite and positive."""
    if not all(0 < value < math.inf for some in sums for value in some.ravel().tolist()):  # NaN compares as false
        raise UnderstudyError("the model returned NaN or infinite logits; check its weights and dtype")


class RandomStreams:
    """A stream of uniform random numbers for each sequence, so that its draws do not depend on the rest of the batch."""

    def __init__(self, seeds: list[int]) -> None:
        self._generators = [np.random.Generator(np.random.Philox(key=seed)) for seed in seeds]
        self._chunk_BN, self._next_chunk = np.empty((len(seeds), 0)), _FIRST_CHUNK
        self._used = 0

    def take(self, count: int) -> torch.Tensor:
        """The next `count` numbers of every stream: (B, count), float64 in [0, 1)."""
        if self._used + count > self._chunk_BN.shape[1]:
            left_BN = self._chunk_BN[:, self._used :]
            fresh_BN = np.stack([generator.random(max(self._next_chunk, count)) for generator in self._generators])
            self._next_chunk = min(2 * self._next_chunk, _LARGEST_CHUNK)
            self._chunk_BN, self._used = np.concatenate([left_BN, fresh_BN], axis=1), 0
        taken = self._chunk_BN[:, self._used : self._used + count]
        self._used += count
        return torch.from_numpy(taken.copy())

    def select(self, rows: list[int]) -> None:
        """Keep only these sequences' streams."""
        self._generators = [self._generators[row] for row in rows]
        self._chunk_BN = self._chunk_BN[rows]
