"""Quantiles and their names."""

import pytest

from pipeline.config.quantiles import quantile_name, quantile_of


@pytest.mark.parametrize(
    ("name", "quantile"), [("p50", 0.5), ("p95", 0.95), ("p97.25", 0.9725), ("p99", 0.99), ("p98.125", 0.98125)]
)
def test_a_name_and_its_quantile(name: str, quantile: float) -> None:
    """Each is made from the other, without rounding errors."""
    assert (quantile, name) == (quantile_of(name), quantile_name(quantile))


@pytest.mark.parametrize(
    "name", ["", "95", "p", "p0.95", "p49.9", "p99.1", "p99.9", "p100", "p95.0", "p095", "P95", "p95 ", "pnan"]
)
def test_other_names_are_refused(name: str) -> None:
    """In one line that shows how to write it."""
    with pytest.raises(
        ValueError, match=r"^.*is not a quantile from p50 to p99; write it as in \{p95: 2.0, p99: 4.0\}$"
    ):
        quantile_of(name)
