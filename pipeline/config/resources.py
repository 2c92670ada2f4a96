"""The keys of a config that set where a run works, and not what it makes: a run may go on with others."""

from collections.abc import Iterator, Mapping
from typing import Any

RESOURCES = (
    "device",
    "distill.processes",
    "distill.shard",
    "execution",
    "generate.server.endpoints",
    "pair.target.device_map",
    "plan",
)


def differing(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys in which two configs differ, as JSON values, apart from resources."""
    return [key for key in _differing(mine, other) if not any(f"{key}.".startswith(f"{known}.") for known in RESOURCES)]


def _differing(mine: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name in sorted({*mine, *other}):
        left, right, key = mine.get(name), other.get(name), f"{above}{name}"
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from _differing(left, right, f"{key}.")
        elif left != right:
            yield key
