"""Whether figures of a file can belong together: a file that was edited by hand may have the right types and contradict itself.
Pure."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from pipeline.acceptance.schema import AcceptanceProfile, Figure

if TYPE_CHECKING:  # reports import this module without numpy
    from pipeline.acceptance.count_table import CountTable

_ROUNDING = 1e-6
_SHARES = ("acceptance_rate", "acceptance_rate_without_loops", "loop_share", "per_position_acceptance")


def check_examination(profile: AcceptanceProfile, counts: "CountTable") -> None:
    """ValueError naming the first contradiction between figures, or between figures and rows."""
    if (profile.broken is None) == (profile.headline is None):
        raise ValueError("either `broken` says why there are no figures, or `headline` has them")
    check_figures(profile)
    if len(set(counts.ids)) < len(counts):
        raise ValueError("a prompt has two rows")
    headline = profile.headline
    if headline is None:
        return
    sums = {"prompts": len(counts), "tokens": int(counts.columns["tokens"].sum())}
    for name, total in sums.items():
        if getattr(headline, name) != total:
            raise ValueError(f"headline.{name} is {getattr(headline, name):,}, and the rows have {total:,}")
    accepted, examined = (float(counts.columns[name].sum()) for name in ("accepted", "examined"))
    rate = accepted / examined if examined else 0.0
    if abs(rate - headline.acceptance_rate.value) > _ROUNDING:
        raise ValueError(
            f"headline.acceptance_rate is {headline.acceptance_rate.value:.6g}, and the rows give {rate:.6g}"
        )


def check_figures(figures: Any) -> None:
    """ValueError naming the first figure in a dataclass that no examination gives: a share outside 0 to 1, bounds in the wrong
    order, a figure without prompts."""
    for place, value in _figures(figures, ""):
        name = place.rpartition(".")[2]
        if isinstance(value, Figure):
            if value.low is not None and value.high is not None and value.low > value.high:
                raise ValueError(f"{place}: the lower bound {value.low:g} is above the upper bound {value.high:g}")
            value = value.value
        shares = value if isinstance(value, list) else [value]
        if name in _SHARES and "gains" not in place.split("."):
            for share in shares:
                if isinstance(share, int | float) and not -_ROUNDING <= share <= 1 + _ROUNDING:
                    raise ValueError(f"{place} is {share:g}; a share is from 0 to 1")


def _figures(value_or_section: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every value with a name, with its place."""
    if is_dataclass(value_or_section) and not isinstance(value_or_section, Figure):
        inner = [(item.name, getattr(value_or_section, item.name)) for item in fields(value_or_section)]
    elif isinstance(value_or_section, dict):
        inner = [(str(name), value) for name, value in value_or_section.items()]
    elif isinstance(value_or_section, list) and value_or_section and is_dataclass(value_or_section[0]):
        inner = [(str(number), value) for number, value in enumerate(value_or_section)]
    else:
        yield place, value_or_section
        return
    for name, value in inner:
        yield from _figures(value, f"{place}.{name}" if place else name)
