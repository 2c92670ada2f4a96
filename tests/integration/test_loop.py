"""The loop from the command line: the first run, its repetition, and runs that begin late."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.drafts.directory import trained_on, trained_on_before
from pipeline.drafts.plain import PlainDraft
from pipeline.examination.examiner import Examiner
from pipeline.generation.completion_files import text_ids
from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.models.devices import choose_device
from pipeline.models.loading import load_model
from pipeline.models.places import model_places
from pipeline.models.stored_pair import read_pair
from pipeline.speculation.settings import Sampling
from tests.integration.conftest import HEAVY, JOBS, JOBS_WITH_CHAMPION, NOBODY, RUN, SMOKE, Place, Smoke
from tests.unit.test_glossary import unexplained

BEFORE_DISTILL = {
    "pair": "skipped",
    "corpus": "skipped",
    "generate": "skipped",
    "generate/before": "skipped",
    "evaluate/base-before": "skipped",
    "evaluate/base": "skipped",
    "evaluate/prompt-lookup": "skipped",
}
ROWS = {
    "base draft, old target": "base-before",
    "base draft, new target": "base",
    "candidate": "candidate",
    "candidate, int8": "int8",
    "candidate, int4": "int4",
    "prompt-lookup": "prompt-lookup",
}
GIVEN = {"--target": "pair", "--completions": "generate", "--draft": "distill"}
HARMLESS = ("run", "stage", "show", "check", "champion", "store", "init", "doctor")


def _cells(text: str) -> dict[str, list[str]]:
    """The rows of the table of drafts by their name."""
    rows = [[cell.strip() for cell in line.strip(" │").split("│")] for line in text.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows}


def _interval(figure: dict[str, Any], digits: int) -> str:
    return f"{figure['value']:.{digits}f} [{figure['low']:.{digits}f}, {figure['high']:.{digits}f}]"


def test_first_run_builds_every_artifact(smoke: Smoke) -> None:
    """Every job is done once, has a manifest under the key of the run's record, and the record says finished. The candidate has
    the shape of the base draft, and so its step times."""
    record = smoke.place.record(RUN)
    built = {path.parent.name for path in (smoke.place.store / "artifacts").glob("*/manifest.json")}
    assert dict.fromkeys(JOBS, "done") | {"speed/candidate": "skipped"} == smoke.ended.states
    assert ("finished", "promote") == (record["state"], record["decision"]["verdict"])
    assert set(JOBS) == set(record["jobs"])
    assert {smoke.place.artifact(job).name for job in JOBS if job != "promote"} == built
    assert built == {path.name for path in (smoke.place.store / "artifacts").iterdir()}
    assert [] == list((smoke.place.store / "work").iterdir())


def test_first_run_leaves_nothing_elsewhere(smoke: Smoke) -> None:
    """Nothing is written to the directory the command was called from."""
    assert [] == list(smoke.place.cwd.iterdir())


def test_first_run_promotes(smoke: Smoke) -> None:
    """The draft is champion in the registry, with tags that pin what it was made for, and a card lies in the run."""
    entry = smoke.place.registry()["reference-draft"]
    tags, out = entry["versions"]["1"], smoke.place.store / "runs" / RUN / "promote"
    manifest = json.loads((smoke.place.artifact("distill") / "manifest.json").read_text())
    promotion = json.loads((out / "promotion.json").read_text())
    assert {"champion": "1"} == entry["aliases"]
    assert manifest["provides"]["draft"] == tags["understudy.digest"] == promotion["digest"]
    assert smoke.place.keys(RUN)["generate"] == tags["understudy.key.generate"]
    assert ("reference", "unquantized") == (tags["target"], tags["quantization"])
    assert ("promoted", "1", RUN) == (promotion["result"], promotion["version"], promotion["run"])
    assert manifest["provides"]["draft"] in (out / "card.md").read_text()


def test_show_prints_the_figures_of_the_profiles(smoke: Smoke) -> None:
    """Every row of the table says what its acceptance.json says; decision, promotion and MLflow link follow."""
    shown = smoke.place.understudy("show", RUN)
    found, expected = _cells(shown.out), {}
    for title, part in ROWS.items():
        profile = json.loads((smoke.place.artifact(f"evaluate/{part}") / "acceptance.json").read_text())
        expected[title] = [
            _interval(profile["headline"]["acceptance_rate"], 3),
            _interval(profile["headline"]["tokens_per_target_call"]["5"], 2),
            f"{profile['greedy']['acceptance_rate']['value']:.3f}",
            f"{profile['greedy']['loop_share']:.0%}",
            f"{profile['draft']['bytes'] / 1e6:.2f}" if profile["draft"]["bytes"] else "-",
        ]
    assert (0, "") == (shown.code, shown.err)
    assert expected == {name: found.get(name) for name in expected}
    # Whether the draft is faster than plain decoding depends on the machine.
    assert re.search(
        r"^decision: passed(, but .*)?\n  candidate \(unquantized\) compared with the base draft",
        shown.out,
        re.MULTILINE,
    )
    assert "\npromotion: promoted, reference-draft version 1\n" in shown.out
    named = {option: smoke.place.artifact(job) for option, job in GIVEN.items()}
    assert (
        "\nto predict the speedup on this machine: understudy probe "
        + " ".join(f"{option} {path}" for option, path in named.items())
        + "\n"
        in shown.out
    )
    assert f"mlflow ui --backend-store-uri sqlite:///{smoke.place.store}/mlflow/mlflow.db" in shown.out


def test_every_metric_of_a_run_is_in_the_glossary(smoke: Smoke) -> None:
    """The figures in the manifests, which MLflow has as metrics."""
    manifests = (smoke.place.store / "artifacts").glob("*/manifest.json")
    figures = {name for path in manifests for name in json.loads(path.read_text())["figures"]}

    assert figures
    assert [] == unexplained(sorted(figures))


def test_show_prints_what_run_printed(smoke: Smoke) -> None:
    """Afterwards `show` prints the very text that the run ended with, rows in the order of the plan; of further commands the run
    has one line, which names `show`."""
    shown = smoke.place.understudy("show", RUN)
    assert _without_hints(smoke.ended.out) == _without_hints(shown.out)
    assert f"to predict its speedup and latency elsewhere: understudy show {RUN} has the commands" in smoke.ended.out
    assert {"predict", "probe", "profile"} <= set(shown.out.split())


def _without_hints(out: str) -> list[str]:
    return [line for line in out.splitlines() if not line.startswith(("to predict ", "to make PROFILE: "))]


def test_show_json_holds_the_same(smoke: Smoke) -> None:
    """`show --json` of the latest run parses, and its figures are those of the profiles, unrounded."""
    shown = smoke.place.understudy("show", "--json")
    summary = json.loads(shown.out)
    for line in summary["drafts"]:
        profile = json.loads((smoke.place.artifact(f"evaluate/{line['name']}") / "acceptance.json").read_text())
        assert profile["headline"]["acceptance_rate"] == line["acceptance_rate"]
        assert profile["headline"]["tokens_per_target_call"]["5"] == line["tokens_per_target_call"]
    assert (0, "") == (shown.code, shown.err)
    assert set(ROWS.values()) == {line["name"] for line in summary["drafts"]}
    assert (RUN, "finished", "promote") == (summary["run"], summary["state"], summary["decision"]["verdict"])


def test_a_reused_decision_is_reviewed_with_the_runs_own_config(loop: Place) -> None:
    """A renamed run finds the gate's artifact of another; its page, on disk and from `show --html`, shows its own config."""
    loop.understudy("run", SMOKE, "--run", "second")  # compares with the champion that the first has made
    ended = loop.understudy("run", SMOKE, "--set", "name=renamed", "--run", "third")
    page, shown = loop.store / "runs" / "third" / "review.html", loop.root / "shown.html"
    loop.understudy("show", "third", "--html", shown)

    assert (0, "skipped") == (ended.code, ended.states["gate"]), ended.err
    assert ["name: smoke", "name: renamed"] == [
        re.search(r"name: \w+", (loop.store / "runs" / run / "review.html").read_text())[0]  # type: ignore[index]
        for run in ("second", "third")
    ]
    assert page.read_text() == shown.read_text()


