"""Pairs of other architectures, from the command line."""

import json
from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer

from tests.architectures import tiny_model
from tests.integration.conftest import NOBODY, SMOKE, Place, Smoke


def _config(smoke: Smoke, root: Path, family: str) -> Path:
    """The smoke config on a random pair of a family with the smoke pair's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(smoke.place.artifact("pair") / "target")
    for role in ("target", "draft"):
        model = tiny_model(family, vocab_size=len(tokenizer), max_position_embeddings=512)
        if role == "draft":  # a draft that is the target itself is refused
            next(model.parameters()).data.mul_(1.01)
        model.save_pretrained(root / role)
        tokenizer.save_pretrained(root / role)
    config = yaml.safe_load(SMOKE.read_text())
    config["pair"] = {role: {"source": str(root / role), "dtype": "float32"} for role in ("target", "draft")}
    config["corpus"]["sources"] = [{"path": str(smoke.place.artifact("pair") / "prompts.jsonl")}]
    config["distill"] |= {"max_steps": 5}
    config["quantize"] = {"variants": []}
    (root / "config.yaml").write_text(yaml.safe_dump(config))
    return root / "config.yaml"


def test_an_architecture_that_cannot_be_decoded_is_refused_at_pair(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """One line that names role, architecture and reason, with exit code 2."""
    config = _config(smoke, tmp_path, "BERT, encoder")
    ended = place.understudy("run", config, MLFLOW_TRACKING_URI=NOBODY)

    assert 2 == ended.code, ended.err
    assert "pair.target: the architecture bert cannot be decoded: its logits of padded rows differ" in ended.err
    assert "Traceback" not in ended.err


def test_pair_stores_what_a_config_is_checked_against(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """Also for pairs that only the run reads: variants that cannot be made, and what a server samples with."""
    config = _config(smoke, tmp_path, "Llama")
    (tmp_path / "target" / "generation_config.json").write_text('{"top_p": 0.5}')
    ignored = ("--set", "pair.generation_config=ignore", "--set", "quantize.variants=null")
    ended = place.understudy("run", config, *ignored, "--until", "pair", "--run", "other", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    facts = json.loads((place.artifact("pair", "other") / "pair.json").read_text())

    assert {"top_p": 0.5} == facts["generation_config"]
    assert "int4" in facts["impossible_variants"]
    assert "quantize: int4 is left out: " in ended.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "way"), [("GPT-Neo", "rows"), ("Llama 4", "rows"), ("LFM 2", "rows"), ("Mamba", "rows, cache rebuilt")]
)
def test_an_architecture_that_is_decoded_goes_through(
    smoke: Smoke, place: Place, tmp_path: Path, family: str, way: str
) -> None:
    """From pair to the examination, whose cross-check agrees: text, rounds and stored log p."""
    config = _config(smoke, tmp_path, family)
    ended = place.understudy("run", config, "--until", "evaluate", "--run", "other", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    facts = json.loads((place.artifact("pair", "other") / "pair.json").read_text())
    profile = json.loads((place.artifact("evaluate/candidate", "other") / "acceptance.json").read_text())

    assert [way, way] == [facts[role]["forward"] for role in ("target", "draft")]
    assert profile["crosscheck"]["log_p"]["completions"] > 0
    assert profile["crosscheck"]["agrees"], profile["crosscheck"]
