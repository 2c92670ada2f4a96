"""What equal weights may differ by: near-ties, log p of single tokens, and choices of the draft beyond near-ties. Pure.

In float32, logits closer than 2e-5 may be ordered otherwise by another order of sums (docs/examination.md); nothing else differs.
In 16 bits or quantized:
- the target's log p of two tokens may be 0.25 nats apart (`generation/served_log_p.py`);
- two logits of the draft may be apart by twice the spacing of bfloat16 numbers at the largest logit, 2^-7 of the power of two
  below it: half a spacing is the rounding of each of the two, and as much again is left for the layers before. On vLLM's CPU
  build in bfloat16 all of 15 other choices in 2,300 were within it;
- one choice in 500, and one more, may lie outside: an assumption. Nothing of this was measured on a GPU.

Log p of a single known token may differ by 50 times what the mean over all may (`servers/identity.py`): by 0.05 nats in float32,
where 1e-3 was the most that was seen, and by 1.5 nats otherwise, where as many tokens as choices may lie outside.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.config.pair import NumberFormat
from pipeline.config.quantize import Variant
from pipeline.servers.identity import most_rounding

_FLOAT32_TIE, _LOWER_PRECISION_TIE = 2e-5, 0.25
_SPACINGS, _SIGNIFICAND_BITS = 2, 7  # of bfloat16, without the leading one
_BEYOND, _OF_POSITIONS = 1, 0.002
_TIMES_MEAN = 50


def near_tie(exact: bool) -> float:
    """Log p of two tokens of the target, closer than this, may be ordered otherwise."""
    return _FLOAT32_TIE if exact else _LOWER_PRECISION_TIE


def most_of_token(dtype: NumberFormat) -> float:
    """Log p of one token, under the same weights served in `dtype`, may differ by so much, in nats."""
    return _TIMES_MEAN * most_rounding(dtype)


def near_ties(margin: NDArray[np.float64], largest: NDArray[np.float64], exact: bool) -> NDArray[np.bool_]:
    """Whether the draft's two best logits may be ordered otherwise: by how far they are apart, and the largest logit's value."""
    if exact:
        return margin < _FLOAT32_TIE
    spacing = 2.0 ** (np.floor(np.log2(np.maximum(largest, 1e-9))) - _SIGNIFICAND_BITS)
    is_tie: NDArray[np.bool_] = margin <= _SPACINGS * spacing
    return is_tie


def is_exact(target: NumberFormat, draft: str, variant: Variant) -> bool:
    """Whether an engine computes the draft in float32: it does so in the target's number format or in the draft's own."""
    return target == draft == "float32" and variant == "unquantized"


def most_beyond(exact: bool, positions: int) -> float:
    """Choices of the examined draft beyond near-ties, or tokens beyond `most_of_token`, that arithmetic may explain, of so many
    positions."""
    return 0 if exact else _BEYOND + _OF_POSITIONS * positions
