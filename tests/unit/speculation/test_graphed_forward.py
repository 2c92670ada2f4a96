"""Recorded passes, by a recorder that computes them again on the CPU: CUDA graphs are tried on a GPU (`make test-gpu`)."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.examination.step_timing import RoundsInTurn
from pipeline.speculation.batch import Request
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.decoder import Decoder, Decoding
from pipeline.speculation.graphed_forward import GraphedForward, Results, _rounded, _rounded_slots
from pipeline.speculation.hidden_states import NORMED, StateRecorder
from pipeline.speculation.llama_forward import LlamaForward
from pipeline.speculation.settings import Sampling
from tests.fakes import decoder_of, largest_gap, tiny_llama, tiny_pair

VOCABULARY = 32


class Counts:
    """Of all recorders of a forward."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def recorder(self) -> "Recorder":
        return Recorder(self)


class Recorder:
    """Writes where the recorded pass did, as a graph does: nothing at other addresses. As torch's memory of graphs, it takes no
    further one once all are gone."""

    def __init__(self, counts: Counts) -> None:
        self._counts, self._made = counts, list["weakref.ref[Callable[[], None]]"]()

    def __call__(self, compute: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
        assert not self._made or any(one() is not None for one in self._made), "the memory of graphs is gone"
        self._counts.recorded += 1
        results, counts = tuple(torch.full_like(result, torch.nan) for result in compute()), self._counts

        def run() -> None:
            counts.replayed += 1
            for result, computed in zip(results, compute(), strict=True):
                result.copy_(computed)

        self._made.append(weakref.ref(run))
        return results, run


def graphed(model: torch.nn.Module) -> tuple[GraphedForward, Counts]:
    inner, counts = LlamaForward.of(model, VOCABULARY), Counts()
    assert inner is not None
    return GraphedForward(inner, counts.recorder), counts


def decoded(decoder: Decoder, count: int = 5, limit: int = 40) -> list[list[int]]:
    requests = [
        Request(list(range(1, 3 + 4 * number % 11)), limit - 3 * number, number, lookahead=2) for number in range(count)
    ]
    return [one.tokens for one in decoder.decode(requests)]


def with_graphs(decoder: Decoder, target: torch.nn.Module, draft: torch.nn.Module) -> list[Counts]:
    decoder.target, of_target = graphed(target)
    assert isinstance(decoder.draft, PlainDraft)
    decoder.draft.__dict__["forward"], of_draft = graphed(draft)
    return [of_target, of_draft]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_recorded_passes_are_the_model_s_own(dtype: torch.dtype) -> None:
    """On ragged rows, of which some are dropped, each pass twice and more: by the proof of a forward."""
    model = tiny_llama(1, dtype=dtype)
    forward, recorder = graphed(model)
    for _ in range(3):
        assert largest_gap(model, forward, VOCABULARY) < {torch.float64: 1e-10, torch.float32: 1e-4}[dtype]
    assert recorder.replayed > recorder.recorded > 1


@torch.inference_mode()
def test_hidden_states_are_recorded_too() -> None:
    """Of rows at unequal slots, in a pass as it comes and in one that is replayed: the model's own modules' states."""
    model, layers = tiny_llama(1, layers=3), (0, 2, 3, NORMED)
    inner, counts = LlamaForward.of(model, VOCABULARY, layers), Counts()
    assert inner is not None
    for forward in (inner, GraphedForward(inner, counts.recorder)):
        text_BT = torch.arange(16).reshape(2, 8)
        with StateRecorder(model, layers).recording() as passes:
            model(text_BT)
        caches = forward.allocate(2, 16)
        forward.forward(text_BT[:, :6], [0, 0], caches, 1)
        for _ in range(3):
            forward.forward(torch.stack([text_BT[0, 4:6], text_BT[1, 2:4]]), [4, 2], caches, 1)
            for layer in layers:
                expected = torch.stack([passes[0][layer][0, 4:6], passes[0][layer][1, 2:4]])
                torch.testing.assert_close(forward.features[layer], expected)
    assert counts.replayed > 0


def test_states_that_nobody_reads_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 36 layers of a prefill of 64 prompts is 268 MB."""
    model, made, alive = tiny_llama(1, layers=6), list["weakref.ref[torch.Tensor]"](), list[int]()
    forward = LlamaForward.of(model, VOCABULARY)
    assert forward is not None
    for layer in forward.layers:

        def add_to(*args: Any, inner: Any = layer.down.add_to) -> torch.Tensor:
            alive.append(sum(one() is not None for one in made))
            result: torch.Tensor = inner(*args)
            made.append(weakref.ref(result))
            return result

        monkeypatch.setattr(layer.down, "add_to", add_to)
    forward.forward(torch.arange(6)[None], [0], forward.allocate(1, 8), 1)
    assert (6, 0) == (len(alive), max(alive))


def test_a_decode_is_what_it_is_without() -> None:
    """Rows of different ends, which leave the batch, in one decode after another."""
    target, draft = tiny_pair(0, 0.02)
    plain, recorded = (decoder_of(target, draft, 3, Sampling()) for _ in range(2))
    recorders = with_graphs(recorded, target, draft)

    for count, limit in ((5, 40), (2, 30), (7, 60), (3, 20)):
        assert decoded(plain, count, limit) == decoded(recorded, count, limit)
    assert all(counts.replayed > 3 * counts.recorded > 0 for counts in recorders)


def test_two_decodes_at_a_time_have_caches_of_their_own() -> None:
    target, draft = tiny_pair(0, 0.02)
    decoder = decoder_of(target, draft, 3, Sampling())
    with_graphs(decoder, target, draft)
    requests = [[Request([1, 2, 3], 30, seed)] for seed in (1, 2)]
    alone = [decoder.decode(some)[0].tokens for some in requests]

    both = [Decoding(decoder, some) for some in requests]
    for rounds in zip(*both, strict=False):
        assert 2 == len(rounds)
    for one in both:
        list(one)
    assert alone == [one.completions[0].tokens for one in both]


def test_caches_are_kept_and_emptied() -> None:
    """What an earlier decode left may be no number, and hidden slots are multiplied by 0."""
    forward, _ = graphed(tiny_llama(1))
    first = forward.allocate(4, 100)
    kept = first.kept
    with torch.inference_mode():
        for layer in kept.caches.layers:
            layer.fill_(torch.nan)
    del first
    again = forward.allocate(3, 50)
    assert again.kept is kept
    assert not any(bool(layer[:3, :50].isnan().any()) for layer in kept.caches.layers)
    assert forward.allocate(3, 50).kept is not kept  # a decode uses them
    few = GraphedForward(forward._inner, Counts().recorder)
    for rows, capacity, same in ((4, 100, False), (4, 101, False), (3, 90, True), (2, 90, False), (2, 60, True)):
        before = few._kept
        assert same == (few.allocate(rows, capacity).kept is before)  # more tokens, or half the rows, are other caches


def test_recorded_passes_outlast_a_decoding_that_was_not_ended() -> None:
    """Rounds are timed in one decoding after another, which begin anew where the limit is reached."""
    target, draft = tiny_pair(0, 0.02)
    decoder = decoder_of(target, draft, 4, Sampling())
    counts = with_graphs(decoder, target, draft)
    rounds = RoundsInTurn(decoder, Request([1, 2, 3], 30, 0), 4)
    for _ in range(3):
        for length in (4, 0, 2):
            rounds.seconds(length, 12)
    recorded = [one.recorded for one in counts]
    for length in (4, 0, 2):
        rounds.seconds(length, 12)
    assert recorded == [one.recorded for one in counts]
    assert all(0 < one.recorded < 8 for one in counts)


def test_wide_passes_and_those_seen_once_are_not_recorded() -> None:
    forward, recorder = graphed(tiny_llama(1))
    caches = forward.allocate(2, 200)
    for width, expected in ((1, 0), (1, 1), (1, 1), (2, 1), (2, 2), (80, 2), (80, 2)):
        forward.forward(torch.ones(2, width, dtype=torch.long), [0, 3], caches, 1)
        assert expected == recorder.recorded


def test_logits_stay_what_they_were_at_the_next_pass() -> None:
    """A replay writes where the last one did."""
    forward, counts = graphed(tiny_llama(1))
    caches = forward.allocate(2, 100)
    found = [forward.forward(torch.full((2, 1), token), [0, 3], caches, 1) for token in (1, 1, 2, 5)]
    assert 1 == counts.recorded
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    assert not torch.equal(found[2], found[3])


def test_few_recorded_passes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many shapes, and of caches that are replaced by larger ones."""
    monkeypatch.setattr("pipeline.speculation.graphed_forward._MOST", 2)
    forward, counts = graphed(tiny_llama(1))
    for capacity in (100, 300):
        caches = forward.allocate(2, capacity)
        for width in (1, 2, 3, 4, 5):
            for _ in range(3):
                forward.forward(torch.ones(2, width, dtype=torch.long), [0, 3], caches, 1)
            assert 1 <= len(caches.kept.recorded) <= 2
        del caches
    assert 10 == counts.recorded


def test_their_logits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.speculation.graphed_forward._MOST_BYTES", 0)
    forward, _ = graphed(tiny_llama(1))
    caches = forward.allocate(2, 100)
    for width in (1, 2, 3):
        for _ in range(2):
            forward.forward(torch.ones(2, width, dtype=torch.long), [0, 3], caches, 1)
        assert [width] == [shape.tokens for shape in caches.kept.recorded]


def test_shapes_are_rounded() -> None:
    """So that few are recorded, and at most half of what is computed is added."""
    assert [1, 2, 4, 4, 8, 32, 33] == [_rounded(rows, 33) for rows in (1, 2, 3, 4, 5, 20, 33)]
    assert [256, 256, 384, 512, 768, 1024, 1536] == [
        _rounded_slots(n, 4096) for n in (1, 256, 257, 385, 513, 769, 1025)
    ]
    assert 320 == _rounded_slots(300, 320)


def test_the_cpu_records_nothing() -> None:
    assert not isinstance(choose_forward(tiny_llama(1), VOCABULARY), GraphedForward)
