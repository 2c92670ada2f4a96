"""`understudy latency`: fit, predict, schedule and explain, through the real command."""

import csv
import json
from pathlib import Path

import pytest

from tests.integration.conftest import Ended, Smoke


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A table as people publish them, of a server whose draft tokens grow dear with company."""
    path = tmp_path / "sweep.csv"
    with path.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["users", "k", "mean_acceptance_length", "tpot_p50_ms", "ttft_p50_ms"])
        for users in (1, 4, 16, 32):
            for gamma, length in ((0, 1.0), (2, 2.2), (4, 2.8)):
                step = 20 + 2 * gamma + users * (0.5 + 0.6 * gamma)
                rows.writerow([users, gamma, length, step / length, 30])
    return path


def _latency(smoke: Smoke, *arguments: object) -> Ended:
    return smoke.place.understudy("latency", *arguments, store=False)


def _fitted(smoke: Smoke, sweep: Path) -> Path:
    out = sweep.with_name("costs.json")
    assert 0 == _latency(smoke, "fit", sweep, "--column", "requests=users", "--out", out).code
    return out


def test_a_table_is_fitted(smoke: Smoke, sweep: Path) -> None:
    """Its costs with intervals, and what cannot be known from it; none of it loads torch."""
    ended, code, imported = smoke.place.spied("latency", "fit", sweep, "--column", "requests=users", store=False)

    assert (0, []) == (code, imported)
    for expected in (
        "verify",
        "draft_each",
        "12 measurements; the line is 0.0% off",
        "leave the wait for a first token out",
    ):
        assert expected in ended.out


def test_loads_are_predicted_from_an_examination(smoke: Smoke, sweep: Path, tmp_path: Path) -> None:
    """With speculation and without, simulated too, and drawn; a load that is too much has no latency."""
    costs = _fitted(smoke, sweep)
    examined = smoke.place.artifact("evaluate/candidate")
    asked = ("--times", costs, "--acceptance", examined, "--batch-cap", 16)
    ended = _latency(smoke, "predict", *asked, "--simulate", 300, "--plot", tmp_path / "load.png")
    figures = json.loads(_latency(smoke, "predict", *asked, "--rate", "0.5,100000", "--json").out)

    assert 0 == ended.code
    assert "stable up to" in ended.out
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
    low, high = figures["points"]
    assert low["plain"]["mean"] < low["plain"]["p95"]
    assert (None, None) == (high["plain"], high["drafted"])
    assert 16 == len(figures["draft_lengths"])


def test_a_schedule_is_written_for_engines(smoke: Smoke, sweep: Path, tmp_path: Path) -> None:
    """Longer drafts alone than in company, and none where they lose; the engine's own keys alone where one is named."""
    costs = _fitted(smoke, sweep)
    asked = ("--times", costs, "--acceptance-rate", 0.45, "--tokens", 100)
    ended = _latency(smoke, "schedule", *asked, "--plot", tmp_path / "lengths.png")
    vllm = json.loads(_latency(smoke, "schedule", *asked, "--engine", "vllm").out)
    stretches = vllm["num_speculative_tokens_per_batch_size"]

    assert 0 == ended.code
    assert "break-even: speculation pays up to" in ended.out
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert (1, 32, 0) == (stretches[0][0], stretches[-1][1], stretches[-1][2])
    assert vllm["num_speculative_tokens"] == stretches[0][2] > 0


def test_several_drafts_are_held_against_each_other(smoke: Smoke, sweep: Path) -> None:
    """The better one of two on the same machine wins everywhere that anything pays."""
    costs = _fitted(smoke, sweep)
    other = costs.with_name("other.json")
    other.write_text(costs.read_text())
    examined = smoke.place.artifact("evaluate/candidate")
    stock = smoke.place.artifact("evaluate/stock-before")
    arguments = ("--times", costs, "--times", other, "--acceptance", examined, "--acceptance", stock, "--json")
    found = json.loads(_latency(smoke, "schedule", *arguments).out)

    assert 32 == len(found["draft"]) == len(found["draft_length"])
    assert 1 == len(set(found["draft"]) - {None})
    assert "vllm" not in found


