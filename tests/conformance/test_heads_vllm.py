"""EAGLE-3 and Medusa heads against vLLM's own counters: rounds, drafted and accepted tokens, by place.

Random heads have the target's embedding and output layer. That suffices: a head whose states, positions or keys were others would
hit other tokens. At temperature 0 no count has a chance in it. At temperature 1, with greedy drafting, the rounds of the engine's
own texts have none either; tokens that are accepted past the end of a text have, and so has the text. Chance of a false alarm of
the three cases there: accepted tokens within 3 standard errors, five places and two other figures within 4, so below 1 in 100.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pipeline.acceptance.examine import examine
from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds
from pipeline.config.loading import load_config
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.head_config import kind_of
from pipeline.drafts.loading import load_head
from pipeline.drafts.made_heads import save_head
from pipeline.errors import BrokenDraft
from pipeline.models.loading import load_model
from pipeline.registry.registry import registered_name
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.store.artifacts import Store
from pipeline.watch.own_requests import OwnRequests
from pipeline.watch.reading import EngineReader
from tests.conformance.cases import stack
from tests.conformance.engines import Engine, vllm_job
from tests.conformance.exported import PROMPTS, Exported, export_draft, trained
from tests.conformance.served_export import check_served, counted_completions
from tests.conformance.served_vllm import ServedVllm, served
from tests.conformance.servers import Server, difference
from tests.conformance.subject import Subject
from tests.conformance.test_watch import at_temperature_0, look_at
from tests.conformance.texts import continue_texts, log_p_test, token_statistics
from tests.conformance.texts import text as text_of
from tests.conformance.vllm_repair import write_plugin
from tests.fakes import family_model, stored_completion, tiny_tokenizer
from tests.heads import eagle3_draft, medusa_draft, write_eagle3, write_medusa
from tests.integration.in_process import call

GAMMAS = (1, 3, 5)
TOKENS = 96
VOCABULARY = 64
SERVED = 100  # prompts at temperature 1, for which expected.json has an interval
CONTINUATIONS = 16  # of each text, past its end
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
    out = tmp_path_factory.mktemp("qwen3") / "target"
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "head_dim": 32, "num_hidden_layers": 4}
    model = family_model("Qwen3", torch.float32, **sizes, max_position_embeddings=256)
    model.lm_head.weight.data *= 20  # sharp: else a head hits few tokens at temperature 1
    model.save_pretrained(out)
    tiny_tokenizer(VOCABULARY).save_pretrained(out)
    generator = np.random.default_rng(1)
    words = [generator.integers(3, VOCABULARY, size) for size in generator.integers(8, 40, 400)]
    rows = [{"prompt": " ".join(f"w{word}" for word in one)} for one in words]
    (out.parent / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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
    lengths_B = np.array([text.length for text in texts])
    a_BTG = stack([one.at(gamma).astype(float) for one in found], lengths_B, gamma)
    counted = expected_rounds(a_BTG, lengths_B, gamma, CONVENTIONS["vllm"])
    rounds, per_place = counted.rounds_B.sum(), counted.accepted_BG.sum(0)
    job = vllm_job(
        where, written, prompts, TOKENS, [(0.0, 0)], method=method, gamma=gamma, options={"max_model_len": 256}
    )
    (call,) = vllm.run(job)["calls"]
    assert [text.tokens[: text.length] for text in texts] == call["tokens"]
    counters = call["counters"]
    predicted = {"drafts": rounds, "proposed": gamma * rounds, "accepted": per_place.sum()}
    assert predicted | {"per_position": per_place.tolist()} == counters
    assert per_place[0] > 0


@pytest.fixture(scope="module", params=["eagle3", "medusa", "qwen3, half of the vocabulary"])
def exported_head(
    request: pytest.FixtureRequest, subject: Subject, qwen3: Path, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    """Trained by a run; from nothing, or a head of a Qwen3 layer with a part of the vocabulary trained further."""
    place = tmp_path_factory.mktemp("exported")
    if request.param in ("eagle3", "medusa"):
        return _trained(subject.target, {"source": "target", "head": {"kind": request.param}}, place)
    head, _ = _part_of_the_vocabulary(load_model(qwen3, "float32", torch.device("cpu")), place / "head")
    return _trained(qwen3, {"source": str(head)}, place)


# With few prompts and steps most rules are inconclusive.
_LENIENT = {
    "min_prompts_per_domain": 8,
    "beats_prompt_lookup": False,
    "min_speedup": 0,
    "min_gain": 0,
    "domain_margin": 0.5,
    "segment_margin": None,
    "length_margin": None,
}


def config_of(target: Path, draft: dict[str, Any], **training: Any) -> dict[str, Any]:
    """Of a run that trains a draft of the target, in a few steps unless `training` says more."""
    return {
        "name": "trained",
        "pair": {
            "target": {"source": str(target), "dtype": "float32"},
            "draft": draft | {"dtype": "float32"},
        },
        "corpus": {
            "sources": [{"path": str(target.parent / "prompts.jsonl"), "limit": 400}],
            "chat_template": False,
            "splits": {"train": 0.6, "dev": 0.1, "examination": 0.3},
        },
        "generate": {"max_new_tokens": 64, "lookahead": 4, "batch": 64},
        "evaluate": {"max_gamma": 5, "draft_sampling": "greedy", "speed": {"turns": 0}},
        "distill": {"max_steps": 60, "learning_rate": 4e-3} | training,
        "gate": _LENIENT,
    }


def _trained(target: Path, draft: dict[str, Any], place: Path, promoted: bool = False, **training: Any) -> Exported:
    """Such a head, exported by name. `promoted`: it is champion in the store's own registry."""
    record, store = trained(config_of(target, draft, **training), place, promoted)
    return export_draft("one", record, store, "vllm", place / "served", "--variant", "unquantized", prompts=SERVED)


