"""EAGLE-3 and Medusa heads against vLLM's own counters at temperature 0: rounds, drafted and accepted tokens, by place.

The heads are random but for the target's embedding and output layer. That suffices: a head whose states, positions or keys were
others would hit other tokens. No count has a chance in it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray

from pipeline.acceptance.examine import examine
from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.head_config import kind_of
from pipeline.drafts.loading import load_head
from pipeline.drafts.made_heads import save_head
from pipeline.errors import BrokenDraft
from pipeline.export.expected import examine_as_served
from pipeline.models.loading import load_model
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import GREEDY
from pipeline.speculation.target_states import TargetStates
from pipeline.store.artifacts import Store
from pipeline.store.runs import load_run
from tests.conformance.engines import Engine, vllm_job
from tests.conformance.exported import Exported, divergences, export_draft
from tests.conformance.served_vllm import difference, served
from tests.conformance.subject import Subject
from tests.conformance.test_watch import at_temperature_0, look_at
from tests.fakes import family_model, stored_completion, tiny_tokenizer
from tests.heads import eagle3_draft, medusa_draft, write_eagle3, write_medusa

GAMMAS = (1, 3, 5)
TOKENS = 96
VOCABULARY = 64
Made = tuple[Path, LoadedDraft]


def _eagle3(target: Any, out: Path) -> Made:
    draft = eagle3_draft(target, read=(0, 1, target.config.num_hidden_layers))
    return write_eagle3(out, draft), draft


def _part_of_the_vocabulary(target: Any, out: Path) -> Made:
    kept = target.config.vocab_size // 2
    draft = eagle3_draft(target, "qwen3", kept=kept, read=(0, 1, target.config.num_hidden_layers))
    return write_eagle3(out, draft), draft


def _window(target: Any, out: Path) -> Made:
    draft = eagle3_draft(target, layers=2, window=2, read=(0, 1, target.config.num_hidden_layers))
    return _saved(draft, out)


def _two_states(target: Any, out: Path) -> Made:
    return _saved(eagle3_draft(target, read=(1, target.config.num_hidden_layers)), out)


def _saved(draft: Eagle3Draft, out: Path) -> Made:
    """As a run writes it."""
    save_head(draft.model, out)
    return out, draft


def _medusa(target: Any, out: Path) -> Made:
    draft = medusa_draft(target, heads=max(GAMMAS))
    return write_medusa(out, draft), draft


KINDS: dict[str, tuple[str, Callable[[Any, Path], Made]]] = {
    "eagle3": ("eagle3", _eagle3),
    "eagle3 of qwen3 layers, half of the vocabulary": ("eagle3", _part_of_the_vocabulary),
    "medusa": ("medusa", _medusa),
}
# By one family of target and one draft length.
OTHERS: dict[str, tuple[str, Callable[[Any, Path], Made]]] = {
    "eagle3 of two layers with a window": ("eagle3", _window),
    "eagle3 on states of two layers": ("eagle3", _two_states),
}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random target of another family."""
    out = tmp_path_factory.mktemp("qwen3")
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "head_dim": 32, "num_hidden_layers": 4}
    model = family_model("Qwen3", torch.float32, **sizes, max_position_embeddings=256)
    model.save_pretrained(out)
    tiny_tokenizer(VOCABULARY).save_pretrained(out)
    return out


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_counts_are_those_of_the_examination(
    vllm: Engine, subject: Subject, qwen3: Path, tmp_path: Path, family: str, kind: str, gamma: int
) -> None:
    where, stop_tokens = (subject.target, subject.stop_tokens) if family == "llama" else (qwen3, (0,))
    _compare(vllm, where, stop_tokens, subject.prompts[:16], KINDS[kind], gamma, tmp_path)


