"""What step times depend on: machine, shapes, lengths, and nothing of a draft's weights or acceptance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.models.places import ModelPlace
from pipeline.running import speed_inputs
from pipeline.running.jobs import jobs_of
from pipeline.running.plan import Plan
from pipeline.running.speed_inputs import BROKEN, COMPUTABLE, computable, length_of, machine_input, shape_of
from pipeline.store.artifacts import Artifact, Manifest, Store
from pipeline.store.runs import OutsideInput

SMOKE = load_config(Path(__file__).parents[3] / "configs" / "smoke.yaml")


def _artifact(path: Path, **fields: Any) -> Artifact:
    given: dict[str, Any] = {"stage": "s", "key": "k", "files": {}, "figures": {}, "provides": {}}
    return Artifact(path, Manifest(**(given | fields)))


def test_the_machine_is_its_processor_its_gpus_and_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them makes another input; a config that asks for the CPU has no GPU."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(speed_inputs, "_CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr(speed_inputs, "_GPUS", tmp_path)
    (tmp_path / "cpuinfo").write_text("model name\t: Xeon A\nflags\t: x\nmodel name\t: Xeon A\n")
    one = machine_input(SMOKE)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "information").write_text("Model: \t\t NVIDIA A\nIRQ:   1\n")
    others = [machine_input(SMOKE.model_copy(update={"device": device})) for device in ("cpu", "auto")]
    assert ("Xeon A", "2", "cpu", []) == tuple(one.facts[name] for name in ("processor", "threads", "device", "gpus"))
    assert [("cpu", []), ("cuda", ["NVIDIA A"])] == [(other.facts["device"], other.facts["gpus"]) for other in others]
    assert 3 == len({one.digest, *(other.digest for other in others)})


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"tokens": 1000.0, "completions": 10.0}, "about 128 tokens"),
        ({"tokens": 1100.0, "completions": 10.0}, "about 128 tokens"),
        ({"tokens": 300.0, "completions": 10.0}, "about 32 tokens"),
        ({"tokens": 1000.0, "completions": 10.0, "prompt_tokens": 170.0}, "about 128 tokens, after about 16"),
        ({"tokens": 0.0, "completions": 10.0}, "k"),
        ({}, "k"),
    ],
)
def test_lengths_count_to_a_power_of_two(figures: dict[str, float], expected: str, tmp_path: Path) -> None:
    """New completions of the same traffic are no reason to measure again."""
    assert expected == length_of(_artifact(tmp_path, figures=figures))


def test_whether_a_draft_can_be_computed_is_said_by_its_examination(tmp_path: Path) -> None:
    """And nothing else of its examination."""
    found = [computable(_artifact(tmp_path, notes=notes)) for notes in ({}, {"crosscheck": 1}, {"broken": "NaN"})]
    assert [COMPUTABLE, COMPUTABLE, BROKEN] == found


def test_a_model_that_is_not_here_has_a_shape_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is downloaded to find a key: the digest of its content stands for it."""
    facts: dict[str, Any] = {"target": {"digest": "its digest"}}
    monkeypatch.setattr("pipeline.running.speed_inputs.read_facts", lambda path: facts)
    (tmp_path / "pair.json").touch()
    artifact = _artifact(tmp_path, provides={"target": "its digest"})
    places = {"target": ModelPlace(source="org/name", revision="0" * 40)}
    monkeypatch.setattr(ModelPlace, "directory", None)
    assert "its digest" == shape_of(artifact, "target", places)
    facts["target"]["step_shape"] = "its shape"  # the pair stage said it, where the model is
    assert "its shape" == shape_of(artifact, "target", places)
    assert "k" == shape_of(_artifact(tmp_path), "draft", {})
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("{}")
    (tmp_path / "draft" / "model.safetensors").write_bytes(b"damaged")
    assert "k" == shape_of(_artifact(tmp_path), "draft", {})


def _speeds(plan: Plan) -> dict[str, str]:
    return {step.job.part: step.key for step in (plan._step(job) for job in plan.jobs) if step.job.stage == "speed"}


def _plan(store: Path, monkeypatch: pytest.MonkeyPatch, shapes: dict[str, str], **outside: OutsideInput) -> Plan:
    """All artifacts that step times depend on are there. `shapes`: by role."""
    monkeypatch.setattr("pipeline.running.plan.shape_of", lambda artifact, role, places: shapes[role])
    plan = Plan(SMOKE, Store(store), {"machine": OutsideInput("machine"), **outside})
    for job in plan.jobs:
        plan._artifacts[job.id] = _artifact(store, figures={"tokens": 64.0, "completions": 1.0})
    return plan


def test_drafts_of_equal_shape_share_step_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Base draft and candidate, and a champion whose shape is in its tags; one that an older version registered does not."""
    same, other = {"target": "t", "draft": "d"}, {"target": "t", "draft": "e"}
    facts = {"name": "n", "version": "1", "shape": "d"}
    registered, old = OutsideInput("w", facts=facts), OutsideInput("w", facts=facts | {"shape": ""})
    base = _speeds(_plan(tmp_path, monkeypatch, same))
    champion = _speeds(_plan(tmp_path, monkeypatch, same, champion=registered))
    unknown = _speeds(_plan(tmp_path, monkeypatch, same, champion=old))
    assert base["base"] == base["candidate"] == champion["champion"] == champion["candidate"] == unknown["candidate"]
    assert base["base"] != unknown["champion"]
    assert base["base"] != _speeds(_plan(tmp_path, monkeypatch, other))["base"]


def test_step_times_are_of_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another they are measured again."""
    plan = _plan(tmp_path, monkeypatch, {"target": "t", "draft": "d"})
    before = _speeds(plan)
    plan.outside = {"machine": replace(plan.outside["machine"], digest="another")}
    assert before["candidate"] != _speeds(plan)["candidate"]


def test_a_served_target_has_no_step_times() -> None:
    """Its speed depends on the other requests there."""
    assert "speed" in {job.stage for job in jobs_of(SMOKE)}
    off = SMOKE.model_copy(
        update={
            "evaluate": SMOKE.evaluate.model_copy(
                update={"speed": SMOKE.evaluate.speed.model_copy(update={"turns": 0})}
            )
        }
    )
    assert "speed" not in {job.stage for job in jobs_of(off)}
