"""Sizes of models that are on this machine, which a plan of a new pair knows without a run."""

from pathlib import Path

import pytest
import torch

from pipeline.config.loading import load_config
from pipeline.models.places import ModelPlace
from pipeline.planning.earlier_runs import Measurements
from pipeline.planning.estimate import estimate
from pipeline.planning.forecast import forecast
from pipeline.planning.local_sizes import with_local_sizes
from tests.fakes import tiny_llama, tiny_tokenizer
from tests.heads import eagle3_draft, write_eagle3

CONFIGS = Path(__file__).parents[3] / "configs"


def _known(draft: str, target: Path) -> tuple[Measurements, float | None]:
    """With the bytes that the trained draft takes."""
    pair = f"pair={{target: {{source: {target}}}, draft: {draft}}}"
    config = load_config(CONFIGS / "smoke.yaml", [pair, "corpus.sources=[{path: ./p}]", "plan.rows=100"])
    found = with_local_sizes(config, Measurements())
    disk = {job.job: job.stored_bytes for job in estimate(config, forecast(config), found, None).jobs}
    return found, disk["distill"]


def test_a_head_and_an_untrained_one_are_counted(tmp_path: Path) -> None:
    """Published ones in their files, others as they would be made; a draft of layers is not known before it is made."""
    model = tiny_llama(hidden=64, layers=4, dtype=torch.float32)
    model.save_pretrained(tmp_path / "target")
    tiny_tokenizer().save_pretrained(tmp_path / "target")
    made = eagle3_draft(model)
    head = write_eagle3(tmp_path / "head", made)
    size = sum(one.numel() for one in made.model.parameters())

    known, disk = _known(f"{{source: {head}, dtype: float32}}", tmp_path / "target")
    assert (size, sum(one.numel() for one in model.parameters())) == (known.draft_parameters, known.target_parameters)
    assert disk is not None
    assert 4 * size <= disk < 4 * size + 44 * 100
    untrained, disk = _known("{source: target, head: {kind: medusa, places: 5}}", tmp_path / "target")
    assert 5 * (64 * 64 + 64 * 32) == untrained.draft_parameters
    assert disk is not None
    layers, disk = _known("{source: target, layers: 2}", tmp_path / "target")
    assert (None, None) == (layers.draft_parameters, disk)


def test_a_draft_that_gets_the_vocabulary_of_an_unknown_target_is_not_counted(tmp_path: Path) -> None:
    """How many rows it will have is not known; a stated size counts."""
    tiny_llama(hidden=32, layers=1, dtype=torch.float32).save_pretrained(tmp_path / "draft")
    known, disk = _known(f"{{source: {tmp_path / 'draft'}, vocabulary: target}}", tmp_path / "absent")
    assert (None, None) == (known.draft_parameters, disk)


def test_nothing_is_fetched_for_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer of a served target may be one of the hub."""
    monkeypatch.setattr("pipeline.models.places.fetch_tokenizer", None)
    assert ModelPlace(source="served", tokenizer=f"org/name@{'c' * 40}").find() is None