@pytest.mark.parametrize("kind", OTHERS)
def test_counts_of_other_heads(vllm: Engine, qwen3: Path, tmp_path: Path, kind: str) -> None:
    """A block that is longer than the window of two layers, which moves with the token that is drafted; states of two layers."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(1, VOCABULARY, size) for size in generator.integers(5, 40, 16)]
    _compare(vllm, qwen3, (0,), prompts, OTHERS[kind], 8, tmp_path)


def _compare(
    vllm: Engine,
    where: Path,
    stop_tokens: Sequence[int],
    given: Sequence[NDArray[Any]],
    kind: tuple[str, Callable[[Any, Path], Made]],
    gamma: int,
    tmp_path: Path,
) -> None:
    method, make = kind
    target = load_model(where, "float32", torch.device("cpu"))
    written, draft = make(target, tmp_path / "head")
    vocabulary = target.config.vocab_size
    prompts = [[int(token) % vocabulary for token in prompt] for prompt in given]
    texts = Decoder(target, None, sampling=GREEDY, vocabulary=vocabulary, stop_tokens=stop_tokens).decode(
        [Request(prompt, TOKENS, 0, lookahead=gamma) for prompt in prompts]
    )
    items = [
        stored_completion(prompt, one.tokens, length=one.length) for prompt, one in zip(prompts, texts, strict=True)
    ]
    found = examine({"head": draft}, items, GREEDY, GREEDY, 8192, gamma)["head"]
    assert not isinstance(found, BrokenDraft)
    rounds, per_place = 0.0, np.zeros(gamma)
    for one, text in zip(found, texts, strict=True):
        counted = expected_rounds(
            one.at(gamma)[None].astype(float), np.array([text.length]), gamma, CONVENTIONS["vllm"]
        )
        rounds, per_place = rounds + float(counted.rounds_B[0]), per_place + counted.accepted_BG[0]
    job = vllm_job(
        where, written, prompts, TOKENS, [(0.0, 0)], method=method, gamma=gamma, options={"max_model_len": 256}
    )
    (call,) = vllm.run(job)["calls"]
    assert [text.tokens[: text.length] for text in texts] == call["tokens"]
    counters = call["counters"]
    predicted = {"drafts": rounds, "proposed": gamma * rounds, "accepted": per_place.sum()}
    assert predicted | {"per_position": per_place.tolist()} == counters
    assert per_place[0] > 0


@pytest.fixture(scope="module", params=["eagle3", "medusa"])
def exported_head(
    request: pytest.FixtureRequest, subject: Subject, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    return _trained(subject.target, request.param, tmp_path_factory.mktemp(request.param))


def _trained(target: Path, kind: str, place: Path, **training: Any) -> Exported:
    """A head of the target, trained from nothing by a run, in a few steps unless `training` says more, and exported by name."""
    config = {
        "name": kind,
        "pair": {
            "target": {"source": str(target), "dtype": "float32"},
            "draft": {"source": "target", "head": {"kind": kind}, "dtype": "float32"},
        },
        "corpus": {
            "sources": [{"path": str(target.parent / "prompts.jsonl"), "limit": 400}],
            "chat_template": False,
            "splits": {"train": 0.6, "dev": 0.1, "examination": 0.3},
        },
        "generate": {"max_new_tokens": 64, "lookahead": 4, "batch": 64},
        "evaluate": {"max_gamma": 5, "speed": {"turns": 0}},
        "distill": {"max_steps": 60, "learning_rate": 4e-3} | training,
    }
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    words = ["run", str(place / "config.yaml"), "--run", "one", "--until", "evaluate", "--store", str(place / "store")]
    environment = os.environ | {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}
    subprocess.run([sys.executable, "-m", "understudy_cli", *words], check=True, env=environment)
    store = Store(place / "store")
    record = load_run(store, "one")
    assert record is not None
    return export_draft("one", record, store, "vllm", place / "served", "--variant", "unquantized")


def test_an_exported_head_is_served_from_its_launch_file(exported_head: Exported, vllm: Engine, tmp_path: Path) -> None:
    """At temperature 0: the texts are the stored ones, and the counters what expected.json says of the same completions."""
    exported = exported_head
    target = load_model(exported.target, "float32", torch.device("cpu"))
    kind = kind_of(exported.directory / "draft")
    draft = load_head(kind, exported.directory / "draft", TargetStates(target), exported.completions[0].vocabulary)
    settings = exported.config.evaluate.model_copy(update={"convention": "vllm", "max_gamma": exported.gamma})
    figures = examine_as_served(
        draft, exported.completions, GREEDY, settings, [exported.gamma], lambda done: None
    ).by_draft_length[exported.gamma]
    prompts = [item.prompt.tolist() for item in exported.completions]
    with served(exported.directory, vllm.interpreter, tmp_path / "log", "--no-enable-prefix-caching") as server:
        server.complete(prompts[:1], exported.config.generate.max_new_tokens)  # a warm-up
        before = server.counters(asdict(exported.expected.counters))
        tokens = server.complete(prompts, exported.config.generate.max_new_tokens)
        counted = difference(server.counters(asdict(exported.expected.counters)), before)
    per_position = [round(rate * figures.drafts) for rate in figures.accepted_per_position]
    predicted = {
        "drafts": round(figures.drafts),
        "draft_tokens": round(figures.draft_tokens or 0),
        "accepted": round(figures.accepted),
        "per_position": per_position,
    }
    print(json.dumps({"predicted": predicted, "counted": counted}))
    assert [] == divergences(exported, tokens)
    assert predicted == counted


def test_a_head_is_stale_after_a_fine_tuning_of_its_target(vllm: Engine, subject: Subject, tmp_path: Path) -> None:
    """No alarm while the target is served that it was trained for; then the fine-tuned one is, which has its hidden states in
    other places, and the watch finds it by the counters alone."""
    before = subject.target.parent / "target_before"
    training = {"max_steps": 200, "optimizer": "muon", "learning_rate": 1.6e-2}
    exported = at_temperature_0(_trained(before, "eagle3", tmp_path, **training))
    served = {
        name: (target, exported.directory / "draft") for name, target in (("own", before), ("new", subject.target))
    }
    found = look_at(vllm, exported, "eagle3", served, tmp_path, looks=40)
    tokens, state = sum(one for one, _ in found.counts["new"]) * exported.gamma, found.watch.findings.shown
    print(f"predicted {state.last}, counted {found.rates}, {tokens:.0f} draft tokens to the alarm")
    assert ("low", 39) == (state.verdict, len(found.counts["own"]))
    assert found.rates["new"] < found.rates["own"]
