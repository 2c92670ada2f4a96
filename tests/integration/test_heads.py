"""Heads of other people on the command line: judged on the completions of the smoke run, beside its own draft."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline.drafts.kinds import KINDS
from pipeline.drafts.loading import load_head
from pipeline.export.schema import read_expected
from pipeline.models.loading import load_model
from pipeline.speculation.target_states import TargetStates
from tests.heads import eagle3_draft, medusa_draft, write_eagle3, write_medusa
from tests.integration.conftest import NOBODY, RUN, SMOKE, Place, Smoke
from tests.standin_pair import HeadSpeculation, law_of
from tests.standin_server import StandIn, running

VOCABULARY = 512
LENIENT = {
    "min_prompts_per_domain": 8,
    "beats_prompt_lookup": False,
    "min_speedup": 0,
    "min_gain": 0.0,
    "domain_margin": 0.5,
    "segment_margin": None,
    "length_margin": None,
}


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
    assert "Acceptance rates are over different tokens" in ended.out
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


def head_config(smoke: Smoke, tmp_path: Path, draft: dict[str, Any]) -> Path:
    """The smoke config on its target as a directory, with the completions and the training of ten steps."""
    config = yaml.safe_load(SMOKE.read_text())
    target = smoke.place.artifact("pair") / "target"
    config["pair"] = {"target": {"source": str(target), "dtype": "float32"}, "draft": draft}
    config["corpus"]["sources"] = [{"path": str(smoke.place.artifact("pair") / "prompts.jsonl"), "limit": 100}]
    config["corpus"] |= {"splits": {"train": 0.4, "dev": 0.3, "examination": 0.3}}
    config["distill"] |= {"max_steps": 10, "learning_rate": 5e-3}
    config["evaluate"] = {**config.get("evaluate", {}), "speed": {"turns": 0}}
    config["gate"] = LENIENT
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path / "config.yaml"


EAGLE3 = {"kind": "eagle3", "layer_ids": [1, 2]}
MEDUSA = {"kind": "medusa"}


@pytest.mark.parametrize(
    ("head", "other", "refusing", "then"),
    [
        pytest.param(EAGLE3, "sglang", "TGI", "", id="eagle3"),
        pytest.param(MEDUSA, "tgi", "SGLang", "trained further", id="medusa"),
        pytest.param(
            EAGLE3, "sglang", "TGI", "served and trained further", id="eagle3, served", marks=pytest.mark.long
        ),
        pytest.param(MEDUSA, "tgi", "SGLang", "served", id="medusa, served", marks=pytest.mark.long),
    ],
)
def test_a_run_trains_and_judges_a_head(
    smoke: Smoke, place: Place, tmp_path: Path, head: dict[str, Any], other: str, refusing: str, then: str
) -> None:
    """From nothing: better than untrained, as its real decode says; quantized variants are none; it is exported for vLLM and for
    another engine of its kind. Served, the canary judges it; and it is trained further, from its own files."""
    kind = head["kind"]
    config = head_config(smoke, tmp_path, {"source": "target", "head": head, "dtype": "bfloat16"})
    ended = place.understudy("run", config, "--until", "evaluate", "--run", "one", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    assert (
        "pair.draft.dtype = bfloat16 is how a head is stored; it is computed in its target's dtype, float32"
        in ended.err
    )
    facts = json.loads((place.artifact("pair", "one") / "pair.json").read_text())
    found = {
        name: json.loads((place.artifact(f"evaluate/{name}", "one") / "acceptance.json").read_text())
        for name in ("base", "candidate")
    }
    rates = {name: one["headline"]["acceptance_rate"]["value"] for name, one in found.items()}
    assert {"int8", "int4"} <= facts["impossible_variants"].keys()
    assert [kind, kind] == [one["draft"]["kind"] for one in found.values()]
    assert found["candidate"]["crosscheck"]["agrees"]
    assert rates["candidate"] > rates["base"]

    out = tmp_path / "served"
    words = ("champion", "export", "one", "--variant", "unquantized", "--engine", "vllm", "--out", out)
    ended = place.understudy(*words)
    assert 0 == ended.code, ended.err
    config_of_vllm, expected = json.loads((out / "speculative-config.json").read_text()), read_expected(out)
    figures = expected.deployed.by_draft_length
    assert (kind, str(out / "draft")) == (config_of_vllm["method"], config_of_vllm["model"])
    assert (
        ("greedy" if kind == "medusa" else "probabilistic")
        == config_of_vllm["draft_sample_method"]
        == expected.draft_sampling
    )
    assert (5 if kind == "medusa" else 16) == max(figures)  # no further than the heads
    assert 0 < figures[5].accepted == pytest.approx(sum(figures[5].accepted_per_position) * figures[5].drafts)
    ended = place.understudy(*words[:-1], tmp_path / "other", "--engine", other)
    assert 0 == ended.code, ended.err
    elsewhere = read_expected(tmp_path / "other")
    drafting = "greedy" if kind == "medusa" else "probabilistic"
    assert ("user", drafting, other) == (elsewhere.convention, elsewhere.draft_sampling, elsewhere.engine)
    assert "take the ratios, not the counts" in elsewhere.notes[0]
    ended = place.understudy(*words[:-1], tmp_path / "none", "--engine", refusing.lower())
    assert (2, 1) == (ended.code, ended.err.count("\n")), ended.err
    assert f"a draft of kind {kind} is not exported for {refusing}" in ended.err

    if "served" in then:
        _the_canary_judges(place, config, kind)
    if "trained further" not in then:
        return
    trained = tmp_path / "trained"
    shutil.copytree(place.artifact("distill", "one") / "draft", trained)
    further = head_config(smoke, tmp_path, {"source": str(trained), "dtype": "float32"})
    ended = place.understudy("run", further, "--until", "distill", "--run", "two", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == ended.code, ended.err
    log = json.loads((place.artifact("distill", "two") / "training.json").read_text())
    first = next(entry for entry in log if "dev_acceptance_rate" in entry)
    assert first["dev_acceptance_rate"] > rates["base"]


def _the_canary_judges(place: Place, config: Path, kind: str) -> None:
    """The head becomes champion; an engine that serves it is as examined, without the target where the answers were seen before,
    and one that serves the untrained head is not."""
    ended = place.understudy("run", config, "--run", "one")
    assert 0 == ended.code, ended.err
    pair, trained = place.artifact("pair", "one"), place.artifact("distill", "one") / "draft"
    stops = json.loads((pair / "pair.json").read_text())["stop_tokens"]
    settings = yaml.safe_load(config.read_text())
    where = Path(settings["pair"]["target"]["source"])
    target, law = load_model(where, "float32", torch.device("cpu")), law_of(where, VOCABULARY)
    loaded = []
    for draft, code in ((trained, 0), (trained, 0), (pair / "draft", 3)):
        head = load_head(KINDS[kind], draft, TargetStates(target), VOCABULARY)
        server = StandIn(eos=stops[0], law=law, speculation=HeadSpeculation(head=head))
        with running(server):
            watch = {"endpoints": [server.url], "engine": "vllm", "canary": {"prompts": 4, "max_tokens": 12}}
            config.write_text(yaml.safe_dump(settings | {"watch": watch}))
            ended = place.understudy("canary", config)
        verdict = "as examined" if code == 0 else "NOT AS EXAMINED"
        assert (code, True) == (ended.code, f"draft    {verdict}" in ended.out), ended.err + ended.out
        loaded.append("so the target is loaded here" in ended.err)
    assert [True, False, False] == loaded


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("distill.lora={rank: 2}", "distill.lora: not available for a draft of kind eagle3"),
        ("distill.on_policy.rounds=1", "distill.on_policy.rounds: not available for a draft of kind eagle3"),
        (
            "pair.draft.head={kind: eagle3, layer_ids: [1, 9]}",
            "reads hidden states [1, 9] of a target of",
        ),
    ],
)
def test_what_heads_do_not_have_is_said_before_anything_is_generated(
    smoke: Smoke, place: Place, tmp_path: Path, change: str, complaint: str
) -> None:
    config = head_config(smoke, tmp_path, {"source": "target", "head": {"kind": "eagle3"}})
    ended = place.understudy("run", config, "--set", change, "--run", "one", MLFLOW_TRACKING_URI=NOBODY)
    assert 2 == ended.code, ended.err
    assert complaint in ended.err
    assert not list((place.store / "artifacts").glob("generate-*"))
