"""Names of latency quantiles: p99 is the quantile 0.99. Pure."""

import re

DEFAULT_QUANTILE = 0.95
LEAST_QUANTILE, MOST_QUANTILE = 0.5, 0.99  # in this range predictions are compared with simulations


def quantile_name(quantile: float) -> str:
    """`p99` for 0.99, `p97.5` for 0.975."""
    return f"p{100 * quantile:g}"


def quantile_of(name: str) -> float:
    """The quantile of a name such as `p99` or `p97.5`. ValueError, in words for users, for a name that is none from p50 to
    p99."""
    digits = re.fullmatch(r"p(\d{1,3}(?:\.\d{1,3})?)", name)
    quantile = float(f"{digits[1]}e-2") if digits else 0.0
    if not LEAST_QUANTILE <= quantile <= MOST_QUANTILE or quantile_name(quantile) != name:
        allowed = f"{quantile_name(LEAST_QUANTILE)} to {quantile_name(MOST_QUANTILE)}"
        raise ValueError(f"{name} is not a quantile from {allowed}; write it as in {{p95: 2.0, p99: 4.0}}")
    return quantile
