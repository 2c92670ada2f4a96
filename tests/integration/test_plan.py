"""`understudy plan`: bounds that the run then keeps."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import BUILT, NOBODY, SMOKE, Place, Smoke
from tests.integration.in_process import Forked


def test_the_run_stays_within_its_plan(smoke: Smoke) -> None:
    """Completions, tokens and stored bytes of the smoke run are what was planned, or a little less."""
    ended = smoke.place.understudy("plan", SMOKE, "--json")
    assert (0, "") == (ended.code, ended.err)
    planned = {asked["job"]: asked for asked in json.loads(ended.out)["generate"]}

    assert {"generate", "generate/before"} == set(planned)
    for job, asked in planned.items():
        artifact = smoke.place.artifact(job)
        found = json.loads((artifact / "manifest.json").read_text())["figures"]
        size = sum(path.stat().st_size for path in artifact.glob("*.tokens.arrow"))
        assert 0.8 * asked["completions"] < found["completions"] <= 1.1 * asked["completions"]  # splits are by chance
        assert 0.8 * asked["stored_bytes"] < size < 1.1 * asked["stored_bytes"] + 100_000  # and a file has a head
        assert json.loads(ended.out)["bytes_per_token"] == found["stored_bytes_per_token"]


def test_the_estimate_without_an_earlier_run_is_an_upper_bound(smoke: Smoke, place: Place) -> None:
    """Tokens and bytes of an empty store's plan, against what the run then wrote. Splits are by chance (a fifth), prompts are
    shorter than the longest that are allowed, and what prompt-lookup seldom hits is stored in less."""
    ended = place.understudy("plan", SMOKE, "--json", "--set", "plan.prompt_tokens=11.8")
    planned = {job["job"]: job for job in json.loads(ended.out)["estimate"]["jobs"]}
    assert (0, "") == (ended.code, ended.err)

    for job in ("generate", "generate/before"):
        manifest = json.loads((smoke.place.artifact(job) / "manifest.json").read_text())
        written = sum(file["size"] for file in manifest["files"].values()) - TOKENIZER_BYTES
        assert 0.8 * planned[job]["tokens_out"] < _stored_tokens(manifest) < 1.2 * planned[job]["tokens_out"]
        assert 0.8 * planned[job]["stored_bytes"] < written < 1.2 * planned[job]["stored_bytes"]
    for job in ("corpus", "evaluate/base", "evaluate/prompt-lookup"):
        written = _written(smoke.place, job)
        assert 0.4 * planned[job]["stored_bytes"] < written < 1.2 * planned[job]["stored_bytes"], job
    assert {"earlier"}.isdisjoint({job["origin"] for job in planned.values()})


TOKENIZER_BYTES = 22_600  # its files, which no number of completions changes


def _stored_tokens(manifest: dict[str, Any]) -> float:
    """With those past the ends."""
    sizes = {name: file["size"] for name, file in manifest["files"].items() if name.endswith(".tokens.arrow")}
    return sum(sizes.values()) / float(manifest["figures"]["stored_bytes_per_token"])


def _written(place: Place, job: str) -> int:
    manifest = json.loads((place.artifact(job) / "manifest.json").read_text())
    return sum(file["size"] for file in manifest["files"].values())


def test_a_second_run_is_planned_from_the_first(loop: Place) -> None:
    """A run of fewer steps and longer completions: tokens and bytes are what it then writes, and its time is the first run's for
    each token."""
    more = ("--set", "distill.max_steps=30", "--set", "generate.max_new_tokens=30", "--set", "evaluate.speed.turns=0")
    more += ("--set", "quantize.variants=[int8]", "--set", "evaluate.crosscheck_prompts=0", "--even-if-refused")
    planned = loop.understudy("plan", SMOKE, *more, "--json")
    found = json.loads(planned.out)["estimate"]
    jobs = {job["job"]: job for job in found["jobs"]}
    first = {job: json.loads((loop.artifact(job) / "manifest.json").read_text()) for job in jobs if job != "promote"}
    ended = loop.understudy("run", SMOKE, *more, "--until", "evaluate", "--run", "second", MLFLOW_TRACKING_URI=NOBODY)

    assert (0, "") == (planned.code, planned.err)
    assert 0 == ended.code, ended.err
    assert ([], []) == (found["unknown"], found["unknown_bytes"])
    assert {"earlier"} == {job["origin"] for job in found["jobs"]}
    for job in (
        "generate",
        "generate/before",
        "evaluate/base",
        "evaluate/candidate",
        "corpus",
        "distill",
        "quantize/int8",
    ):
        manifest = json.loads((loop.artifact(job, "second") / "manifest.json").read_text())
        written = sum(file["size"] for file in manifest["files"].values())
        assert written == pytest.approx(jobs[job]["stored_bytes"], rel=0.15), job
        if job.startswith("generate"):
            assert _stored_tokens(manifest) == pytest.approx(jobs[job]["tokens_out"], rel=0.15)
    tokens = {job: _stored_tokens(first[job]) for job in ("generate", "generate/before")}
    for job, count in tokens.items():
        expected = first[job]["seconds"] * jobs[job]["tokens_out"] / count
        assert expected == pytest.approx(jobs[job]["seconds"], rel=0.05)
    assert first["pair"]["seconds"] == pytest.approx(jobs["pair"]["seconds"])
    ratio = jobs["distill"]["seconds"] / first["distill"]["seconds"]
    assert 30 / 40 * (16 + 30) / (16 + 24) == pytest.approx(ratio, rel=0.1)  # steps, and length of a row


def test_the_plan_of_a_shipped_config_needs_no_prompts(place: Place) -> None:
    """300,000 prompts of which there is not one yet, at stated throughputs, without a network."""
    stated = ("rows=300000", "generate_tokens_per_second=1800", "flops=1.2e+14", "draft_parameters=1.24e+9")
    config = SMOKE.with_name("llama3.1-70b.yaml")
    ended = place.understudy("plan", config, *(part for one in stated for part in ("--set", f"plan.{one}")))
    measured = place.understudy("plan", config, "--measure", "--set", "plan.rows=300000")

    assert (0, "") == (ended.code, ended.err)
    assert "corpus: 300,000 rows: about 180,000 train, 30,000 dev, 90,000 examination prompts" in ended.out
    assert "one more endpoint: generate 7.8 h -> 6.3 h\n" in ended.out
    assert "  prompts before cleaning: 300,000 (stated; corpus.sources was not read; plan.rows)\n" in ended.out
    assert 2 == measured.code
    assert "plan --measure runs on the rows of corpus.sources: leave out plan.rows" == measured.complaint


def test_the_plan_in_words(smoke: Smoke) -> None:
    """300 prompts of 24 tokens, at temperatures 1 and 0 and with 16 tokens past the end where drafts are examined."""
    ended = smoke.place.understudy("plan", SMOKE, "--set", "distill.learning_curve=[0.5]")
    rounds = smoke.place.understudy("plan", SMOKE, "--set", "distill.on_policy={rounds: 2, prompts: 50, max_steps: 5}")
    # Examined: 75 at two temperatures, 24 + 16 tokens each. Learnt from: 195 train and 30 dev.
    tokens = 150 * 40 + 225 * 24

    assert (0, "") == (ended.code, ended.err)
    assert "corpus: 300 rows: about 195 train, 30 dev, 75 examination prompts, before" in ended.out
    assert f"generate: up to 375 completions, {tokens:,} target tokens of 203 bytes on disk" in ended.out
    assert (
        "target tokens: 24 for each completion (generate.max_new_tokens), and 16 more for those of examination"
        in ended.out
    )
    assert "generate/before: up to 150 completions, 6,000 target tokens" in ended.out
    assert "completions: one for each train or dev prompt; for each examination prompt one sampled" in ended.out
    assert "on-policy rounds: up to 100 completions, 2,400 target tokens of 203 bytes on disk" in rounds.out
    assert "distill: 80 steps x batch 32 = 2,560 sequences\n" in ended.out  # 40 steps, twice


def test_a_plan_says_what_each_source_is_read_as(smoke: Smoke, tmp_path: Path) -> None:
    """In words and as JSON, and so does a dry run: what is recognised differs from what was meant before a run, not after it."""
    rows = "".join(json.dumps({"question": f"{number} plus {number}?", "context": "c"}) + "\n" for number in range(400))
    (tmp_path / "q.jsonl").write_text(rows)
    options = ("--set", f"corpus.sources=[{{path: {tmp_path / 'q.jsonl'}}}]", "--even-if-refused")
    expected = (
        f"corpus: {tmp_path / 'q.jsonl'}: read as JSON lines, `question`; columns not used: context "
        "(input_field: context puts it after each prompt)"
    )
    plan, dry = (
        smoke.place.understudy(*command, *options) for command in (("plan", SMOKE), ("run", SMOKE, "--dry-run"))
    )
    as_json = smoke.place.understudy("plan", SMOKE, *options, "--json")

    assert expected == plan.out.splitlines()[0]
    assert expected in dry.out.splitlines()
    assert [expected] == json.loads(as_json.out)["sources"]


def test_a_run_is_shown_in_one_form(place: Place) -> None:
    """Two are not given one for the other."""
    ended = place.understudy("show", "--markdown", "--json")

    assert (2, "") == (ended.code, ended.out)
    assert "--json and --markdown: each takes the place of the summary; give one of them" == ended.complaint


def test_a_run_as_markdown(smoke: Smoke) -> None:
    """For the summary of a CI job: the verdict first, then drafts and rules, and what MLflow alone has is left out."""
    ended = smoke.place.understudy("show", "--markdown")
    lines = ended.out.splitlines()

    assert (0, "") == (ended.code, ended.err)
    assert "**Promoted as version " == lines[0][: len("**Promoted as version ")]
    assert "**" == lines[0][-2:]
    assert {"candidate", "min_gain"} <= {line.split(" | ")[0].removeprefix("| ") for line in lines}
    assert "Run `" == lines[-1][:5]
    assert "artifacts" not in lines[-1]


def test_a_plan_of_chats_says_what_it_leaves_out(smoke: Smoke) -> None:
    """How far chats go nobody knows before the target has answered."""
    source = f"corpus.sources=[{{path: {smoke.place.artifact('pair') / 'prompts.jsonl'}, every_turn: true}}]"
    ended = smoke.place.understudy("plan", SMOKE, "--set", source)

    assert 0 == ended.code, ended.err
    assert (
        "chats with `every_turn` are counted by their first question; those with more questions need more tokens\n"
        in ended.out
    )


def test_a_plan_needs_no_torch_and_its_sources(smoke: Smoke, tmp_path: Path) -> None:
    """It counts rows, and asks the registry of the smoke store for its champion; a source that is not there is named."""
    _, code, imported = smoke.place.spied("plan", SMOKE)
    missing = smoke.place.understudy("plan", SMOKE, "--set", f"corpus.sources=[{{path: {tmp_path / 'none.jsonl'}}}]")

    assert (0, ["mlflow"]) == (code, imported)
    assert 2 == missing.code
    assert f"{tmp_path / 'none.jsonl'}" in missing.complaint


def test_a_run_that_cannot_fit_is_refused_before_it(
    smoke: Smoke, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `plan` and `run --dry-run`, which go on, in the words of the run; where it fits neither says a word of it."""
    pair = smoke.place.artifact("pair")
    models = ", ".join(f"{role}: {{source: {pair / role}}}" for role in ("target", "draft"))
    options = ("--set", f"pair={{{models}}}", "--set", f"corpus.sources=[{{path: {pair / 'prompts.jsonl'}}}]")
    commands = [("plan", SMOKE, *options), ("run", SMOKE, "--dry-run", *options)]
    fits = [place.understudy(*command) for command in commands]
    monkeypatch.setattr("pipeline.models.memory_plan._free_on", lambda place: 1 << 20)
    tight = [place.understudy(*command) for command in commands]
    as_json = json.loads(place.understudy("plan", SMOKE, *options, "--json").out)["memory"]
    run = place.understudy("run", SMOKE, *options, MLFLOW_TRACKING_URI=NOBODY)

    assert [(0, ""), (0, "")] == [(ended.code, ended.err) for ended in tight]
    assert not any("is refused" in ended.out for ended in fits)
    assert all("\n  evaluate: " in ended.out and " free here: " in ended.out for ended in fits)
    prefix = "a run here is refused at generate: "
    for ended in tight:
        (line,) = (line for line in ended.out.splitlines() if line.startswith(prefix))
        assert f"{pair / 'target'}: its weights take " in line
        assert run.complaint.endswith(line.removeprefix(prefix))
    assert 2 == run.code
    assert ["generate", "distill", "evaluate"] == [stage["stage"] for stage in as_json["stages"] if stage["refused"]]