def test_an_exported_head_is_served_from_its_launch_file(exported_head: Exported, vllm: Engine, tmp_path: Path) -> None:
    """At temperature 0: the texts are the stored ones, and the counters what expected.json says of the same completions."""
    exported = replace(exported_head, completions=exported_head.completions[:PROMPTS])
    _, draft = _loaded(exported)
    check_served(exported, draft, vllm, tmp_path)


def test_an_exported_head_at_temperature_1(exported_head: Exported, vllm: Engine, tmp_path: Path) -> None:
    """Served from its launch file too, by vLLM with the repair, and greedy drafting: rounds are those of the engine's own texts.
    Accepted tokens are within 3 standard errors, by place within 4; what is accepted past the end of a text depends on tokens
    that the engine does not show. The texts are samples of the target, and the mean acceptance length is what expected.json says
    of the stored ones."""
    exported, gamma = exported_head, exported_head.gamma
    target, draft = _loaded(exported)
    prompts = [item.prompt for item in exported.completions]
    log, path = tmp_path / "log", {"PYTHONPATH": str(write_plugin(tmp_path / "plugin"))}
    with served(exported.directory, vllm.interpreter, log, "--no-enable-prefix-caching", environment=path) as server:
        asked = [prompt.tolist() for prompt in prompts]
        server.complete(asked[:1], exported.config.generate.max_new_tokens)  # a warm-up
        tokens, counted = counted_completions(server, exported, asked, temperature=1.0)
    own = [text_of(prompt, found, len(found)) for prompt, found in zip(prompts, tokens, strict=True)]
    lengths_B, counts = np.array([item.length for item in own]), []
    for seed in range(CONTINUATIONS):
        longer = continue_texts(target, own, gamma - 1, Sampling(), exported.completions[0].vocabulary, seed)
        found = examine({"head": draft}, longer, Sampling(), GREEDY, 8192, gamma)["head"]
        assert not isinstance(found, BrokenDraft)
        a_BTG = stack([one.at(gamma).astype(float) for one in found], lengths_B, gamma)
        counts.append(expected_rounds(a_BTG, lengths_B, gamma, CONVENTIONS["vllm"]))
    accepted_MBR = np.stack([np.column_stack([one.accepted_BG.sum(1), one.accepted_BG]) for one in counts])
    predicted_R = accepted_MBR.mean(0).sum(0)
    error_R = (accepted_MBR.var(0, ddof=1).sum(0) * (1 + 1 / CONTINUATIONS)) ** 0.5
    difference_R = np.array([counted["accepted"], *counted["per_position"]]) - predicted_R
    of_the_text = log_p_test(own, token_statistics(target, own))
    figures = exported.expected.deployed.by_draft_length[gamma]
    bounds, length = figures.fresh_prompts[SERVED], 1 + counted["accepted"] / counted["drafts"]
    assert bounds.low is not None
    assert bounds.high is not None
    mean, error = figures.mean_acceptance_length.value, (bounds.high - bounds.low) / 2 / 1.96
    shown = {
        "rounds": [float(counts[0].rounds_B.sum()), counted["drafts"]],
        "accepted": [predicted_R.tolist(), [counted["accepted"], *counted["per_position"]], error_R.tolist()],
        "log p, expected, standard errors": of_the_text,
        "mean acceptance length, expected.json, standard error": [length, mean, error],
    }
    print(json.dumps(shown))
    assert "issue 55005" in log.read_text()
    assert counts[0].rounds_B.sum() == counted["drafts"]
    assert (np.abs(difference_R) <= np.array([3.0, *[4.0] * gamma]) * error_R + 1e-9).all()
    assert abs(of_the_text[2]) < 4
    assert abs(length - mean) < 4 * error


