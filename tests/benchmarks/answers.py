"""What the answers on BENCHMARKS.md and the tables of docs/benchmarks/ share."""

from collections.abc import Mapping

Answer = tuple[str, str]  # what was found, and what it is compared with


def missed(sentence: str, missed: bool) -> str:
    return f" **Missed**: {sentence}" if missed else ""


def interval(found: Mapping[str, float], digits: int = 3) -> str:
    return f"{found['value']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def points(gain: Mapping[str, float], sign: int = 1, digits: int = 1) -> str:
    """A difference of rates in points; `sign` is -1 for that of the second over the first."""
    low, high = sorted(sign * 100 * gain[name] for name in ("low", "high"))
    return f"{sign * 100 * gain['value']:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
