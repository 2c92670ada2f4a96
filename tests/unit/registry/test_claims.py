"""How long a claim counts, by its holder."""

import pytest

from pipeline.registry import claims
from pipeline.registry.claims import STALE_SECONDS, Claim


@pytest.mark.parametrize(
    ("wall", "passed", "expected"),
    [(0, 0, False), (-3600, 10, False), (-3600, STALE_SECONDS, True), (3600, 10, True)],
    ids=["young", "clock set back", "clock set back, stopped for long", "clock set forward: others may take it over"],
)
def test_a_claim_expires_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, wall: float, passed: float, expected: bool
) -> None:
    """Such as that of a process that was stopped: it must not move an alias that another one has moved in the meantime."""
    claim = Claim("draft", 1, 1, taken_at=1e9, ticks=100.0)
    monkeypatch.setattr("pipeline.registry.claims.time.time", lambda: 1e9 + wall)
    monkeypatch.setattr(claims, "_ticks", lambda: 100.0 + passed)
    assert expected is claim.expired
