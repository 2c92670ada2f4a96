"""Counts by segment: against enumeration, against a greedy decode, and what they add up to."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.profile import counts_from_json, counts_json
from pipeline.acceptance.rounds import CONVENTIONS, Convention
from pipeline.acceptance.segments import SegmentCounts, begins
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.plain import PlainDraft
from pipeline.examination.cross_check import decoded_starts
from pipeline.examination.examiner import Examiner
from pipeline.generation.completion_store import StoredCompletion
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import counted, stored_completion, tiny_llama

NAMES = ("answer", "thinking", "aside")
GAMMAS = 4
LENGTHS = (6, 1, 3, 2, 5)


def _labelled(item: StoredCompletion, labels: Any) -> StoredCompletion:
    return replace(item, segments=np.array(labels, dtype=np.uint8), segment_names=NAMES)


def _settings(convention: str) -> EvaluateConfig:
    return EvaluateConfig.model_validate({"convention": convention, "gamma": 3, "max_gamma": GAMMAS})


def _enumerated(
    a: list[float], labels: list[int], gamma: int, convention: Convention
) -> dict[int, tuple[float, float]]:
    """Rounds that begin in each segment and the tokens they produce, over all outcomes of every single acceptance."""
    length, found = len(labels), dict.fromkeys(labels, (0.0, 0.0))
    for stands in itertools.product((False, True), repeat=len(a)):
        weight = float(np.prod([value if stood else 1 - value for value, stood in zip(a, stands, strict=True)]))
        position = convention.start
        while position < length:
            block = min(gamma, length - position - 1) if convention.clipped else gamma
            stood = 0
            while stood < block and stands[position + stood]:
                stood += 1
            rounds, tokens = found[labels[position]]
            found[labels[position]] = (rounds + weight, tokens + weight * min(stood + 1, length - position))
            position += stood + 1
    return found


@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)
def test_counts_equal_enumeration(convention: Convention) -> None:
    generator, examiner = np.random.default_rng(3), Examiner(Sampling(), _settings(convention.name))
    past, rows = 0 if convention.clipped else GAMMAS - 1, []
    for number, length in enumerate(LENGTHS):
        labels = generator.integers(0, 3, length).tolist()
        tokens = generator.integers(0, 32, length + past).tolist()
        item = stored_completion([1, 2], tokens, name=f"p{number}", length=length)
        rows.append(_labelled(item, labels + [labels[-1]] * past))
    draft = tiny_llama(seed=1)
    (counts,) = examiner.counts(PlainDraft(draft, 32), rows)
    for item, row, a_T in zip(rows, counts, examiner.acceptance(PlainDraft(draft, 32), rows), strict=True):
        assert item.segments is not None
        labels = item.segments[: item.length].tolist()
        assert set(row.segments) == {NAMES[label] for label in labels}
        for gamma in range(1, GAMMAS + 1):
            extra = 0 if convention.clipped else gamma - 1
            expected = _enumerated(a_T[: item.length + extra].tolist(), labels, gamma, convention)
            for label, (rounds, tokens) in expected.items():
                found = row.segments[NAMES[label]]
                assert found.rounds[gamma - 1] == pytest.approx(rounds, abs=1e-12)
                assert found.emitted[gamma - 1] == pytest.approx(tokens, abs=1e-12)
        for label in set(labels):
            inside = np.array(labels) == label
            assert row.segments[NAMES[label]].tokens == inside.sum()
            assert row.segments[NAMES[label]].accepted == pytest.approx(a_T[: item.length][inside].sum())
            first = begins(np.array(labels, dtype=np.uint8)) & inside
            assert row.segments[NAMES[label]].begins == first.sum()
            assert row.segments[NAMES[label]].begins_accepted == pytest.approx(a_T[: item.length][first].sum())


def test_segments_add_up_to_the_completion() -> None:
    generator, examiner = np.random.default_rng(4), Examiner(Sampling(), _settings("user"))
    rows = [
        _labelled(stored_completion([1], generator.integers(0, 32, 30), name=f"p{n}"), generator.integers(0, 3, 30))
        for n in range(7)
    ]
    (counts,) = examiner.counts(PlainDraft(tiny_llama(seed=2), 32), rows)
    for row in counts:
        parts = list(row.segments.values())
        assert sum(part.tokens for part in parts) == row.tokens
        assert sum(part.accepted for part in parts) == pytest.approx(row.accepted)
        for gamma in range(GAMMAS):
            assert sum(part.rounds[gamma] for part in parts) == pytest.approx(row.rounds[gamma])
            assert sum(part.emitted[gamma] for part in parts) == pytest.approx(row.tokens - 1)  # the prefill emits one


def test_a_greedy_decode_counts_the_same_by_segment() -> None:
    """Every round of a real decode begins where the examination says, and produces as many tokens, in each segment exactly."""
    target, draft, gamma = tiny_llama(seed=5), tiny_llama(seed=5, layers=1), 3
    requests = [Request([number, 3], 24, 0) for number in range(1, 9)]
    decoder = Decoder(target, PlainDraft(draft, 32), sampling=GREEDY, vocabulary=32, gamma=gamma, stop_tokens=())
    decoded = decoder.decode(requests)
    generator = np.random.default_rng(6)
    labels = [np.sort(generator.integers(0, 3, 24)) for _ in requests]
    rows = [
        _labelled(stored_completion(list(request.prompt), one.tokens, name=str(n), greedy=True), labels[n])
        for n, (request, one) in enumerate(zip(requests, decoded, strict=True))
    ]
    (counts,) = Examiner(GREEDY, _settings("transformers")).counts(PlainDraft(draft, 32), rows)
    rounds, tokens = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    for one, labels_T in zip(decoded, labels, strict=True):
        starts = [*decoded_starts(one), len(one.tokens)]
        for start, end in itertools.pairwise(starts):
            rounds[NAMES[labels_T[start]]] += 1
            tokens[NAMES[labels_T[start]]] += end - start
    for name in NAMES:
        assert sum(row.segments[name].rounds[gamma - 1] for row in counts if name in row.segments) == rounds[name] > 0
        assert sum(row.segments[name].emitted[gamma - 1] for row in counts if name in row.segments) == tokens[name]


def test_figures_by_segment() -> None:
    generator, examiner = np.random.default_rng(7), Examiner(Sampling(), _settings("user"))
    rows = [
        _labelled(stored_completion([1], generator.integers(0, 32, 20), name=f"p{n}"), [0] * (20 - n) + [1] * n)
        for n in range(12)
    ]
    (counts,) = examiner.counts(PlainDraft(tiny_llama(seed=2), 32), rows)
    tally = AcceptanceTally(GAMMAS, ())
    tally.add(counts[:5])
    tally.add(counts[5:])
    found = tally.figures(0.95).by_segment
    assert list(found) == ["answer", "thinking"]
    assert (found["answer"].prompts, found["thinking"].prompts) == (12, 11)
    assert sum(one.share for one in found.values()) == pytest.approx(1)
    thinking = [row.segments["thinking"] for row in counts if "thinking" in row.segments]
    rate = sum(one.accepted for one in thinking) / sum(one.tokens for one in thinking)
    assert found["thinking"].acceptance_rate.value == pytest.approx(rate)
    assert found["thinking"].acceptance_rate.low is not None
    per_round = sum(one.emitted[2] for one in thinking) / sum(one.rounds[2] for one in thinking)
    assert found["thinking"].tokens_per_target_call[3].value == pytest.approx(per_round)
    assert found["thinking"].begins == 11
    first = found["thinking"].acceptance_of_begins
    assert first is not None
    assert first.value == pytest.approx(sum(one.begins_accepted for one in thinking) / 11)
    assert found["answer"].acceptance_of_begins is None
    dev = examiner.summary(PlainDraft(tiny_llama(seed=2), 32), rows).segments  # the same rates, while a draft trains
    assert dev == pytest.approx({name: part.acceptance_rate.value for name, part in found.items()})


def test_bounds_of_a_segments_rates_are_rates() -> None:
    """Over few prompts of very different rates an interval reaches past 1."""
    accepted = [0.0, *[9.9] * 11]
    part = SegmentCounts(
        tokens=10, accepted=0.0, examined=10.0, rounds=[5.0], emitted=[9.0], begins=10, begins_accepted=0.0
    )
    tally = AcceptanceTally(1, ())
    tally.add(
        [
            replace(
                counted(f"p{n}", one, tokens=10, gammas=1),
                accepted_by_output=[one],
                accepted_by_context=[one],
                segments={name: replace(part, accepted=one, begins_accepted=one) for name in NAMES},
            )
            for n, one in enumerate(accepted)
        ]
    )
    figures = tally.figures(0.95).by_segment[NAMES[0]]
    assert figures.acceptance_of_begins is not None
    assert (figures.acceptance_rate.high, figures.acceptance_of_begins.high) == (1, 1)


def test_one_segment_is_not_shown() -> None:
    rows = [_labelled(stored_completion([1], [3, 4, 5], name=f"p{n}"), [0, 0, 0]) for n in range(3)]
    (counts,) = Examiner(Sampling(), _settings("user")).counts(PlainDraft(tiny_llama(), 32), rows)
    tally = AcceptanceTally(GAMMAS, ())
    tally.add(counts)
    assert tally.figures(0.95).by_segment == {}
    assert Examiner(Sampling(), _settings("user")).summary(PlainDraft(tiny_llama(), 32), rows).segments == {}


def test_no_segments_where_a_completion_has_no_labels() -> None:
    rows = [_labelled(stored_completion([1], [3, 4, 5]), [0, 1, 1]), stored_completion([1], [3, 4, 5], name="p1")]
    (counts,) = Examiner(Sampling(), _settings("user")).counts(PlainDraft(tiny_llama(), 32), rows)
    assert [row.segments for row in counts] == [{}, {}]


def test_counts_by_segment_are_stored_and_read() -> None:
    rows = [_labelled(stored_completion([1], [3, 4, 5], name=f"p{n}"), [0, 1, 1]) for n in range(3)]
    (counts,) = Examiner(Sampling(), _settings("user")).counts(PlainDraft(tiny_llama(), 32), rows)
    assert list(counts_from_json(counts_json(counts))) == counts
    assert isinstance(counts[0].segments["thinking"], SegmentCounts)
