"""`understudy compare`: drafts named in every way, paired on the completions of the smoke run."""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import RUN, Place, Smoke


def _figures(place: Place, one: object, other: object, *more: object) -> dict[str, dict[str, float]]:
    ended = place.understudy("compare", one, other, "--json", *more)
    assert 0 == ended.code, ended.err
    found = json.loads(ended.out)
    return {
        "a": found["drafts"]["baseline"]["acceptance_rate"],
        "b": found["drafts"]["candidate"]["acceptance_rate"],
        "gain": found["gains"]["acceptance_rate"],
    }


def test_a_run_and_the_base_draft(smoke: Smoke) -> None:
    """The difference is that of the run's own decision, with the sign turned."""
    decision = json.loads((smoke.place.artifact("gate") / "decision.json").read_text())
    found = _figures(smoke.place, RUN, smoke.place.artifact("pair") / "draft")
    gain = decision["gains"]["acceptance_rate"]
    assert pytest.approx(-gain["value"]) == found["gain"]["value"]
    assert pytest.approx(-gain["high"]) == found["gain"]["low"]
    assert decision["drafts"]["candidate"]["acceptance_rate"] == found["a"]


def test_every_name_of_one_draft(smoke: Smoke, tmp_path: Path) -> None:
    """A run, its registered version by alias and number, its artifact and a baseline of it: no difference at all."""
    place, draft, baseline = smoke.place, smoke.place.artifact("distill"), tmp_path / "baseline.json"
    place.understudy("check", RUN, "--draft", draft, "--baseline", baseline, "--update-baseline")
    for name in ("reference-draft", "reference-draft@champion", "reference-draft@1", draft, baseline, "latest"):
        gain = _figures(place, RUN, name)["gain"]
        assert (0.0, 0.0, 0.0) == (gain["value"], gain["low"], gain["high"]), name


def test_the_table_and_one_domain(smoke: Smoke) -> None:
    """Every domain has a row; with --domain the prompts of one are compared."""
    base = smoke.place.artifact("pair") / "draft"
    ended = smoke.place.understudy("compare", base, RUN)
    whole = _figures(smoke.place, base, RUN)["gain"]["prompts"]
    one = _figures(smoke.place, base, RUN, "--domain", "tests")["gain"]["prompts"]
    assert (0, "") == (ended.code, ended.err)
    assert "acceptance rate, modules" in ended.out
    assert "[95% intervals]" in ended.out
    assert f"B: {RUN}" in ended.out
    assert 0 < one < whole


@pytest.mark.parametrize(
    ("operands", "complaint"),
    [
        (("nobody", RUN), "nobody: no run and no registered draft of"),
        ((RUN, "reference-draft@9"), "reference-draft@9: no such version or alias"),
        ((RUN, RUN, "--domain", "poems"), "--domain poems: no prompt of it; there are modules, tests"),
        ((".", "."), "not a model directory"),
    ],
)
def test_what_is_no_draft(smoke: Smoke, operands: tuple[str, ...], complaint: str) -> None:
    """One line that says what to give, and exit 2."""
    ended = smoke.place.understudy("compare", *operands)
    assert 2 == ended.code
    assert complaint in ended.complaint


def test_drafts_that_no_run_examined_need_completions(smoke: Smoke) -> None:
    """One line that says where they are."""
    base = smoke.place.artifact("pair") / "draft"
    ended = smoke.place.understudy("compare", base, base)
    assert 2 == ended.code
    assert "no completions to compare on" in ended.complaint
