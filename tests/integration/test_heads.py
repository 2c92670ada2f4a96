"""Heads of other people on the command line: judged on the completions of the smoke run, beside its own draft."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from pipeline.models.loading import load_model
from tests.heads import eagle3_draft, medusa_draft, write_eagle3, write_medusa
from tests.integration.conftest import NOBODY, RUN, SMOKE, Place, Smoke


@pytest.fixture(scope="module")
def target(smoke: Smoke) -> Path:
    return smoke.place.artifact("pair") / "target"


@pytest.fixture(scope="module")
def eagle3(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = load_model(target, "float32", torch.device("cpu"))
    layers = model.config.num_hidden_layers
    return write_eagle3(tmp_path_factory.mktemp("heads") / "eagle3", eagle3_draft(model, read=(0, 1, layers)))


@pytest.fixture(scope="module")
def medusa(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = load_model(target, "float32", torch.device("cpu"))
    return write_medusa(tmp_path_factory.mktemp("heads") / "medusa", medusa_draft(model))


def test_heads_are_probed_beside_a_plain_draft(smoke: Smoke, target: Path, eagle3: Path, medusa: Path) -> None:
    place, stored = smoke.place, smoke.place.artifact("generate")
    drafts = [word for draft in (eagle3, medusa, RUN) for word in ("--draft", draft)]
    ended = place.understudy(
        "probe", "--target", target, *drafts, "--completions", stored, "--cost-ratio", "0.1", "--json"
    )
    assert 0 == ended.code, ended.err
    figures = {one["name"]: one["figures"]["tokens_per_target_call"]["5"] for one in json.loads(ended.out)["findings"]}
    assert figures[RUN]["value"] > figures["eagle3"]["value"] > 1
    assert figures["medusa"]["value"] > 1


def test_a_head_is_compared_and_checked(smoke: Smoke, target: Path, eagle3: Path, tmp_path: Path) -> None:
    """With its target; a baseline of it is passed by itself, and failed by none that is missing."""
    place, baseline, stored = smoke.place, tmp_path / "baseline.json", smoke.place.artifact("generate")
    ended = place.understudy("compare", eagle3, RUN, "--completions", stored, "--target", target)
    assert (0, "") == (ended.code, ended.err)
    assert "the acceptance rates are over different tokens" in ended.out
    named = ("check", RUN, "--draft", eagle3, "--baseline", baseline, "--target", target)
    assert 0 == place.understudy(*named, "--update-baseline").code
    ended = place.understudy(*named)
    assert (0, "") == (ended.code, ended.err)


def test_a_head_needs_its_target(smoke: Smoke, eagle3: Path) -> None:
    place, stored = smoke.place, smoke.place.artifact("generate")
    other = smoke.place.artifact("pair") / "draft"
    for options, complaint in (
        ((), "reads hidden states of its target: name the target of the completions with --target"),
        (("--target", other), "not the target that made the completions"),
    ):
        ended = place.understudy("compare", eagle3, RUN, "--completions", stored, *options)
        assert (2, 1) == (ended.code, ended.err.count("\n")), ended.err
        assert complaint in ended.err


def test_a_head_decodes_the_targets_text(smoke: Smoke, target: Path, eagle3: Path, medusa: Path) -> None:
    """Token by token, at temperature 0."""
    for head in (eagle3, medusa):
        words = ("decode", "def main(", "--target", target, "--draft", head, "--gamma", "3", "--temperature", "0")
        ended = smoke.place.understudy(*words, "--max-new-tokens", "16", "--compare")
        assert 0 == ended.code, ended.err
        assert "the target alone gives the same text, token by token" in ended.out


def test_a_run_refuses_a_head_at_its_first_stage(smoke: Smoke, place: Place, eagle3: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(SMOKE.read_text())
    config["pair"] = {
        "target": {"source": str(smoke.place.artifact("pair") / "target")},
        "draft": {"source": str(eagle3)},
    }
    config["corpus"]["sources"] = [{"path": str(smoke.place.artifact("pair") / "prompts.jsonl")}]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    ended = place.understudy("run", tmp_path / "config.yaml", "--until", "pair", MLFLOW_TRACKING_URI=NOBODY)
    assert 2 == ended.code
    assert "is a draft of the kind eagle3, and runs train plain drafts only" in ended.err
