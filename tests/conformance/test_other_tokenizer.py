"""A draft with another tokenizer against engines' own counters: as vLLM maps its tokens (TLI), and as an exported transplant.

Where a_t is 0 or 1 no count has a chance in it. At temperature 1 the test of the text has one of 6 in 100,000 for each
draft length.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.watch import WatchConfig
from pipeline.drafts.loading import load_mapped
from pipeline.drafts.plain import PlainDraft
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.progress import Progress
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, load_run
from pipeline.watch.acting import Watch, watch_of
from tests.conformance.cases import check_trace, exact_row, label, require_exact
from tests.conformance.engines import Engine, vllm_job
from tests.conformance.exported import CONVERTER, Exported, export_draft, trained
from tests.conformance.other_tokenizer import write_other_draft
from tests.conformance.served_export import check_served
from tests.conformance.served_vllm import ServedVllm
from tests.conformance.subject import TOKENS, Subject
from tests.conformance.test_export_llama_cpp import check_served as check_served_by_llama_cpp
from tests.conformance.test_heads_vllm import config_of
from tests.conformance.test_watch import at_temperature_0

CPU = torch.device("cpu")
_STEPS = 220  # of the quickstart's base draft
_NOW = 1.7956e9


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The draft as it is published: with its own tokenizer."""
    out = tmp_path_factory.mktemp("other") / "draft"
    write_other_draft(out, _STEPS)
    return out


@pytest.fixture(scope="module")
def mapped(subject: Subject, other: Path) -> Subject:
    """As vLLM serves it."""
    tokenizer = load_tokenizer(subject.tokenizer)
    draft = load_mapped(other, tokenizer, subject.target_model.config.vocab_size, "float32", CPU, False)
    return replace(subject, draft=other, head=draft)


@pytest.mark.parametrize("gamma", [1, 5])
def test_mapped_tokens_are_predicted_exactly(
    vllm: Engine, mapped: Subject, rows: list[dict[str, Any]], gamma: int
) -> None:
    """Drafts, accepted and per-position counts are identical at temperature 0 and 1."""
    job = vllm_job(
        mapped.target,
        mapped.draft,
        [prompt.tolist() for prompt in mapped.prompts],
        TOKENS,
        [(0.0, 0), (1.0, 0)],
        gamma=gamma,
        speculative={"use_heterogeneous_vocab": True},
    )
    result = vllm.run(job)
    for call in result["calls"]:
        check_trace(call)
        row = label(result, "repaired, a draft with another tokenizer", call["temperature"], "greedy", gamma)
        row |= exact_row(mapped, call, gamma)
        rows.append(row)
        print(json.dumps({name: row[name] for name in ("temperature", "predicted", "counted", "identical")}))
        require_exact(row)


@pytest.fixture(scope="module")
def run(subject: Subject, other: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, Store]:
    """A run that makes a transplant of the draft and trains it."""
    config = config_of(subject.target, {"source": str(other), "vocabulary": "target"}, optimizer="muon")
    return trained(config, tmp_path_factory.mktemp("transplant"))


def test_an_exported_transplant_is_served_by_vllm(vllm: Engine, run: tuple[RunRecord, Store], tmp_path: Path) -> None:
    """From its launch file, as any other draft."""
    exported = export_draft("one", *run, "vllm", tmp_path / "served", "--variant", "unquantized")
    check_served(exported, _loaded(exported), vllm, tmp_path)


def test_an_exported_transplant_is_served_by_llama_cpp(
    llama_cpp: Path, gguf_target: Path, run: tuple[RunRecord, Store], tmp_path: Path
) -> None:
    """As any other draft."""
    words = ("--variant", "unquantized")
    beside = export_draft("one", *run, "transformers", tmp_path / "transformers", *words)
    exported = export_draft("one", *run, "llama.cpp", tmp_path / "served", "--converter", str(CONVERTER), *words)
    check_served_by_llama_cpp(exported, gguf_target, _loaded(beside).model, llama_cpp, tmp_path, 5)


def test_an_untrained_draft_is_served_and_watched(vllm: Engine, other: Path, subject: Subject, tmp_path: Path) -> None:
    """As vLLM maps its tokens, from the launch file of an export of the directory; the watch finds what the file expects."""
    store = Store(Path(os.environ.get("CONFORMANCE_STORE", ".understudy")))
    record = load_run(store, subject.run)
    assert record is not None
    words = ("--run", subject.run)
    exported = at_temperature_0(export_draft(str(other), record, store, "vllm", tmp_path / "served", *words))
    settings = json.loads((exported.directory / "speculative-config.json").read_text())
    assert (True, "greedy") == (settings["use_heterogeneous_vocab"], settings["draft_sample_method"])
    draft = load_mapped(
        exported.directory / "draft",
        load_tokenizer(subject.tokenizer),
        subject.target_model.config.vocab_size,
        "float32",
        CPU,
        False,
    )
    watch = _Watch(exported, tmp_path)
    counted = check_served(exported, draft, vllm, tmp_path, watch.look)
    found = watch.watching.findings.shown
    print(f"expected {watch.expected}, the watch read {found.last}")
    assert not found.has_drift
    assert counted["accepted"] > 0


class _Watch:
    """What `understudy watch` sees of a server, by an exported directory."""

    def __init__(self, exported: Exported, place: Path) -> None:
        self._exported, self._place, self._looks = exported, place, 0
        self.watching: Watch

    def look(self, server: ServedVllm) -> None:
        if not self._looks:
            expected = str(self._exported.directory)
            watch = WatchConfig.model_validate({"endpoints": [server.url], "engine": "vllm", "expected": expected})
            config = self._exported.config.model_copy(update={"watch": watch})
            self.watching = watch_of(config, Store(self._place / "store"), "pair-draft", _NOW, Progress())
        self._looks += 1
        self.watching.look(_NOW + 300 * self._looks)

    @property
    def expected(self) -> list[float]:
        return self._exported.expected.deployed.by_draft_length[self._exported.gamma].accepted_per_position


def _loaded(exported: Exported) -> PlainDraft:
    model = load_model(exported.directory / "draft", "float32", CPU)
    return PlainDraft(model, exported.completions[0].vocabulary)