def test_a_run_is_chosen_by_its_id_and_the_latest_by_default(loop: Place) -> None:
    """`show` and `check` take the same argument; without it they take the latest run that can answer: a run without jobs has no
    completions."""
    later = loop.record(RUN) | {"id": "later", "created": "2999-01-01T00:00:00Z", "jobs": {}}
    (loop.store / "runs" / "later").mkdir()
    (loop.store / "runs" / "later" / "run.json").write_text(json.dumps(later))
    draft = ("--draft", loop.artifact("distill"), "--baseline", loop.root / "baseline.json", "--update-baseline")
    shown = [loop.understudy("show", *run).out.split(":")[0] for run in ((), ("latest",), (RUN,))]
    named, unnamed, empty = (loop.understudy("check", *run, *draft) for run in ((RUN,), (), ("later",)))

    assert ["\nrun later", "\nrun later", f"\nrun {RUN}"] == shown
    assert (0, 0) == (named.code, unnamed.code), named.err + unnamed.err
    assert (1, "run later has no generate; finish it with `understudy run`") == (empty.code, empty.complaint)


def test_prompts_are_used_for_what_they_were_split_for(smoke: Smoke) -> None:
    """A draft is trained on train prompts, and chosen and quantized by its acceptance on dev prompts: both figures are
    found again in the stored draft."""
    place, config = smoke.place, load_config(SMOKE)
    pair = read_pair(place.artifact("pair"), model_places(config.pair))
    ids = {split: {item.id for item in _stored(place, split)} for split in ("train", "dev", "examination")}
    texts = {split: set(text_ids(place.artifact("generate"), {split}).values()) for split in ids}
    seen, before = trained_on(place.artifact("distill") / "draft"), trained_on_before(pair.path("draft"))
    figures = {job: _figures(place, job) for job in ("distill", "quantize/int8")}
    sampling = Sampling.from_config(config.sampling)
    examiner = Examiner(sampling, config.evaluate, count_as="user")
    model = load_model(place.artifact("distill") / "draft", "float32", choose_device("cpu"))
    expected = examiner.summary(PlainDraft(model, pair.vocabulary), list(_stored(place, "dev", sampling)))

    assert (ids["train"], texts["train"]) == (seen.prompts - before.prompts, seen.texts - before.texts)
    assert not texts["train"] & (texts["dev"] | texts["examination"])
    assert not ids["train"] & (ids["dev"] | ids["examination"])
    assert len(list(_stored(place, "train"))) == figures["distill"]["train_completions"]
    for found in (
        figures["distill"]["dev_acceptance_rate_after"],
        figures["quantize/int8"]["dev_acceptance_rate_before"],
    ):
        assert expected.acceptance == pytest.approx(found, abs=1e-4)


