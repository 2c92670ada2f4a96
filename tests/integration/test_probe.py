"""`understudy probe` on the smoke pair: figures, verdicts, and one line for what cannot be probed."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.drafts.directory import TrainedOn
from pipeline.generation.completion_files import text_ids
from tests.integration.conftest import Ended, Smoke, replace_bytes

WITHOUT_MODEL = ("prompt-lookup", "suffix-matching")


def _probe(smoke: Smoke, *more: object) -> Ended:
    place = smoke.place
    target, drafts = place.artifact("pair"), (place.artifact("distill"), place.artifact("pair") / "draft")
    named = [part for draft in drafts for part in ("--draft", draft)]
    return place.understudy("probe", "--target", target, *named, "--max-new-tokens", 16, *more, store=False)


@pytest.fixture(scope="module")
def found(smoke: Smoke) -> dict[str, dict[str, Any]]:
    """What stored completions say of the candidate, the base draft and drafts without a model, at a stated cost ratio."""
    ended = _probe(smoke, "--completions", smoke.place.artifact("generate"), "--cost-ratio", 0.1, "--json")
    assert (0, "") == (ended.code, ended.err)
    return {finding["name"]: finding for finding in json.loads(ended.out)["findings"]}


def test_figures_are_those_of_the_run(smoke: Smoke, found: dict[str, dict[str, Any]]) -> None:
    """On the completions of a run, every draft's acceptance is what its examination said."""
    stored = {
        "draft": json.loads((smoke.place.artifact("evaluate/base") / "acceptance.json").read_text()),
        smoke.place.artifact("distill").name: json.loads(
            (smoke.place.artifact("evaluate/candidate") / "acceptance.json").read_text()
        ),
        "prompt-lookup": json.loads((smoke.place.artifact("evaluate/prompt-lookup") / "acceptance.json").read_text()),
    }

    assert {*stored, "suffix-matching"} == set(found)  # which no run examines
    for name, profile in stored.items():
        expected = profile["headline"]["tokens_per_target_call"]["5"]["value"]
        assert pytest.approx(expected, rel=1e-9) == found[name]["figures"]["tokens_per_target_call"]["5"]["value"]


def test_speed_follows_from_the_cost_ratio(found: dict[str, dict[str, Any]]) -> None:
    """What a round yields over (gamma c + 1), and no other draft length is better; looking up costs nothing."""
    for name, finding in found.items():
        cost = 0.0 if name in WITHOUT_MODEL else 0.1
        yields = {int(g): value for g, value in finding["figures"]["mean_acceptance_length"].items()}
        speeds = {g: value / (g * cost + 1) for g, value in yields.items() if g in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)}

        assert pytest.approx(max(speeds.values())) == finding["speedup"]["value"]
        assert pytest.approx(speeds[finding["gamma"]]) == finding["speedup"]["value"]


def test_arithmetic_is_what_a_round_multiplies(found: dict[str, dict[str, Any]]) -> None:
    """The target's gamma + 1 tokens over what they yield, and the draft's passes on top; looking up multiplies nothing."""
    for name, finding in found.items():
        verified = (finding["gamma"] + 1) / finding["figures"]["mean_acceptance_length"][str(finding["gamma"])]
        if name in WITHOUT_MODEL:
            assert pytest.approx(verified) == finding["arithmetic"]
        else:
            assert verified < finding["arithmetic"] < 2 * verified


def test_verdicts_are_plain(smoke: Smoke) -> None:
    """A table, acceptance by domain and position, and a sentence for each draft; a slow draft gives no speedup."""
    ended = _probe(smoke, "--completions", smoke.place.artifact("generate"), "--cost-ratio", 5)

    assert (0, "") == (ended.code, ended.err)
    assert (
        f"{smoke.place.artifact('distill').name}: is not faster than plain decoding: the predicted speedup, an upper bound, is "
        in ended.out
    )
    bounds = r"upper bound, is \d\.\d\d \[\d\.\d\d, \d\.\d\d\] at its best draft length"
    assert re.search(bounds, ended.out)  # "at most" the estimate would be less than its upper bound
    assert "draft sampling: probabilistic; convention for target calls: user; 95% intervals" in ended.out
    assert "as given, verification cost ignored" in ended.out
    assert "by domain: modules 0." in ended.out
    assert "by position in the output: 0-15: 0." in ended.out