@pytest.mark.long
def test_a_measured_plan_names_what_each_job_takes(place: Place) -> None:
    """Two small runs of the real loop: figures for each job, memory of serving, and nothing left behind or done."""
    load = "gate.load={requests_per_second: 1, max_batch: 4, context: 64}"
    ended = place.understudy("plan", SMOKE, "--measure", "--json", "--set", load)
    assert 0 == ended.code, ended.err
    measured = json.loads(ended.out)["measured"]
    jobs = measured["jobs"]

    assert [job for job in BUILT if job != "promote"] == list(jobs)
    assert all(cost["seconds"] > 0 and cost["stored_bytes"] > 0 for cost in jobs.values())
    assert all(cost["memory_bytes"] > 1e8 for cost in jobs.values())  # torch alone
    assert measured["total"]["seconds"] > sum(cost["seconds"] for cost in jobs.values())
    assert ["unquantized", "int8", "int4"] == list(measured["serving_bytes"])
    assert (4, 64) == (measured["batch"], measured["context"])
    assert ["plan"] == [path.name for path in place.store.rglob("*") if path.is_file()]  # the lock, of no bytes


def _forked(command: list[str], environment: dict[str, str], hear: Any) -> "subprocess.CompletedProcess[str]":
    """A small run, forked from this process. `hear` would be given its lines."""
    run = Forked(command[command.index("run") :], Path.cwd(), environment)
    out, err = run.communicate(timeout=600)
    return subprocess.CompletedProcess(command, run.returncode or 0, out, err)


def test_a_plan_that_cannot_be_measured_says_why(smoke: Smoke, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small run's own line, as a failure."""
    monkeypatch.setattr("pipeline.planning.trial_runs.call", _forked)
    pair = smoke.place.artifact("pair")
    stored = f"pair={{target: {{source: {pair / 'target'}}}, draft: {{source: {pair / 'draft'}}}}}"
    asked = (stored, f"corpus.sources=[{{path: {pair / 'prompts.jsonl'}}}]", "distill.domain_shares={poems: 0.5}")
    ended = place.understudy("plan", SMOKE, "--measure", *(part for one in asked for part in ("--set", one)))

    assert 1 == ended.code
    assert (
        "of its prompts and steps failed: distill.domain_shares: no train prompt has domain 'poems'" in ended.complaint
    )