def _stored(place: Place, split: str, sampling: Sampling | None = None) -> Iterator[StoredCompletion]:
    return read_completions(place.artifact("generate"), {split}, sampling)


def _figures(place: Place, job: str) -> dict[str, float]:
    return dict(json.loads((place.artifact(job) / "manifest.json").read_text())["figures"])


def test_each_target_decodes_its_own_completions(smoke: Smoke) -> None:
    """Cross-checks in fp32 agree, of the draft on the old target's completions too."""
    for part in ("base-before", "base", "candidate"):
        profile = json.loads((smoke.place.artifact(f"evaluate/{part}") / "acceptance.json").read_text())
        assert (True, True) == tuple(profile["crosscheck"][name] for name in ("exact_arithmetic", "agrees")), part


def test_repeated_run_does_nothing_again(loop: Place) -> None:
    """All artifacts are found, the candidate is the champion already, and none of the training libraries is loaded."""
    before = loop.committed()
    ended, code, imported = loop.spied("run", SMOKE)
    record = loop.records()[-1]
    states = ended.states
    assert (0, ["mlflow"]) == (code, imported), ended.err
    # The champion's examination is the candidate's, by its key, and so are its step times; only gate and promote have something
    # to say.
    assert dict.fromkeys(JOBS_WITH_CHAMPION, "skipped") | {"gate": "done", "promote": "done"} == states
    assert ("finished", "already_champion") == (record["state"], record["decision"]["verdict"])
    assert "already champion" == record["jobs"]["promote"]["notes"]["result"]
    assert ["1"] == list(loop.registry()["reference-draft"]["versions"])
    assert before == {name: seen for name, seen in loop.committed().items() if name in before}
    assert "decision: already champion" in ended.out


