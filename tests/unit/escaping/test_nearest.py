"""What a mistyped name may mean."""

import pytest

from pipeline.escaping.nearest import did_you_mean

KNOWN = ("generate", "gate", "20261126T2130-aa", "20261126T2140-bb", "20261126T2150-cc", "20261126T2159-dd")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("gaet", "; did you mean gate?"),
        ("gen", "; did you mean generate?"),
        ("20261126T213", "; did you mean 20261126T2130-aa?"),
        ("20261126", "; did you mean 20261126T2130-aa, 20261126T2140-bb, 20261126T2150-cc, ... (4)?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_a_prefix_or_the_nearest(typed: str, hint: str) -> None:
    """Prefixes first, all of them up to three; nothing where nothing is near."""
    assert hint == did_you_mean(typed, KNOWN)
