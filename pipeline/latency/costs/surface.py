"""A table of measured forward times over batch size, tokens per sequence and context, with interpolation. Pure.

A table, because real forward times are not linear: on a CPU in fp32 a pass over two rows takes four times as long as over
one, and GPU times jump at tile sizes. Interpolation is linear; beyond the last point it extrapolates linearly (see `covers`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import RegularGridInterpolator

from pipeline.errors import UsageError

Floats = NDArray[np.float64]
_AXES = ("batches", "tokens", "contexts")


@dataclass(frozen=True)
class Surface:
    """Seconds of one forward pass: `batches` sequences, `tokens` new tokens each, `contexts` tokens in each KV cache."""

    batches: tuple[int, ...]
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds_BTC: Floats

    def at(self, batch: ArrayLike, tokens: ArrayLike, context: ArrayLike) -> Floats:
        """Interpolated seconds; the arguments are broadcast."""
        wanted = np.stack(
            np.broadcast_arrays(*(np.asarray(values, dtype=np.float64) for values in (batch, tokens, context))), axis=-1
        )
        axes = (self.batches, self.tokens, self.contexts)
        several = [index for index, axis in enumerate(axes) if len(axis) > 1]
        values = self.seconds_BTC.reshape([len(axes[index]) for index in several])
        if not several:
            return np.broadcast_to(values, wanted.shape[:-1]).astype(np.float64)
        table = RegularGridInterpolator([axes[index] for index in several], values, bounds_error=False, fill_value=None)
        interpolated: Floats = table(wanted[..., several]).reshape(wanted.shape[:-1])
        # If noise makes the last segment fall, extrapolation could go below every measured time.
        seconds: Floats = np.maximum(interpolated, self.seconds_BTC.min())
        return seconds

    def covers(self, batch: int, tokens: int, context: int) -> bool:
        """Whether this point is within the measured range."""
        axes = (self.batches, self.tokens, self.contexts)
        return self.batches[0] <= batch and all(
            value <= axis[-1] for value, axis in zip((batch, tokens, context), axes, strict=True)
        )

    def json(self) -> dict[str, Any]:
        return {**{name: list(getattr(self, name)) for name in _AXES}, "seconds": self.seconds_BTC.tolist()}


def read_surface(raw: Any, where: str) -> Surface:
    """Inverse of `Surface.json`. UsageError, naming `where` and the problem, for any other content."""
    if not isinstance(raw, Mapping) or set(raw) != {*_AXES, "seconds"}:
        raise UsageError(
            f"{where}: a table of forward times needs {', '.join(_AXES)} and seconds; write it with `understudy profile`"
        )
    batches, tokens, contexts = axes = [_axis(raw[name], f"{where}: {name}") for name in _AXES]
    try:
        seconds_BTC = np.array(raw["seconds"], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{where}: seconds is not a table of numbers; write the file with `understudy profile`"
        ) from None
    shape = tuple(len(axis) for axis in axes)
    if seconds_BTC.shape != shape:
        raise UsageError(
            f"{where}: seconds has shape {seconds_BTC.shape}, but batches, tokens and contexts give {shape}; "
            "write the file with `understudy profile`"
        )
    if not (np.isfinite(seconds_BTC) & (seconds_BTC > 0)).all():
        raise UsageError(
            f"{where}: seconds must all be above 0, but the smallest is {seconds_BTC.min():g}; "
            "write the file with `understudy profile`"
        )
    return Surface(batches, tokens, contexts, seconds_BTC)


def _axis(raw: Any, where: str) -> tuple[int, ...]:
    rising = isinstance(raw, Sequence) and len(raw) and all(isinstance(value, int) for value in raw)
    if not rising or any(low >= high for low, high in pairwise(raw)) or raw[0] < 0:
        raise UsageError(f"{where}: {raw!r} must be increasing whole numbers; write the file with `understudy profile`")
    return tuple(raw)
