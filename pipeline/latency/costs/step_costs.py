"""What steps of a server take, wherever it is known from: forward times measured alone, or a server measured under load."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.latency.costs.fitted import KIND, fitted_costs_from_json
from pipeline.latency.costs.profile import PARTS, Profile, profile_from_json
from pipeline.store.files import read_user_json

Floats = NDArray[np.float64]


class StepCosts(Protocol):
    """Seconds; as `Profile` says in full."""

    @property
    def max_gamma(self) -> int: ...

    @property
    def plain(self) -> bool: ...

    @property
    def max_requests(self) -> int: ...

    @property
    def draft_digest(self) -> str | None: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats: ...

    def prefills(self, tokens: ArrayLike) -> Floats: ...

    def covers(self, batch: int, gamma: int, context: int) -> bool:
        """Whether that was measured, and is no extrapolation."""
        ...


def read_step_costs(path: Path) -> StepCosts:
    """A profile or fitted costs. UsageError, naming the file and what is wrong with it, where it is neither."""
    raw = _read(path)
    return fitted_costs_from_json(raw, str(path)) if _kind(raw) == KIND else profile_from_json(raw, str(path))


def read_profile(path: Path) -> Profile:
    """UsageError, naming the file and what is wrong with it, where it is none."""
    return profile_from_json(_read(path), str(path))


def is_profile(path: Path) -> bool:
    """By what it says, where it is JSON."""
    if path.suffix != ".json" or not path.is_file():
        return False
    return set(PARTS) <= set(raw) if isinstance(raw := _read(path), Mapping) else False


def _kind(raw: Any) -> Any:
    return raw.get("kind") if isinstance(raw, Mapping) else None


def _read(path: Path) -> Any:
    return read_user_json(path, "write a profile by `understudy profile` or costs by `understudy latency fit`")
