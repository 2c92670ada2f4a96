"""The gate stage on the artifacts of the smoke run."""

import json
from pathlib import Path

from pipeline.config.loading import load_config
from pipeline.generation.completion_files import text_ids
from pipeline.models.draft_directory import TrainedOn
from pipeline.running.jobs import expand
from stages import gate
from tests.contexts import stage_context
from tests.integration.conftest import SMOKE, Smoke


def test_prompts_whose_words_a_draft_was_trained_on_do_not_count(smoke: Smoke, tmp_path: Path) -> None:
    """The gate leaves them out of every profile, although their token ids are others."""
    place, config = smoke.place, load_config(SMOKE)
    (job,) = (one for one in expand(config, {}) if one.id == "gate")
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
