"""The examiner: windows, several drafts at once, and drafts or completions that cannot be examined."""

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.acceptance.profile import PromptCounts, counts_json
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.examination.examiner import Examiner
from pipeline.examination.windows import tally_counts
from pipeline.generation.completion_store import StoredCompletion
from pipeline.speculation.settings import Sampling
from pipeline.store.row_files import RowFile
from tests.fakes import stored_completion, table_model, tiny_llama
from tests.lookup_walk import walk

SETTINGS = EvaluateConfig(max_gamma=5, gamma=3, convention="vllm")
EXAMINER = Examiner(Sampling(), SETTINGS)
LOOKUP = PromptLookup(SETTINGS.lookup_ngram)


@pytest.fixture
def rows() -> list[StoredCompletion]:
    generator, made = np.random.default_rng(2), []
    for number in range(11):
        length = int(generator.integers(2, 30))
        ids = generator.integers(0, 8, 6 + length + 4)
        made.append(
            stored_completion(ids[:6], ids[6:], name=f"p{number}", length=length, vocabulary=8, domain="ab"[number % 2])
        )
    return made


def _all(windows: Iterator[list[PromptCounts]]) -> list[PromptCounts]:
    return [item for window in windows for item in window]


def test_windows_change_no_count(rows: list[StoredCompletion], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose logits do not depend on the batch gives the same counts, in the order stored, whatever the window,
    and no more than a window is read ahead."""
    model, read = table_model(8, 1), 0

    def source() -> Iterator[StoredCompletion]:
        nonlocal read
        for row in rows:
            read += 1
            yield row

    whole = _all(EXAMINER.counts(PlainDraft(model, 8), rows))
    monkeypatch.setattr("pipeline.examination.windows.WINDOW", 4)
    parts = []
    for number, window in enumerate(EXAMINER.counts(PlainDraft(model, 8), source()), 1):
        assert min(4 * number, 11) == read
        parts += window
    assert [row.id for row in rows] == [item.id for item in parts]
    for one, other in zip(whole, parts, strict=True):
        assert one.accepted == pytest.approx(other.accepted, rel=1e-12)
        assert one.rounds == pytest.approx(other.rounds, rel=1e-12)
    assert _all(EXAMINER.counts(LOOKUP, rows)) == _all(EXAMINER.counts(LOOKUP, iter(rows)))


def test_a_window_ends_where_a_shard_does(rows: list[StoredCompletion], monkeypatch: pytest.MonkeyPatch) -> None:
    """So what is in a batch, which decides the last digits, does not depend on which process examines which shards."""
    monkeypatch.setattr("pipeline.examination.windows.WINDOW", 4)
    model = tiny_llama(3, vocabulary=8, dtype=torch.float32)
    stored = [replace(row, shard="ab"[number > 4]) for number, row in enumerate(rows)]
    found = list(EXAMINER.counts(PlainDraft(model, 8), iter(stored)))
    apart = [*EXAMINER.counts(PlainDraft(model, 8), stored[:5]), *EXAMINER.counts(PlainDraft(model, 8), stored[5:])]

    assert [4, 1, 4, 2] == [len(window) for window in found]
    assert [counts_json(window) for window in apart] == [counts_json(window) for window in found]
    dev = replace(EXAMINER, count_as="user").summary(PlainDraft(model, 8), stored)
    accepted, tokens = (sum(getattr(row, name) for part in found for row in part) for name in ("accepted", "tokens"))
    assert dev.acceptance == pytest.approx(accepted / tokens)


def test_batches_examined_apart_give_the_same_to_the_last_digit(
    rows: list[StoredCompletion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As several processes do, each some of the groups: also where windows end between them."""
    monkeypatch.setattr("pipeline.examination.windows.WINDOW", 7)
    model = tiny_llama(3, vocabulary=8, dtype=torch.float32)
    examiner = replace(EXAMINER, count_as="user").in_batches(60)
    groups = examiner.groups(rows)
    found = dict[int, Any]()
    for part in (groups[::2], groups[1::2], []):
        numbers = sorted(number for group in part for number in group)
        found |= dict(zip(numbers, examiner.acceptance_of(PlainDraft(model, 8), rows, numbers), strict=True))

    assert len(groups) > 3
    assert list(range(len(rows))) == sorted(number for group in groups for number in group)
    assert examiner.summary(PlainDraft(model, 8), rows) == examiner.summary_of(
        rows, [found[number] for number in range(len(rows))]
    )


def test_several_drafts_and_a_damaged_one(rows: list[StoredCompletion], monkeypatch: pytest.MonkeyPatch) -> None:
    """The window in which a draft fails has its reason, later ones leave it out; the others are counted to the end.
    Where all are broken, reading stops."""
    monkeypatch.setattr("pipeline.examination.windows.WINDOW", 4)
    one, two, bad = (table_model(8, seed) for seed in (1, 2, 3))
    bad.table_PVW[:, int(rows[6].prompt[-1])] = math.nan
    rows[:4] = [stored_completion([1], [2], name=f"q{n}", length=1, vocabulary=8) for n in range(4)]
    if int(rows[6].prompt[-1]) in (1, 2):
        rows[:4] = [stored_completion([4], [5], name=f"q{n}", length=1, vocabulary=8) for n in range(4)]
    examiner = Examiner(Sampling(), SETTINGS.model_copy(update={"convention": "user"}))
    found = list(
        examiner.counts_of_all({"one": PlainDraft(one, 8), "bad": PlainDraft(bad, 8), "two": PlainDraft(two, 8)}, rows)
    )

    assert [["one", "bad", "two"], ["one", "bad", "two"], ["one", "two"]] == [list(window) for window in found]
    assert isinstance(found[0]["bad"], list)
    assert isinstance(found[1]["bad"], BrokenDraft)
    for name, model in (("one", one), ("two", two)):
        alone = _all(examiner.counts(PlainDraft(model, 8), rows))
        assert alone == [item for window in found for item in window[name]]
    assert 2 == len(list(examiner.counts_of_all({"bad": PlainDraft(bad, 8)}, rows)))
    with pytest.raises(BrokenDraft, match=r"on completion [4-7]: its weights are damaged"):
        list(examiner.counts(PlainDraft(bad, 8), rows))


@pytest.mark.parametrize(
    ("change", "what"), [({"length": 0}, "completion"), ({"prompt": np.zeros(0, np.int32)}, "prompt")]
)
def test_an_empty_completion_is_named(rows: list[StoredCompletion], change: dict[str, Any], what: str) -> None:
    """A stored completion, or a prompt, without a token: one line that names it, from the draft and from the lookup."""
    rows[3] = replace(rows[3], **change)
    for windows in (EXAMINER.counts(PlainDraft(table_model(8, 1), 8), rows), EXAMINER.counts(LOOKUP, rows)):
        with pytest.raises(UnderstudyError, match=f"prompt p3: its stored {what} has no token; delete"):
            list(windows)


def test_prompt_lookup_counts_past_the_end(rows: list[StoredCompletion]) -> None:
    """Under the convention that never clips, tokens past the end are compared with what the target generated there; where nobody
    knows them, that is said."""
    for item, counts in zip(rows, _all(EXAMINER.counts(LOOKUP, rows)), strict=True):
        prompt, tokens = item.prompt.tolist(), item.tokens.tolist()
        completion, lookahead = tokens[: item.length], tokens[item.length :]
        expected = [walk(prompt, completion, gamma, 3, CONVENTIONS["vllm"], lookahead) for gamma in range(1, 6)]
        assert [one.accepted for one in expected] == counts.accepted_drafts
        assert [len(one.rounds) for one in expected] == counts.rounds
        assert expected[2].accepted + expected[2].rejected == counts.examined
    blind = [replace(item, tokens=item.tokens[: item.length]) for item in rows]
    with pytest.raises(UnderstudyError, match="needs 4 target tokens past the end and 0 are stored"):
        _all(EXAMINER.counts(LOOKUP, blind))


def test_memory_does_not_grow_with_the_completions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Peak memory, numpy's arrays included, is the same for 12 windows as for 3, within a tenth."""
    monkeypatch.setattr("pipeline.examination.windows.WINDOW", 8)
    model = table_model(8, 1)

    def completions(count: int) -> Iterator[StoredCompletion]:
        for number in range(count):
            yield stored_completion(
                [1, 2], [number % 8, 3, 4, 5, 6, 7] * 4, name=f"p{number:04d}", length=20, vocabulary=8
            )

    def peak(windows: int) -> int:
        tracemalloc.start()
        with RowFile(tmp_path / "a.json", ["drafted", "looked up"]) as lists:
            drafted = tally_counts(
                EXAMINER.counts(PlainDraft(model, 8), completions(8 * windows)), 5, lists, "drafted", ()
            )
            tally_counts(EXAMINER.counts(LOOKUP, completions(8 * windows)), 5, lists, "looked up", ())
            lists.write(asdict(drafted.figures(0.95)), "prompts")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1)  # what is set up once
    assert 1.1 * peak(3) > peak(12)
