"""Names of pairs: one for each target."""

import re

import pytest

from pipeline.planning.pair_name import pair_name

PLACES = (
    *(
        "/a/target",
        "/b/target",
        "/b/model",
        "/",
        "/models/größe",
        "/models/grsse",
        "/a/" + "x" * 300,
        "/b/" + "x" * 300,
    ),
    *("org/name", "other/name", "name", "org__name.v2", "größe", "grsse", "..", "a b", "ab"),
)


def test_no_two_targets_have_one_name() -> None:
    """Whatever their last words are; and each is a name that a config and a registry take."""
    names = [pair_name(place) for place in PLACES]
    assert len(PLACES) == len(set(names))
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) and name.strip(".") for name in names)


@pytest.mark.parametrize(
    ("place", "name"), [("Qwen/Qwen3-8B", "Qwen__Qwen3-8B"), ("big-model", "big-model"), ("~/x/../m", pair_name("~/m"))]
)
def test_names_that_are_their_own_stay(place: str, name: str) -> None:
    """A hub has each name once, and a served name was chosen; a path may be written in several ways."""
    assert name == pair_name(place)
    assert pair_name("/models/chat").startswith("chat-")
