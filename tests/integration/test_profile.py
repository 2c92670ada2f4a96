"""`understudy profile` on the smoke pair: a file, a table, and one line for what cannot be measured."""

import json
from pathlib import Path

import pytest

from pipeline.latency.costs.step_costs import read_profile
from tests.integration.conftest import Ended, Smoke

SMALL = ("--batch-sizes", "4,1", "--max-gamma", 2, "--context-lengths", 8, "--prompt-lengths", "4,12")


def _profile(smoke: Smoke, *more: object) -> Ended:
    place = smoke.place
    return place.understudy(
        "profile", "--target", place.artifact("pair"), "--draft", place.artifact("distill"), *SMALL, *more, store=False
    )


def test_the_pair_is_measured_and_written(smoke: Smoke, tmp_path: Path) -> None:
    """Every requested point, sorted; the file records the environment, and the screen names the device."""
    ended = _profile(smoke, "--out", tmp_path / "profile.json")
    found = read_profile(tmp_path / "profile.json")

    assert 0 == ended.code
    assert ((1, 4), (1, 2, 3), (8,)) == (found.target.batches, found.target.tokens, found.target.contexts)
    assert (4, 12) == found.prefill.tokens
    assert found.about["target"] != found.about["draft"]
    for expected in (found.about["device"], "draft / target", f"written to {tmp_path / 'profile.json'}"):
        assert expected in ended.out


def test_the_default_lengths_fit_the_pair(smoke: Smoke, tmp_path: Path) -> None:
    """The smoke pair's context is shorter than the lengths that larger models are measured at; the block of a draft token
    and the one after it fits behind the longest."""
    place, out = smoke.place, tmp_path / "profile.json"
    options = ("--batch-sizes", 1, "--max-gamma", 1, "--out", out)
    ended = place.understudy(
        "profile", "--target", place.artifact("pair"), "--draft", place.artifact("distill"), *options, store=False
    )
    found = read_profile(out)

    assert 0 == ended.code, ended.err
    context = json.loads((place.artifact("pair") / "pair.json").read_text())["context"]
    assert context - 2 == max(found.prefill.tokens) == max(found.target.contexts) < 512


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--batch-sizes", "1,many"),
            "--batch-sizes 1,many: give whole numbers above 0, separated by commas, such as 1,4,16",
        ),
        (("--context-lengths", "0"), "--context-lengths 0: give whole numbers above 0"),
        (
            ("--context-lengths", "100000"),
            "--prompt-lengths, --max-gamma: 100003 tokens are needed, and the pair's context is",
        ),
        (("--out", "nowhere/profile.json"), "--out nowhere/profile.json: nowhere is not a directory; make it first"),
        (("--out", "."), "--out .: is a directory; name a file"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: tuple[str, ...], message: str, smoke: Smoke) -> None:
    """Exit 2, before anything is timed."""
    ended = _profile(smoke, *arguments)

    assert 2 == ended.code
    assert message in ended.err
    assert 1 == len(ended.err.strip().splitlines())
