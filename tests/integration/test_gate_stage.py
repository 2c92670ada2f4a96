"""The gate stage on the artifacts of the smoke run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.drafts.directory import TrainedOn
from pipeline.generation.completion_files import text_ids
from pipeline.judgement.schema import ChampionVersion
from pipeline.running.jobs import jobs_of
from stages import gate
from tests.contexts import stage_context
from tests.integration.conftest import SMOKE, Smoke


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