def test_each_draft_may_have_its_rate(smoke: Smoke, sweep: Path) -> None:
    """One for each, or one for all; an engine is told nothing where none pays."""
    costs = _fitted(smoke, sweep)
    other = costs.with_name("other.json")
    other.write_text(costs.read_text())
    both = ("schedule", "--times", costs, "--times", other, "--tokens", 100)
    ended = _latency(smoke, *both, "--acceptance-rate", 0.3, "--acceptance-rate", 0.8, "--json")
    none = _latency(smoke, "schedule", "--times", costs, "--tokens", 100, "--acceptance-rate", 0.01, "--engine", "vllm")

    assert "other" == json.loads(ended.out)["draft"][0]
    assert (3, "") == (none.code, none.out)
    assert "speculation does not pay here at any number of requests up to 32; configure none" in none.complaint


def test_show_says_what_latency_is_given(smoke: Smoke) -> None:
    """The candidate's examination, and the one of prompt-lookup is refused."""
    shown = smoke.place.understudy("show").out
    lookup = smoke.place.artifact("evaluate/prompt-lookup")

    assert f"for latency: --acceptance {smoke.place.artifact('evaluate/candidate')}" in shown
    ended = _latency(smoke, "predict", "--times", lookup / "acceptance.json", "--acceptance", lookup)
    assert 2 == ended.code


def test_a_profile_is_fitted_and_predicts(smoke: Smoke, tmp_path: Path) -> None:
    """What `understudy profile` wrote goes in as it is."""
    profile = tmp_path / "profile.json"
    place = smoke.place
    pair = ("--target", place.artifact("pair"), "--draft", place.artifact("distill"))
    small = ("--batches", "1,2,4", "--max-gamma", 2, "--contexts", 8, "--prompts", "4,12", "--out", profile)
    assert 0 == place.understudy("profile", *pair, *small, store=False).code

    fitted = _latency(smoke, "fit", profile).out
    assert ("9 measurements" in fitted, "A prompt holds everybody up for" in fitted) == (True, True)
    ended = _latency(smoke, "predict", "--times", profile, "--acceptance-rate", 0.5, "--tokens", 20, "--batch-cap", 4)
    assert (0, True) == (
        ended.code,
        "note: 4 requests at once with 138 tokens each lie past what was measured" in ended.out,
    )


def test_the_textbook_example_is_explained(smoke: Smoke) -> None:
    """The well-known figure, the exact one, and what lies between."""
    ended = _latency(smoke, "explain")

    assert 0 == ended.code
    for expected in (
        "2.94 times as fast",
        "2.17 times as fast",
        "36% too much",
        "the acceptance rate is 0.93 then",
        "from 0.14 on",
    ):
        assert expected in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "gone.csv"), "gone.csv: No such file or directory"),
        (("fit", "{sweep}"), "line 2: nothing says how many requests are served at once"),
        (("fit", "{sweep}", "--column", "requests"), "--column: 'requests' should be NAME=VALUE"),
        (("fit", "{sweep}:requests=4"), "are of one load: what a further request adds cannot be known"),
        (("schedule", "--times", "a", "--times", "b", "--engine", "vllm"), "--engine: an engine serves one draft"),
        (("fit", "{sweep}", "--column", "requests=users", "--out", "/"), "--out /: give a file"),
        (("fit", "{sweep}:requests=many"), "what is written behind a file are numbers"),
        (("fit", "{sweep}", "--experts", "9/8"), "--experts 9/8: give how many of how many, such as 8/64"),
        (("predict", "--times", "{sweep}", "--acceptance-rate", 0.5), "--acceptance-rate and --tokens go together"),
        (
            ("schedule", "--times", "a", "--times", "b", "--acceptance", "c"),
            "2 --times, 1 --acceptance, 2 --acceptance-rate",
        ),
        (("predict", "--times", "{sweep}"), "give either --acceptance, an examination, or --acceptance-rate, a number"),
        (
            ("predict", "--times", "{sweep}", "--acceptance-rate", 0.5, "--tokens", 9),
            "this is no JSON; write a profile by",
        ),
        (("predict", "--times", "{sweep}", "--rate", "0"), "--rate 0: give numbers above 0"),
        (("schedule", "--times", "{sweep}", "--plot", "x.pdf"), "--plot x.pdf: give a .png file"),
        (("explain", "--verify-ms", 10), "--verify-ms 10: more tokens take no less time than one does"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    arguments: tuple[object, ...], message: str, smoke: Smoke, sweep: Path
) -> None:
    """No traceback, nothing printed beside it."""
    ended = _latency(smoke, *(str(one).replace("{sweep}", str(sweep)) for one in arguments))

    assert ended.code in (1, 2)
    assert message in ended.complaint
    assert "" == ended.out
