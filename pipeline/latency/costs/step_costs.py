"""Costs of a decoding step, from either source: a profile of forward times, or costs fitted to a server under load."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.accuracy import StepAccuracy
from pipeline.latency.costs.cells import Cell
from pipeline.latency.costs.fitted import KIND, fitted_costs_from_json
from pipeline.latency.costs.profile import PARTS, Profile, profile_from_json
from pipeline.store.files import read_user_json

Floats = NDArray[np.float64]


class StepCosts(Protocol):
    """Interface of `Profile` and `FittedCosts`; documented in `Profile`. Times are in seconds."""

    @property
    def max_gamma(self) -> int: ...

    @property
    def plain(self) -> bool: ...

    @property
    def max_requests(self) -> int: ...

    @property
    def draft_digest(self) -> str | None: ...

    @property
    def draft_shape(self) -> str | None:
        """`models/step_shape.py`; None where it is not known."""
        ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def measured_requests(self) -> Mapping[int, tuple[int, int]]:
        """Fewest and most requests by measured draft length, where these differ from one to the other; empty if they cannot."""
        ...

    @property
    def load(self) -> int | None:
        """The (largest) number of requests, if each draft length was measured at one load: nothing is known of others. None for
        several."""
        ...

    @property
    def acceptance_known(self) -> bool:
        """False: the costs hold for the acceptance of their own measurements, which is unknown."""
        ...

    @property
    def cells(self) -> Sequence[Cell]:
        """What was measured at each load and draft length of a server; empty for forward times."""
        ...

    @property
    def accuracy(self) -> StepAccuracy:
        """Of steps inside what was measured."""
        ...

    def accuracy_at(self, gamma: int, batch: float) -> StepAccuracy:
        """Of a step of this draft length at this (mean) batch size, which may be at the edge of what was measured or beyond."""
        ...

    @property
    def edge_error(self) -> float | None:
        """The larger error of step times at the lightest and at the heaviest load, by the other loads; None if unknown, and for
        forward times, which are measured."""
        ...

    @property
    def max_throughput(self) -> tuple[float, float] | None:
        """The largest measured number of tokens per second, of plain decoding and of all; None if unknown."""
        ...

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats: ...

    def prefills(self, tokens: ArrayLike) -> Floats: ...

    @property
    def first_token(self) -> float:
        """Time to first token of a request that is alone, where that was measured; 0 if unknown."""
        ...

    @property
    def first_steps(self) -> int:
        """Steps of the batch that the first token takes: 1 where a prefill is part of a step (chunked prefill), so that a full
        batch delays the first token too; 0 where a prefill blocks the batch, and where TTFT is unknown."""
        ...

    def measured(self, gamma: int) -> bool:
        """Whether this draft length was measured; times of others are interpolated."""
        ...

    @property
    def tokens_by_gamma(self) -> Mapping[int, float]:
        """Tokens per step by draft length, as the server counted them; empty if unknown."""
        ...

    @property
    def tokens_error(self) -> float:
        """Mean absolute relative error of `tokens_by_gamma` on left-out measurements; 0 if there are none."""
        ...

    @property
    def output_tokens(self) -> float | None:
        """Mean output length of the measured requests, if known."""
        ...

    def covers(self, batch: int, gamma: int, context: int) -> bool:
        """Whether this point is within the measured range; outside it, times are extrapolated."""
        ...


def read_step_costs(path: Path, one_load: bool = False) -> StepCosts:
    """Read a profile or fitted costs. UsageError, naming the file and the problem, for anything else, and unless `one_load` for
    costs of a single load."""
    raw = _read(path)
    found = fitted_costs_from_json(raw, str(path)) if _kind(raw) == KIND else profile_from_json(raw, str(path))
    if found.load is not None and not one_load:
        raise UsageError(
            f"{path}: measured at one load only ({found.load} requests), so nothing is known of others and of latency by load; "
            "measure at least two (`latency schedule` gives the best draft length at this one)"
        )
    return found


def read_profile(path: Path) -> Profile:
    """Read a profile. UsageError, naming the file and the problem, for anything else."""
    return profile_from_json(_read(path), str(path))


def is_profile(path: Path) -> bool:
    """Whether the file is a JSON profile, judged by its keys. Results that follow each other are no document, and none."""
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        raw = _read(path)
    except UsageError:
        return False
    return isinstance(raw, Mapping) and set(PARTS) <= set(raw)


def _kind(raw: Any) -> Any:
    return raw.get("kind") if isinstance(raw, Mapping) else None


def _read(path: Path) -> Any:
    return read_user_json(path, "write a profile with `understudy profile` or costs with `understudy latency fit`")