def _loaded(exported: Exported) -> tuple[Any, LoadedDraft]:
    """The target, and the head as it was exported."""
    target, where = load_model(exported.target, "float32", torch.device("cpu")), exported.directory / "draft"
    return target, load_head(kind_of(where), where, TargetStates(target), exported.completions[0].vocabulary)


def test_a_head_is_stale_after_a_fine_tuning_of_its_target(vllm: Engine, subject: Subject, tmp_path: Path) -> None:
    """No alarm while the target is served that it was trained for; then the fine-tuned one is, which has its hidden states in
    other places, and the watch finds it by the counters alone."""
    before = subject.target.parent / "target_before"
    training: dict[str, Any] = {"max_steps": 200, "optimizer": "muon", "learning_rate": 1.6e-2}
    exported = at_temperature_0(
        _trained(before, {"source": "target", "head": {"kind": "eagle3"}}, tmp_path, **training)
    )
    served = {
        name: (target, exported.directory / "draft") for name, target in (("own", before), ("new", subject.target))
    }
    found = look_at(vllm, exported, "eagle3", served, tmp_path, looks=40)
    tokens, state = sum(one for one, _ in found.counts["new"]) * exported.gamma, found.watch.findings.shown
    print(f"predicted {state.last}, counted {found.rates}, {tokens:.0f} draft tokens to the alarm")
    assert ("low", 39) == (state.verdict, len(found.counts["own"]))
    assert found.rates["new"] < found.rates["own"]


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_the_canary_tells_a_stale_head(vllm: Engine, subject: Subject, tmp_path: Path, kind: str) -> None:
    """By the counts of each answer and by the counters alone; the counts of the champion are equal to the unit. The watch has
    none of the canary's requests among those of traffic, and all of these."""
    exported = _trained(subject.target, {"source": "target", "head": {"kind": kind}}, tmp_path, promoted=True)
    stale = tmp_path / "stale"
    shutil.copytree(exported.directory / "draft", stale)
    tensors = load_file(stale / "model.safetensors")
    for name in tensors:
        if name.endswith(("fc.weight", "0.0.linear.weight", "blocks.0.layers.0.weight")):
            # Not by their spread: blocks of Medusa begin at 0, and change little in a few steps.
            noise = torch.randn(tensors[name].shape, generator=torch.manual_seed(0))
            tensors[name] += noise / tensors[name].shape[-1] ** 0.5
    save_file(tensors, stale / "model.safetensors", metadata={"format": "pt"})
    own = exported.directory / "draft"
    for more, idle in ((("--per-request-spec-decode-metrics", "summary"), False), ((), True)):
        for draft, code, verdict in ((own, 0, "as_examined"), (stale, 3, "not_as_examined")):
            settings = {"method": kind, "model": str(draft), "num_speculative_tokens": exported.gamma}
            arguments = ("--speculative-config", json.dumps(settings), "--no-enable-prefix-caching", *more)
            with Server(vllm.interpreter, exported.target, arguments, tmp_path / "log") as server:
                found = _canary(exported, server.url, tmp_path, idle)
                assert (code, verdict, "as_examined") == (found[0], *(one["verdict"] for one in found[1:]))
                if not idle:
                    _check_traffic(exported, server.url, tmp_path)


def _watched(exported: Exported, url: str, place: Path, idle: bool) -> Path:
    watch = {
        "endpoints": [url],
        "engine": "vllm",
        "expected": str(exported.directory),
        "canary": {"prompts": 8, "idle": idle},
    }
    path = place / "watched.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load((place / "config.yaml").read_text()) | {"watch": watch}))
    return path


def _canary(exported: Exported, url: str, place: Path, idle: bool) -> tuple[int, Any, Any]:
    """The exit code, and the answers about the draft and the target."""
    words = ["canary", str(_watched(exported, url, place, idle)), "--store", str(place / "store"), "--json"]
    ended, out, err = call(words, place, dict(os.environ))
    print(out, err)
    found = json.loads(out)
    if found["draft"]["verdict"] == "as_examined":
        for one in found["endpoints"][0]["draft"]["requests"]:
            assert (one["ties"], one["beyond"]) == ([], [])
    return ended, found["draft"], found["target"]


def _check_traffic(exported: Exported, url: str, place: Path) -> None:
    config, store = load_config(_watched(exported, url, place, idle=False)), Store(place / "store")
    reader = EngineReader(config.watch, "vllm", OwnRequests(store, registered_name(config)))
    reader.read(1.0)
    prompts, engine = [item.prompt.tolist() for item in exported.completions[:8]], ServedVllm(url, "target")
    names, counted = asdict(exported.expected.counters), 0
    for _ in range(2):
        before = engine.counters(names)
        engine.complete(prompts, 16)
        counted += difference(engine.counters(names), before)["drafts"]
        _canary(exported, url, place, idle=False)
    observation, _ = reader.read(2.0)
    assert observation.counts is not None
    assert (counted, ()) == (observation.counts.drafts, observation.problems)
