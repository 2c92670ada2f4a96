"""The plan of a run: which steps have a key, and what is found in the store."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.running import preview as preview_module
from pipeline.running.plan import Plan, Step
from pipeline.running.preview import BUILD, REUSE, RUN, preview, require_stored_prompts
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.files import write_json
from pipeline.store.runs import OutsideInput
from pipeline.store.times import utc_now
from tests.pairs import pair_facts

CONFIG = Path(__file__).parents[3] / "configs" / "smoke.yaml"
TEXT = {"reference_text": OutsideInput("text"), "machine": OutsideInput("machine")}
CHAMPION = OutsideInput("distill:draft", facts={"name": "smoke-draft", "version": 3})
PARTS = ("target", "target_before", "draft", "tokenizer", "prompts", "shared")


def _plan(store: Path, *overrides: str, **outside: OutsideInput) -> Plan:
    return Plan(load_config(CONFIG, overrides), Store(store), TEXT | outside)


def _build(step: Step, **facts: Any) -> Artifact:
    """An artifact that provides everything, under digests that are named after the job."""
    job = step.job
    work = step.store.open_work(job.stage, step.key, resumable=False)
    write_json(work / "pair.json", pair_facts(**{name: one for name, one in facts.items() if name != "domains"}))
    provides = {part: f"{job.id}:{part}" for part in PARTS}
    domains = facts.get("domains", {}) if job.stage == "corpus" else {}
    rest = {"figures": {}, "provides": provides, "inputs": dict(step.digests), "created": utc_now()}
    rest["notes"] = {"domains": domains}
    return step.store.commit(work, {"stage": job.stage, "key": step.key, **rest})


def _walk(plan: Plan, until: str = "promote", build: bool = False, **facts: Any) -> dict[str, Step]:
    """All steps, by job; those up to the job `until` are built where they are not there."""
    steps = {}
    for step in plan.steps():
        build = build and until not in steps
        artifact = step.find() or (_build(step, **facts) if build else None)
        if artifact is not None:
            plan.take(step, artifact)
        steps[step.job.id] = step
    return steps


def _built(store: Path, *overrides: str, until: str = "promote", **rest: Any) -> dict[str, Step]:
    return _walk(_plan(store, *overrides), until, build=True, **rest)


def test_a_step_has_a_key_as_soon_as_what_it_reads_is_known(tmp_path: Path) -> None:
    """Of an empty store only the first. The key of completions is known before there are any, the digest of a draft is not."""
    empty = _walk(_plan(tmp_path / "a"))
    paired = _built(tmp_path / "b", until="pair")

    assert ["pair"] == [job for job, step in empty.items() if step.is_known]
    known = {job for job, step in paired.items() if step.is_known}
    assert {"pair", "corpus", "generate", "distill", "evaluate/base", "evaluate/prompt-lookup"} <= known
    assert set() == known & {"quantize/int8", "evaluate/candidate", "gate", "promote"}
    assert [] == [step for step in empty.values() if step.find() is not None]


def test_a_lost_artifact_changes_no_key_and_hides_no_other(tmp_path: Path) -> None:
    """What was made from it is found, as the run will find it."""
    before = _built(tmp_path)
    shutil.rmtree(tmp_path / "artifacts" / before["corpus"].name)
    after = _walk(_plan(tmp_path))

    assert {job: step.key for job, step in before.items()} == {job: step.key for job, step in after.items()}
    assert ["corpus"] == [job for job, step in after.items() if step.find() is None]


def test_the_pair_decides_the_jobs_after_it(tmp_path: Path) -> None:
    """A variant that the draft cannot have is planned until the pair is there."""
    plan = _plan(tmp_path, "quantize.variants=null")
    assert "quantize/int8" in {job.id for job in plan.jobs}
    steps = _walk(plan, build=True, impossible_variants={"int8": "because"})

    assert {"quantize/int8", "evaluate/int8"}.isdisjoint(steps)
    assert "quantize/int4" in steps
    assert list(steps) == [job.id for job in plan.jobs]


def test_a_candidate_that_is_the_champion_keeps_its_step_times(tmp_path: Path) -> None:
    """Under the key that they had before it was promoted, so nothing is measured again."""
    before = _built(tmp_path)
    own = _walk(_plan(tmp_path, champion=CHAMPION))

    assert before["speed/candidate"].key == own["speed/candidate"].key
    assert "speed/base" not in own


def test_the_age_of_the_completions_is_an_input_of_the_gate(tmp_path: Path) -> None:
    """Whether they are young enough; not known before there are any."""
    rule = "gate.max_examination_days=30"
    assert "completions_age" not in _walk(_plan(tmp_path, rule))["gate"].digests
    assert "pass" == _built(tmp_path, rule)["gate"].digests["completions_age"]


def test_a_preview_says_what_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the last stage that is asked for; a stage before the first must be there."""
    monkeypatch.setattr(preview_module, "known_inputs", lambda config, store: TEXT)
    _built(tmp_path, until="distill")
    config, store = load_config(CONFIG), Store(tmp_path)
    planned = {one.job.id: one.action for one in preview(config, store)}

    assert {REUSE} == {planned[job] for job in ("pair", "corpus", "generate", "generate/before", "distill")}
    assert {BUILD} == {action for job, action in planned.items() if job.partition("/")[0] in ("quantize", "evaluate")}
    assert (BUILD, RUN) == (planned["gate"], planned["promote"])
    assert "distill" == preview(config, store, last="distill")[-1].job.id
    with pytest.raises(
        UsageError, match=r"^quantize/int8 is not in .*; make it first: .* `understudy stage quantize`$"
    ):
        preview(config, store, first="evaluate")


def test_stored_prompts_are_counted_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One examination prompt fewer than the gate needs is a certain refusal once the corpus is there."""
    monkeypatch.setattr(preview_module, "known_inputs", lambda config, store: TEXT)
    config, progress = load_config(CONFIG), Progress(False)
    least = config.gate.min_prompts_per_domain
    for examined in (least - 1, least):
        store = tmp_path / str(examined)
        assert not require_stored_prompts(config, Store(store), progress, go_on=False)
        _built(store, until="corpus", domains={"code": {"train": 9, "dev": 9, "examination": examined}})
        if examined < least:
            with pytest.raises(
                UsageError, match=rf"has {examined} examination prompts and the gate needs {least}, so it will"
            ):
                require_stored_prompts(config, Store(store), progress, go_on=False)
        assert require_stored_prompts(config, Store(store), progress, go_on=examined < least)
