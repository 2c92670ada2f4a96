"""`understudy profile` on the smoke pair: a file, a table, and one line for what cannot be measured."""

from pathlib import Path

import pytest

from pipeline.latency.costs.step_costs import read_profile
from tests.integration.conftest import Ended, Smoke

SMALL = ("--batches", "4,1", "--max-gamma", 2, "--contexts", 8, "--prompts", "4,12")


def _profile(smoke: Smoke, *more: object) -> Ended:
    place = smoke.place
    return place.understudy(
        "profile", "--target", place.artifact("pair"), "--draft", place.artifact("distill"), *SMALL, *more, store=False
    )


def test_the_pair_is_measured_and_written(smoke: Smoke, tmp_path: Path) -> None:
    """Every point asked for, in order; what it holds for is in the file, and the table names the machine."""
    ended = _profile(smoke, "--out", tmp_path / "profile.json")
    found = read_profile(tmp_path / "profile.json")

    assert 0 == ended.code
    assert ((1, 4), (1, 2, 3), (8,)) == (found.target.batches, found.target.tokens, found.target.contexts)
    assert (4, 12) == found.prefill.tokens
    assert found.about["target"] != found.about["draft"]
    for expected in (found.about["device"], "draft / target", f"written to {tmp_path / 'profile.json'}"):
        assert expected in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batches", "1,many"), "--batches 1,many: give whole numbers above 0, with commas, such as 1,4,16"),
        (("--contexts", "0"), "--contexts 0: give whole numbers above 0"),
        (("--contexts", "100000"), "--contexts, --prompts: 100003 tokens are needed, and the pair's context is"),
        (("--out", "nowhere/profile.json"), "--out nowhere/profile.json: no such directory as nowhere"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: tuple[str, ...], message: str, smoke: Smoke) -> None:
    """Exit 2, before anything is timed."""
    ended = _profile(smoke, *arguments)

    assert 2 == ended.code
    assert message in ended.err
    assert 1 == len(ended.err.strip().splitlines())
