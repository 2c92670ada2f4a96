"""Base drafts that the pair stage makes: of the target's layers, and with rows for tokens that the target gained."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.conftest import NOBODY, SMOKE, Place, Smoke


def _config(smoke: Smoke, tmp_path: Path, target: Path, draft: dict[str, object]) -> Path:
    """The smoke config on a directory as target."""
    config = yaml.safe_load(SMOKE.read_text())
    config["pair"] = {"target": {"source": str(target)}, "draft": draft}
    config["corpus"]["sources"] = [{"path": str(smoke.place.artifact("pair") / "prompts.jsonl"), "limit": 100}]
    config["corpus"] |= {"splits": {"train": 0.4, "dev": 0.3, "examination": 0.3}}
    config["distill"] |= {"max_steps": 10}
    config["quantize"] = {"variants": []}
    config["evaluate"] |= {"crosscheck_prompts": 0, "speed": {"turns": 0}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path / "config.yaml"


def _gain_tokens(target: Path, out: Path) -> Any:
    """The target with two tokens more; returns its tokenizer."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(target), AutoTokenizer.from_pretrained(target)
    tokenizer.add_tokens(["<tool>", "</tool>"])
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return tokenizer


def test_a_draft_of_the_targets_layers(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """Two of three layers are kept, trained and served; what the base is, is said. What `show` prints for `probe` works, although
    the target stays outside the store, in a directory with a space in its name."""
    target = tmp_path / "my target"
    shutil.copytree(smoke.place.artifact("pair") / "target", target)
    config = _config(smoke, tmp_path, target, {"source": "target", "layers": 2})
    ended = place.understudy("run", config, "--until", "distill", "--run", "layers", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    facts = json.loads((place.artifact("pair", "layers") / "pair.json").read_text())
    draft = place.artifact("distill", "layers") / "draft"

    assert ["the draft is the target's layers 0, 2 of 3"] == facts["differences"]
    assert "psf-2.0" == facts["draft"]["license"]  # the target's
    assert 2 == json.loads((draft / "config.json").read_text())["num_hidden_layers"]
    assert facts["draft"]["parameters"] < facts["target"]["parameters"]
    shown = place.understudy("show", "layers").out.splitlines()
    (command,) = (line.partition(": understudy ")[2] for line in shown if line.startswith("to predict the speedup "))
    ended = place.understudy(*shlex.split(command), "--cost-ratio", 0.1, store=False)
    assert (0, "") == (ended.code, ended.err)


def test_a_target_that_gained_tokens(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """The draft's embeddings grow instead of an error, and it is trained with them."""
    tokenizer = _gain_tokens(smoke.place.artifact("pair") / "target", tmp_path / "target")
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "stock")
    tokenizer.pad_token = "<tool>"
    tokenizer.save_pretrained(tmp_path / "target")
    config = _config(smoke, tmp_path, tmp_path / "target", {"source": str(tmp_path / "stock")})
    ended = place.understudy("run", config, "--until", "distill", "--run", "gained", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    facts = json.loads((place.artifact("pair", "gained") / "pair.json").read_text())
    draft = place.artifact("distill", "gained") / "draft"

    assert facts["differences"][0].startswith("the draft lacked 2 tokens of the target, such as '<tool>'")
    assert facts["differences"][1].startswith("pad_token: the target's '<tool>' is used, the draft's was ")
    learnt = [json.loads((path / "trained_on.json").read_text())["prompts"] for path in (tmp_path / "stock", draft)]
    assert set(learnt[0]) <= set(learnt[1])  # what the base learnt before is known of the grown draft too
    assert (
        learnt[0] == json.loads((place.artifact("pair", "gained") / "draft" / "trained_on.json").read_text())["prompts"]
    )
    assert 514 == facts["vocabulary"] == json.loads((draft / "config.json").read_text())["vocab_size"]
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(draft).get_vocab()


def test_a_champion_from_before_the_target_gained_tokens(smoke: Smoke, loop: Place, tmp_path: Path) -> None:
    """It is given rows like the base draft, and examined: a candidate has to beat it still. The target lies elsewhere, and the
    config says that it is the same one."""
    _gain_tokens(loop.artifact("pair") / "target", tmp_path / "reference")
    shutil.copytree(loop.artifact("pair") / "draft", tmp_path / "stock")
    config = _config(smoke, tmp_path, tmp_path / "reference", {"source": str(tmp_path / "stock")})
    refused = loop.understudy("run", config, "--run", "gained", "--even-if-refused")
    assert (2, True) == (refused.code, "set promote.target_name to reference if" in refused.complaint), refused.err
    ended = loop.understudy(
        "run", config, "--until", "evaluate", "--run", "gained", "--set", "promote.target_name=reference"
    )
    assert 0 == ended.code, ended.err
    profile = json.loads((loop.artifact("evaluate/champion", "gained") / "acceptance.json").read_text())
    assert profile["broken"] is None
    assert 514 == json.loads((loop.artifact("pair", "gained") / "pair.json").read_text())["vocabulary"]
    assert 0.1 < profile["headline"]["acceptance_rate"]["value"] < 1


def test_an_old_target_without_the_new_tokens_is_refused(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """It could not read the prompts; one line says to leave it out."""
    pair = smoke.place.artifact("pair")
    _gain_tokens(pair / "target", tmp_path / "target")
    config = _config(smoke, tmp_path, tmp_path / "target", {"source": "target", "layers": 1})
    ended = place.understudy(
        "run", config, "--until", "pair", "--set", f"pair.target_before={{source: {pair / 'target'}}}",
        MLFLOW_TRACKING_URI=NOBODY,
    )  # fmt: skip
    assert 2 == ended.code, ended.err
    assert "pair.target_before: has no token '<tool>' (2 in all), which the target gained" in ended.complaint


def test_layers_and_source_belong_together(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """`source: target` without layers, and layers of a draft that has its own, exit 2 with the remedy."""
    target = smoke.place.artifact("pair") / "target"
    for draft in ({"source": "target"}, {"source": str(target), "layers": 2}):
        ended = place.understudy("run", _config(smoke, tmp_path, target, draft), "--until", "pair")
        assert 2 == ended.code, ended.err
        assert "`source: target` needs `layers` (a draft of some of its layers) or `head`" in ended.complaint


def test_adapters_are_trained_and_merged(smoke: Smoke, place: Place, tmp_path: Path) -> None:
    """LoRA: the draft that is saved is a plain one, of the base's shape and frozen parts, other in its linear layers, and
    better; rounds on its own text take it as it is."""
    pair = smoke.place.artifact("pair")
    config = _config(smoke, tmp_path, pair / "target", {"source": str(pair / "draft")})
    wanted = "distill={max_steps: 40, batch: 32, learning_rate: 0.004, evaluate_every: 20, save_every: 10, "
    wanted += "lora: {rank: 8}, on_policy: {rounds: 1, prompts: 32, max_steps: 5}}"
    ended = place.understudy(
        "run", config, "--set", wanted, "--until", "distill", "--run", "lora", MLFLOW_TRACKING_URI=NOBODY
    )  # fmt: skip
    assert 0 == ended.code, ended.err
    artifact = place.artifact("distill", "lora")
    base, draft = (load_file(path / "draft" / "model.safetensors") for path in (pair, artifact))
    figures = json.loads((artifact / "manifest.json").read_text())["figures"]

    assert base.keys() == draft.keys()
    changed = {name for name in base if not (base[name] == draft[name]).all()}
    assert changed == {name for name in base if "_proj" in name}
    assert figures["dev_acceptance_rate_after"] > figures["dev_acceptance_rate_before"] + 0.01