def test_prompts_are_completed_and_times_measured(smoke: Smoke) -> None:
    """From a prompt file: the target speaks, costs are measured here, and too few prompts are inconclusive."""
    ended = _probe(
        smoke, "--prompts", smoke.place.artifact("pair") / "prompts.jsonl", "--no-chat", "--count", 12, "--json"
    )
    assert 0 == ended.code, ended.err
    found = json.loads(ended.out)
    finding = found["findings"][0]

    assert (12, 12, {}) == (found["examined"], found["stored"], found["broken"])
    assert re.fullmatch(r"\d+ prompts left out: a draft was trained on them", found["notes"][-1])
    assert (12, None) == (finding["figures"]["prompts"], finding["pays"])
    assert "12 prompts are too few for a verdict; give at least 40" in finding["verdict"]
    assert finding["cost_ratio"] > 0
    assert (finding["speedup"] is None) == (finding["not_measurable"] is not None)  # the machine may be busy
    low, value, high = (
        (finding["speedup"] or {"low": 0, "value": 1, "high": 2})[name] for name in ("low", "value", "high")
    )
    assert low < value < high


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "give either --prompts, which the target completes, or --completions, a generate artifact"),
        (("--prompts", "none.jsonl"), "--prompts none.jsonl: no such file or directory"),
        (("--completions", "none"), "--completions none: no such directory; `understudy show` prints that of a run"),
        (
            ("--completions", "."),
            "--completions .: not a generate artifact with examination completions; `understudy show` prints one",
        ),
        (("--prompts", "p.txt"), "--prompts p.txt: no such file or directory"),
    ],
    ids=str,
)
def test_bad_usage_is_one_line(smoke: Smoke, options: tuple[object, ...], complaint: str) -> None:
    """Nothing to examine exits 2 and says what to give."""
    ended = _probe(smoke, *options)

    assert (2, complaint) == (ended.code, ended.complaint)


def test_other_settings_than_stored_are_named(smoke: Smoke) -> None:
    """Completions at another temperature cannot speak for this one; the line says what there is."""
    ended = _probe(smoke, "--completions", smoke.place.artifact("generate"), "--temperature", 0.3)

    assert 2 == ended.code
    assert "set --temperature and the filters" in ended.complaint


def test_prompts_longer_than_the_context_are_one_line(smoke: Smoke, tmp_path: Path) -> None:
    """Where no prompt fits, the line says how many tokens would."""
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "word " * 500}) + "\n")
    ended = _probe(smoke, "--prompts", tmp_path / "long.jsonl", "--no-chat")

    assert 2 == ended.code
    assert "no prompt to complete; 1 prompts left out: no token, or more than 112" in ended.complaint


def test_a_part_of_the_completions_is_a_fair_part(smoke: Smoke, found: dict[str, dict[str, Any]]) -> None:
    """`--count` takes prompts whatever their place in the store, which is sorted by length, and says of how many."""
    ended = _probe(
        smoke, "--completions", smoke.place.artifact("generate"), "--cost-ratio", 0.1, "--count", 40, "--temperature", 0
    )
    stored = found["draft"]["figures"]["prompts"]

    assert (0, "") == (ended.code, ended.err)
    assert f"40 of {stored} prompts, " in ended.out
    assert "At temperature 0 repetition raises acceptance: read the rate without repetition." in ended.out


def test_a_broken_draft_leaves_the_others_their_figures(smoke: Smoke, tmp_path: Path) -> None:
    """NaN weights: the reason is named, and the other draft is examined."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "nan")
    replace_bytes(tmp_path / "nan" / "model.safetensors", lambda data: data[:-4096] + b"\xff" * 4096)
    completions = ("--completions", smoke.place.artifact("generate"), "--cost-ratio", 0.1)
    ended = _probe(smoke, "--draft", tmp_path / "nan", *completions)

    assert (0, "") == (ended.code, ended.err)
    assert "nan: cannot be examined: the draft returned NaN logits" in ended.out
    assert all(f"{name}: " in ended.out for name in WITHOUT_MODEL)


def test_completions_of_another_target_are_refused(smoke: Smoke) -> None:
    """What the target said before its move is no measure of a draft now; no model is loaded to find that out."""
    before = smoke.place.artifact("generate/before")
    ended = _probe(smoke, "--completions", before)

    assert 2 == ended.code
    assert f"--completions {before}: completions of another target than --target" in ended.complaint


def test_prompts_that_a_draft_learnt_are_left_out(
    smoke: Smoke, found: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Of stored completions those stay that no draft learnt from; where none stays, one line says so."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "seen")
    profile = json.loads((smoke.place.artifact("evaluate/base") / "acceptance.json").read_text())
    examined = [entry["id"] for entry in profile["prompts"]["deployed"]]
    stored = found["draft"]["figures"]["prompts"]
    completions = ("--draft", tmp_path / "seen", "--completions", smoke.place.artifact("generate"), "--cost-ratio", 0.1)

    texts = text_ids(smoke.place.artifact("generate"), {"examination"})
    TrainedOn(frozenset(examined[:2]), frozenset(texts[name] for name in examined[2:5])).write(tmp_path / "seen")
    some = _probe(smoke, *completions)
    TrainedOn(frozenset(), texts=frozenset(texts.values())).write(tmp_path / "seen")
    every = _probe(smoke, *completions)

    assert 0 == some.code, some.err
    assert f"{stored - 5:,} (5 more were left out because a draft was trained on them) prompts, " in some.out
    assert (2, "a draft was trained on every one of these prompts; use other prompts") == (every.code, every.complaint)
