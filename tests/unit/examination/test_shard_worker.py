"""An examination in parts, a shard each: its files, merged, are the examination of the whole set."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.acceptance.profile import PromptCounts, counts_json
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.examination import shard_worker
from pipeline.examination.completion_sets import CompletionSets, completion_sets
from pipeline.examination.examiner import Examiner
from pipeline.examination.shard_worker import (
    ExaminationWork,
    ExaminedShard,
    merged,
    open_examination,
    shards_to_examine,
)
from pipeline.examination.token_acceptance import FILE, TokenAcceptanceFile, read_token_acceptance
from pipeline.generation.completion_store import StoredCompletion, write_shard
from pipeline.speculation.settings import Sampling
from tests.fakes import TableModel, stored_completion, table_model

SETTINGS = EvaluateConfig(max_gamma=5, gamma=3, convention="vllm")
MODEL = table_model(8, 1)


def _row(number: int, split: str = "examination", greedy: bool = False) -> StoredCompletion:
    """A completion whose tokens are even, and 5 in the sixth one."""
    ids = 2 * np.random.default_rng(number).integers(0, 4, 14)
    ids[-1] = 5 if number == 6 else 0
    return stored_completion(
        ids[:4], ids[4:], name=f"p{number}", length=6, vocabulary=8, split=split, greedy=greedy, seed=number
    )


@pytest.fixture
def sets(tmp_path: Path) -> CompletionSets:
    """Two shards of the deployment's sampling, of which the second holds train completions too, and a greedy one."""
    (tmp_path / "completions").mkdir()
    (tmp_path / "parts").mkdir()
    for name, rows in {
        "shard-00000": [_row(number) for number in range(4)],
        "shard-00001": [*(_row(number) for number in range(4, 9)), _row(20, "train")],
        "shard-00002": [_row(number, greedy=True) for number in range(3)],
    }.items():
        write_shard(tmp_path / "completions", name, rows)
    return completion_sets(tmp_path / "completions", "examination", Sampling())


def _work(**changes: Any) -> ExaminationWork:
    usual: dict[str, Any] = {
        "settings": SETTINGS,
        "count_as": "vllm",
        "split": "examination",
    }
    return ExaminationWork(**(usual | changes))


def _made(sets: CompletionSets, draft: Any = None, **changes: Any) -> tuple[dict[str, list[ExaminedShard]], Path]:
    """The parts, each made by a worker of its own, the last one first; and where their files are."""
    source = SimpleNamespace(load=lambda device: draft or PlainDraft(MODEL, 8))
    parts, out = shards_to_examine(sets), sets.directory.parent / "parts"
    for part in [part for own in parts.values() for part in own][::-1]:
        open_examination(_work(draft=source, **changes), "cpu")(part, out, lambda done: None)
    return parts, out


def _rows(windows: Any) -> list[dict[str, Any]]:
    return [row for window in windows for row in counts_json(window)]


def test_parts_are_the_whole(sets: CompletionSets, monkeypatch: pytest.MonkeyPatch) -> None:
    """By set, in the order of the store, whoever was faster; a_t of each token of the deployed set."""
    parts, out = _made(sets)
    with TokenAcceptanceFile(out / FILE) as by_token:
        found = {name: _rows(merged(own, out, by_token if name == "deployed" else None)) for name, own in parts.items()}
    a: dict[str, Any] = {}
    for name, own in parts.items():
        examiner = Examiner(own[0].sampling, SETTINGS)
        assert found[name] == _rows(
            examiner.counts(
                PlainDraft(MODEL, 8),
                sets.read(own[0].sampling),
                on_acceptance=lambda rows, values: a.update(zip((row.id for row in rows), values, strict=True)),
            )
        )
        if name == "deployed":
            kept = read_token_acceptance(out, {f"p{number}" for number in range(30)})
            assert {name: pytest.approx(own.at(1)[:6], abs=1e-3) for name, own in a.items()} == kept

    assert {"deployed": [f"p{number}" for number in range(9)], "greedy": ["p0", "p1", "p2"]} == {
        name: [row["id"] for row in rows] for name, rows in found.items()
    }


def test_calls_are_counted_as_the_work_says(sets: CompletionSets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not always as the engine counts: dev completions have no tokens past their ends."""
    by = {}
    for count_as in ("vllm", "user"):
        parts, out = _made(sets, count_as=count_as)
        by[count_as] = _rows(merged(parts["deployed"], out, None))
        examiner = Examiner(Sampling(), SETTINGS, count_as=count_as)
        assert by[count_as] == _rows(examiner.counts(PlainDraft(MODEL, 8), sets.read(Sampling())))
    assert by["user"] != by["vllm"]


def test_windows_of_a_part_are_all_given_back(sets: CompletionSets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the last one, which is not full."""
    parts, out = _made(sets)
    whole = _rows(merged(parts["deployed"], out, None))
    monkeypatch.setattr(shard_worker, "WINDOW", 3)
    windows = list(merged(parts["deployed"], out, None))

    assert [3, 1, 3, 2] == [len(window) for window in windows]
    assert whole == _rows(windows)


def test_prompt_lookup_needs_no_draft(sets: CompletionSets, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, out = _made(sets, PromptLookup(SETTINGS.lookup_ngram))

    assert _rows(
        Examiner(Sampling(), SETTINGS).counts(PromptLookup(SETTINGS.lookup_ngram), sets.read(Sampling()))
    ) == _rows(merged(parts["deployed"], out, None))


def test_a_broken_draft_is_the_result_of_the_first_part_that_says_so(
    sets: CompletionSets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by the completion's place in the whole set, and not in its shard; whatever was made first."""
    table_PVW = MODEL.table_PVW.clone()
    table_PVW[:, 5] = float("nan")
    broken = replace(_row(6), tokens=np.array([5, 5, 5, 5, 5, 5, 5, 5, 5, 5], dtype=np.int32))
    write_shard(sets.directory, "shard-00001", [_row(4), broken, _row(6)])
    parts, out = _made(sets, PlainDraft(TableModel(table_PVW), 8))
    with pytest.raises(BrokenDraft, match="NaN logits on completion 5: its weights are damaged"):
        list(merged(parts["deployed"], out, None))


def test_out_of_memory_names_the_batch_of_tokens(sets: CompletionSets, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one that fits, which was tried with the longest completion."""

    class Small(TableModel):
        def __call__(self, input_ids: torch.Tensor, *args: Any, **options: Any) -> Any:
            if len(input_ids) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().__call__(input_ids, *args, **options)

    settings = EvaluateConfig(**{**SETTINGS.model_dump(), "batch_tokens": 64})
    with pytest.raises(UnderstudyError, match=r"^evaluate\.batch_tokens = 64: out of memory; 16 fits"):
        _made(sets, PlainDraft(Small(MODEL.table_PVW), 8), settings=settings)
    assert [] == [path.name for path in (sets.directory.parent / "parts").iterdir() if path.suffix == ".json"]


def test_an_error_that_is_not_the_drafts_ends_the_work(sets: CompletionSets, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not become a draft without figures, which the gate would refuse."""

    def fail(*_: Any, **__: Any) -> list[PromptCounts]:
        raise UnderstudyError("its stored prompt has no token")

    monkeypatch.setattr(Examiner, "counts", fail)
    with pytest.raises(UnderstudyError, match="has no token"):
        _made(sets)
