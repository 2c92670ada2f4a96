"""The gate stage on the artifacts of the smoke run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.acceptance.profile_file import write_profile
from pipeline.acceptance.schema import FILE, AcceptanceProfile, read_profile
from pipeline.config.gate import LoadConfig
from pipeline.config.loading import load_config
from pipeline.drafts.directory import TrainedOn
from pipeline.generation.completion_files import text_ids
from pipeline.judgement.schema import ChampionVersion
from pipeline.running.jobs import jobs_of
from pipeline.store.row_files import RowFile
from stages import gate
from tests.contexts import stage_context
from tests.integration.conftest import SMOKE, Smoke
from tests.step_costs import write_step_costs


def test_prompts_whose_words_a_draft_was_trained_on_do_not_count(smoke: Smoke, tmp_path: Path) -> None:
    """The gate leaves them out of every profile, although their token ids are others."""
    place, config = smoke.place, load_config(SMOKE)
    (job,) = (one for one in jobs_of(config) if one.id == "gate")
    inputs = {name: place.artifact(read.partition("#")[0]) for name, read in job.reads.items()}
    digests = json.loads((place.artifact("gate") / "manifest.json").read_text())["inputs"]
    texts = text_ids(inputs["completions"], {"examination"})
    learnt, out = tmp_path / "draft", tmp_path / "out"
    for directory in (learnt, out):
        directory.mkdir()
    (learnt / "config.json").write_text("{}")
    TrainedOn(frozenset(), texts=frozenset(sorted(texts.values())[:7])).write(learnt)
    gate.run(
        stage_context(config, "gate", place.store, out, inputs=inputs | {"draft_unquantized": learnt}, digests=digests)
    )
    decision = json.loads((out / "decision.json").read_text())

    assert 7 == decision["dropped_prompts"]
    assert len(texts) - 7 == decision["drafts"]["candidate"]["prompts"]


@pytest.mark.parametrize(("modes", "refused"), [((), False), (("",), False), (("", "enable_thinking=true"), True)])
def test_a_champion_of_a_mode_that_is_not_examined_stays(
    smoke: Smoke, tmp_path: Path, modes: tuple[str, ...], refused: bool
) -> None:
    """Its traffic in that mode is not in the examination; a champion whose modes are not known is compared as before."""
    place, config = smoke.place, load_config(SMOKE)
    (job,) = (one for one in jobs_of(config) if one.id == "gate")
    inputs = {name: place.artifact(read.partition("#")[0]) for name, read in job.reads.items()}
    digests = json.loads((place.artifact("gate") / "manifest.json").read_text())["inputs"]
    for name in ("champion", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "champion/config.json").write_text("{}")
    TrainedOn(frozenset(), modes=frozenset(modes)).write(tmp_path / "champion")
    inputs |= {"champion": tmp_path / "champion", "examination_champion": inputs["examination_base"]}
    context = stage_context(config, "gate", place.store, tmp_path / "out", inputs=inputs, digests=digests)
    champion = ChampionVersion("reference-draft", "1")
    gate.run(replace(context, settings=replace(context.settings, champion=champion)))
    rules = {rule["name"]: rule for rule in json.loads((tmp_path / "out/decision.json").read_text())["rules"]}

    assert refused == ("champion_modes" in rules)
    if refused:
        assert "inconclusive" == rules["champion_modes"]["verdict"]
        assert "enable_thinking=true" in rules["champion_modes"]["text"]


@pytest.mark.parametrize(
    ("profiles", "verdict", "text"),
    [
        ({"unquantized": 0.001, "champion": 0.02}, "pass", "(rounds predicted at the stated load, 1 in a batch): +"),
        ({"unquantized": 0.02, "champion": 0.0001}, "fail", "(rounds predicted at the stated load, 1 in a batch): -"),
        ({"unquantized": 0.001}, "inconclusive", "no figure (no step times; set evaluate.speed.turns"),
        ({}, "inconclusive", "no figure (no step times; set evaluate.speed.turns"),
    ],
)
def test_a_champion_of_another_kind_is_beaten_by_speed(
    smoke: Smoke, tmp_path: Path, profiles: dict[str, float], verdict: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the acceptance of the base draft, which the candidate beats; by step times of both, and by nothing else."""
    monkeypatch.setattr("pipeline.review.at_load.plot_at_load", lambda *_: None)
    place, config = smoke.place, load_config(SMOKE)
    (job,) = (one for one in jobs_of(config) if one.id == "gate")
    inputs = {name: place.artifact(read.partition("#")[0]) for name, read in job.reads.items()}
    digests = json.loads((place.artifact("gate") / "manifest.json").read_text())["inputs"]
    for name in ("champion", "head", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "champion/config.json").write_text("{}")
    TrainedOn(frozenset()).write(tmp_path / "champion")
    text_of_base = (inputs["examination_base"] / FILE).read_text()
    assert '"kind": "plain"' in text_of_base
    (tmp_path / "head" / FILE).write_text(text_of_base.replace('"kind": "plain"', '"kind": "eagle3"'))
    inputs |= {"champion": tmp_path / "champion", "examination_champion": tmp_path / "head"}
    inputs.pop("speed_baseline", None)
    inputs |= {f"profile_{name}": write_step_costs(tmp_path / f"{name}.json", cost) for name, cost in profiles.items()}
    context = stage_context(config, "gate", place.store, tmp_path / "out", inputs=inputs, digests=digests)
    load = LoadConfig(requests_per_second=0.5, max_batch=4, context=64)
    rules = context.settings.rules.model_copy(update={"load": load})
    settings = replace(context.settings, champion=ChampionVersion("reference-draft", "1"), rules=rules)
    gate.run(replace(context, settings=settings))
    decision = json.loads((tmp_path / "out/decision.json").read_text())
    rule = next(one for one in decision["rules"] if one["name"] == "min_speed_gain")

    assert (verdict, None) == (rule["verdict"], decision["gains"])
    assert "over the champion, which is another kind of draft" in rule["text"]
    assert text in rule["text"]

    if verdict != "pass":
        return
    TrainedOn(frozenset(), texts=frozenset(text_ids(inputs["completions"], {"examination"}).values())).write(
        tmp_path / "champion"
    )
    outcome = gate.run(replace(context, settings=settings))  # no prompt is left: a refusal, whatever the step times are
    assert "min_speed_gain (inconclusive)" in outcome.refused


