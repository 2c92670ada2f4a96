"""Costs of a decoding step, from either source: a profile of forward times, or costs fitted to a server under load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.latency.costs.fitted import KIND, FittedCosts, fitted_costs_from_json
from pipeline.latency.costs.profile import PARTS, Profile, profile_from_json
from pipeline.store.files import read_user_json

StepCosts = Profile | FittedCosts
"""Times are in seconds; documented in `Profile`."""


def read_step_costs(path: Path, one_load: bool = False) -> StepCosts:
    """Read a profile or fitted costs. UsageError, naming the file and the problem, for anything else, and unless `one_load` for
    costs of a single load."""
    raw = _read(path)
    costs = fitted_costs_from_json(raw, str(path)) if _kind(raw) == KIND else profile_from_json(raw, str(path))
    if costs.load is not None and not one_load:
        raise UsageError(
            f"{path}: measured at one load only ({costs.load} requests), so nothing is known of others and of latency by load; "
            "measure at least two (`latency schedule` gives the best draft length at this one)"
        )
    return costs


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