def test_help_is_light(place: Place) -> None:
    """Help of every command exits 0 and loads no heavy library."""
    code = f"""
import sys
from pipeline.cli import _main
for command in {["", *HARMLESS]!r}:
    sys.argv = ["understudy", *command.split(), "--help"]
    print(command, _main(), [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place.cwd,
        env=place.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [f"{command} 0 []" for command in ("", *HARMLESS)] == ended.stderr.splitlines()
    assert 1 + len(HARMLESS) == ended.stdout.count("Usage:")


def test_dry_run_prints_the_jobs(smoke: Smoke) -> None:
    """Which a run would build and which are in the store, with the champion that it would meet; no config without --verbose."""
    place, changed = smoke.place, ("--set", "distill.max_steps=7")
    same, other = (place.understudy("run", SMOKE, "--dry-run", *options) for options in ((), changed))
    found = []
    for ended in (same, other):
        assert (0, "") == (ended.code, ended.err)
        cells = [
            [cell.strip() for cell in line.strip("│ ").split("│")] for line in ended.out.splitlines() if "│" in line
        ]
        found.append({job: action for job, action, _ in cells})

    after = JOBS_WITH_CHAMPION[JOBS.index("distill") :]
    examined = ("evaluate/candidate", "speed/candidate", "gate")
    built = {job for job in after if job.startswith(("distill", "quantize")) or job in examined}
    assert set(JOBS_WITH_CHAMPION) == set(found[0]) == set(found[1])
    assert {"gate"} == {job for job, action in found[0].items() if action == "build"}  # the champion is another now
    assert built | {"evaluate/int8", "evaluate/int4"} == {job for job, action in found[1].items() if action == "build"}
    assert ["run", "run"] == [actions["promote"] for actions in found]
    assert "max_steps" not in other.out


def test_dry_run_prints_the_stages_that_were_asked_for(loop: Place) -> None:
    """Up to `--until`; with `--from`, the jobs before it must be in the store, as for the run itself."""
    changed = ("--set", "distill.max_steps=7")
    until = loop.understudy("run", SMOKE, "--dry-run", "--until", "generate", *changed)
    missing = [
        loop.understudy("run", SMOKE, "--from", "evaluate", *options, *changed) for options in (["--dry-run"], [])
    ]

    assert (0, "") == (until.code, until.err)
    assert ["pair", "corpus", "generate", "generate/before"] == re.findall(r"^│ (\S+) +│", until.out, re.MULTILINE)
    assert "0 of 4 jobs are to be built" in until.out
    assert [2, 2] == [ended.code for ended in missing]
    assert all(ended.complaint.startswith("distill is not in ") for ended in missing)


def test_dry_run_prints_config_and_plan_and_is_light(place: Place) -> None:
    """`--verbose` prints the resolved config and what each job reads; a dry run leaves nothing and loads nothing heavy."""
    ended, code, imported = place.spied("run", SMOKE, "--dry-run", "--verbose", "--set", "distill.max_steps=7")
    jobs = re.findall(r"^# (\S+): reads", ended.out, re.MULTILINE)
    assert (0, []) == (code, imported), ended.err
    assert list(JOBS) == jobs
    assert "# promote: reads gate, distill#draft, pair, generate, evaluate/candidate\n" in ended.out
    assert "  max_steps: 7\n" in ended.out
    assert not place.store.exists()


def test_dry_run_says_what_is_not_there(place: Place) -> None:
    """After config and plan: what the run would refuse at its start."""
    ended = place.understudy("run", SMOKE.parent / "smollm2-1.7b.yaml", "--dry-run", "--verbose")
    assert 2 == ended.code
    assert "# promote: reads" in ended.out
    assert ended.err.endswith("configs/prompts.jsonl: no such file or directory\n")
    assert not place.store.exists()


def test_refused_draft_leaves_the_champion(loop: Place) -> None:
    """A draft that training ruined is quantized, examined and compared with the champion, while nothing before `distill` is made
    again; it is refused with reasons and exit 3, and again from the store without any work."""
    before = loop.committed()
    ruin = ("--set", "distill.max_steps=1", "--set", "distill.learning_rate=10")
    first = loop.understudy("run", SMOKE, *ruin, "--run", "ruined")
    made = {job: "done" for job in JOBS_WITH_CHAMPION if job not in BEFORE_DISTILL and job != "promote"}
    made |= dict.fromkeys(
        ("speed/champion", "speed/candidate", "evaluate/champion"), "skipped"
    )  # the shape is the same
    assert BEFORE_DISTILL | made == first.states
    assert before == {name: seen for name, seen in loop.committed().items() if name in before}
    again = loop.understudy("run", SMOKE, *ruin, "--run", "ruined-again")
    record = loop.record("ruined")
    assert (3, 3) == (first.code, again.code), first.err + again.err
    assert "champion" == record["decision"]["baseline"]
    assert first.complaint == again.complaint == "refused: " + "; ".join(record["decision"]["reasons"])
    assert "gain (fail): gain in acceptance rate over the champion: -" in first.complaint
    assert "decision: REFUSED\n  candidate (unquantized) compared with the champion" in first.out
    assert ("refused", "refused") == (record["state"], loop.record("ruined-again")["state"])
    assert {"skipped"} == set(again.states.values())
    assert ("1", ["1"]) == (loop.champion(), list(loop.registry()["reference-draft"]["versions"]))


def test_a_draft_that_was_rolled_back_stays_off(loop: Place) -> None:
    """The next runs pass the gate, exit 3 and say how to promote the draft again; a run that is told so promotes it."""
    asked = loop.understudy("champion", "rollback", SMOKE)
    back = loop.understudy("champion", "rollback", SMOKE, "--yes")
    empty = loop.champion()
    nothing = loop.understudy("champion", "rollback", SMOKE)
    nightly = [loop.understudy("run", SMOKE, "--run", f"night-{number}") for number in (1, 2)]
    off, still = loop.record("night-2"), loop.champion()
    shown = loop.understudy("show", "night-2")
    ended = loop.understudy("run", SMOKE, "--run", "after", "--force-promote")
    next_night = loop.understudy("run", SMOKE)
    record = loop.record("after")
    assert (2, True) == (asked.code, "add --yes" in asked.complaint)
    assert (0, None) == (back.code, empty), back.err
    assert "reference-draft: version 1 was rolled back; there is no champion" in back.out
    assert "Later runs do not promote version 1" in back.out
    assert [3, 3] == [night.code for night in nightly], nightly[0].err
    assert nightly[0].complaint.startswith(
        "refused: the draft is reference-draft version 1, which was rolled back at 20"
    )
    assert nightly[1].complaint.endswith("; to promote it again, add --force-promote")
    assert ("refused", "promote", None) == (off["state"], off["decision"]["verdict"], still)
    assert "promotion: refused, rolled back at 20" in shown.out
    assert 0 == next_night.code, next_night.err
    assert (1, "reference-draft has no champion: nothing to roll back") == (nothing.code, nothing.complaint)
    assert 0 == ended.code, ended.err
    assert ("promote", "base") == (record["decision"]["verdict"], record["decision"]["baseline"])
    assert ("promoted", "1") == (record["jobs"]["promote"]["notes"]["result"], loop.champion())
    assert ["1"] == list(loop.registry()["reference-draft"]["versions"])


def test_on_policy_rounds_follow_the_offline_phase(loop: Place) -> None:
    """The log goes on where the offline phase ended; a round begins with the best draft so far and never leaves a worse one."""
    rounds = "distill.on_policy={rounds: 2, prompts: 40, max_steps: 10, learning_rate: 0.001}"
    ended = loop.understudy(
        "run", SMOKE, "--set", rounds, "--until", "distill", "--run", "rounds", MLFLOW_TRACKING_URI=NOBODY
    )
    assert 0 == ended.code, ended.err
    log = json.loads((loop.artifact("distill", "rounds") / "training.json").read_text())
    omega = [
        (entry["step"], entry["dev_tokens_per_target_call"]) for entry in log if "dev_tokens_per_target_call" in entry
    ]
    offline = json.loads((loop.artifact("distill") / "training.json").read_text())

    assert offline == log[: len(offline)]
    assert [(40, 50), (50, 60)] == [(first[0], last[0]) for first, last in zip(omega[3::2], omega[4::2], strict=True)]
    assert max(value for _, value in omega[:3]) == omega[3][1]
    assert max(value for _, value in omega[:5]) == omega[5][1]
    assert loop.keys("rounds")["distill"] != loop.keys(RUN)["distill"]

    shown = loop.understudy("show").out
    told = (
        f"run rounds is the latest, and has no decision (stopped); the latest with a decision: understudy show {RUN}\n"
    )
    assert shown.endswith(told)
    assert "is the latest" not in loop.understudy("show", RUN).out


def test_a_learning_curve_is_shown(loop: Place) -> None:
    """Drafts of parts of the completions beside the whole one, which is as it would be without them."""
    more = ("distill.learning_curve=[0.5, 0.25]", "distill.domain_shares={tests: 0.4}", "distill.max_steps=20")
    given = [part for one in more for part in ("--set", one)]
    ended = loop.understudy("run", SMOKE, *given, "--until", "distill", "--run", "curve", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    artifact = loop.artifact("distill", "curve")
    curve, log = (json.loads((artifact / name).read_text()) for name in ("learning_curve.json", "training.json"))
    figures = json.loads((artifact / "manifest.json").read_text())["figures"]
    whole = curve["points"][-1]

    assert [0.25, 0.5, 1] == [
        pytest.approx(point["completions"] / whole["completions"], abs=0.01) for point in curve["points"]
    ]
    assert (
        max(entry["dev_tokens_per_target_call"] for entry in log if "dev_tokens_per_target_call" in entry)
        == whole["dev_tokens_per_target_call"]
    )
    assert (whole["completions"], whole["tokens"]) == (figures["train_completions"], figures["train_tokens"])
    assert (
        "learning curve, acceptance rate on dev prompts by training completions: "
        f"{curve['points'][0]['dev_acceptance_rate']:.3f} from " in ended.out
    )
    assert f"; twice as many completions would add about {100 * curve['next_doubling']:.1f} points\n" in ended.out