@pytest.mark.parametrize("side", ["examination_champion", "examination_unquantized"])
def test_a_draft_that_cannot_be_examined_is_a_refusal_and_no_traceback(smoke: Smoke, tmp_path: Path, side: str) -> None:
    """Of a champion with another tokenizer there are no counts to pair the candidate's with, and no tokens to show."""
    place, config = smoke.place, load_config(SMOKE)
    (job,) = (one for one in jobs_of(config) if one.id == "gate")
    inputs = {name: place.artifact(read.partition("#")[0]) for name, read in job.reads.items()}
    digests = json.loads((place.artifact("gate") / "manifest.json").read_text())["inputs"]
    for name in ("champion", "broken", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "champion/config.json").write_text("{}")
    TrainedOn(frozenset()).write(tmp_path / "champion")
    found = read_profile(inputs["examination_base"])
    with RowFile(tmp_path / "broken" / FILE, ["deployed"]) as rows:
        write_profile(
            rows, AcceptanceProfile(draft=found.draft, conditions=found.conditions, broken="another tokenizer")
        )
    inputs |= {"champion": tmp_path / "champion", "examination_champion": inputs["examination_base"]}
    inputs[side] = tmp_path / "broken"
    context = stage_context(config, "gate", place.store, tmp_path / "out", inputs=inputs, digests=digests)
    champion = ChampionVersion("reference-draft", "1")
    outcome = gate.run(replace(context, settings=replace(context.settings, champion=champion)))
    decision = json.loads((tmp_path / "out/decision.json").read_text())

    assert "another tokenizer" in outcome.refused
    assert ["examined"] == [rule["name"] for rule in decision["rules"]]
    assert (side == "examination_champion") == ("candidate" in decision["drafts"])
    assert {"examples": []} == json.loads((tmp_path / "out/examples.json").read_text())
