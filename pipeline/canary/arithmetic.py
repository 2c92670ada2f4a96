"""What equal weights may differ by: near-ties of logits, and choices of the draft beyond them. Pure.

In float32, logits closer than 2e-5 may be ordered otherwise by another order of sums (docs/examination.md); nothing else differs.
In 16 bits or quantized, two batches differ by less than 0.25 nats at a token (`generation/served_log_p.py`). One choice in 500
may lie outside: an assumption, and not measured on a GPU.
"""

from pipeline.config.pair import NumberFormat
from pipeline.config.quantize import Variant

_FLOAT32_TIE, _LOWER_PRECISION_TIE = 2e-5, 0.25
_BEYOND, _OF_POSITIONS = 1, 0.002


def near_tie(exact: bool) -> float:
    """Logits, or log p, closer than this may be ordered otherwise."""
    return _FLOAT32_TIE if exact else _LOWER_PRECISION_TIE


def is_exact(target: NumberFormat, draft: str, variant: Variant) -> bool:
    """Whether an engine computes the draft in float32: it does so in the target's number format or in the draft's own."""
    return target == draft == "float32" and variant == "unquantized"


def most_beyond(exact: bool, positions: int) -> float:
    """Choices of the examined draft beyond near-ties that arithmetic may explain, of so many positions."""
    return 0 if exact else _BEYOND + _OF_POSITIONS * positions
