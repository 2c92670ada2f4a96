"""Acceptance that depends on where the round started: counts by start and place, against enumeration, round by round."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.moments import round_moments, rounds_variance
from pipeline.acceptance.rounds import CONVENTIONS, Convention, examined_tokens, expected_rounds
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.kinds import LOOKUP
from pipeline.errors import BrokenDraft
from pipeline.examination.examiner import Examiner
from pipeline.generation.completion_store import StoredCompletion
from pipeline.speculation.drafter import DraftScores, Features
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import stored_completion

EVERY = pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)


def _decodes(
    a_TP: np.ndarray, drafted_T: np.ndarray, length: int, gamma: int, convention: Convention
) -> Iterator[tuple[float, list[tuple[int, int, bool]]]]:
    """Every way in which rounds can produce a completion, with its probability: of each round its start, how many tokens it
    accepted, and whether a rejection ended it. An acceptance in one round says nothing of another round."""

    def rounds_from(start: int) -> Iterator[tuple[float, list[tuple[int, int, bool]]]]:
        if start >= length:
            yield 1.0, []
            return
        block = min(gamma, int(drafted_T[start]))
        block = min(block, length - start - 1) if convention.clipped else block
        weight = 1.0
        for accepted in range(block + 1):
            a = a_TP[start + accepted, min(accepted, a_TP.shape[1] - 1)] if accepted < block else 0.0
            for rest, others in rounds_from(start + accepted + 1):
                yield weight * (1 - a) * rest, [(start, accepted, accepted < block), *others]
            weight *= a

    yield from rounds_from(convention.start)


@EVERY
@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_counts_equal_enumeration_over_all_decodes(convention: Convention, gamma: int) -> None:
    """Ragged completions, a block of another length at each start: every count, and the variance of the rounds."""
    generator, lengths, places = np.random.default_rng(gamma), [6, 1, 3, 2, 5], 4
    width = 6 + (0 if convention.clipped else gamma - 1)
    drafted_BT = generator.integers(0, places + 1, (len(lengths), width))
    a_BTP = generator.random((len(lengths), width, places))
    for place in range(places):  # what is not drafted is not accepted
        starts_T = np.arange(width) - place
        a_BTP[:, :, place] *= (drafted_BT[:, np.maximum(starts_T, 0)] > place) & (starts_T >= 0)
    lengths_B = np.array(lengths)
    found = expected_rounds(a_BTP, lengths_B, gamma, convention, drafted_BT)
    variance_B = rounds_variance(a_BTP, lengths_B, gamma, convention)
    accepted_BT, examined_BT = examined_tokens(a_BTP, lengths_B, gamma, convention, drafted_BT, found.starts_BT)
    moments = round_moments(a_BTP, lengths_B, gamma, convention)

    for row, length in enumerate(lengths):
        decodes = list(_decodes(a_BTP[row], drafted_BT[row], length, gamma, convention))
        weights = np.array([weight for weight, _ in decodes])
        counts = np.array([len(rounds) for _, rounds in decodes])
        accepted, examined = np.zeros(accepted_BT.shape[1]), np.zeros(accepted_BT.shape[1])
        places_G, proposed = np.zeros(gamma), 0.0
        for weight, rounds in decodes:
            for start, stood, rejected in rounds:
                accepted[start : start + stood] += weight
                examined[start : start + stood + rejected] += weight
                places_G[:stood] += weight
                block = min(gamma, int(drafted_BT[row, start]))
                proposed += weight * (min(block, length - start - 1) if convention.clipped else block)
        assert weights.sum() == pytest.approx(1)
        assert weights @ counts == pytest.approx(found.rounds_B[row], abs=1e-12)
        assert weights @ (counts - weights @ counts) ** 2 == pytest.approx(variance_B[row], abs=1e-12)
        assert proposed == pytest.approx(found.proposed_B[row], abs=1e-12)
        np.testing.assert_allclose(places_G, found.accepted_BG[row], atol=1e-12)
        np.testing.assert_allclose(places_G, moments.per_position.mean[row], atol=1e-12)
        np.testing.assert_allclose(accepted, accepted_BT[row], atol=1e-12)
        np.testing.assert_allclose(examined, examined_BT[row], atol=1e-12)


@EVERY
def test_one_place_is_every_place(convention: Convention) -> None:
    """a_BT, a_BTP of one place and the same values at every place: the same counts, the first two to the last digit."""
    generator, lengths_B = np.random.default_rng(1), np.array([30, 7, 19])
    a_BT = generator.random((3, 34))
    whole = expected_rounds(a_BT, lengths_B, 5, convention)
    one = expected_rounds(a_BT[:, :, None], lengths_B, 5, convention)
    each = expected_rounds(np.repeat(a_BT[:, :, None], 5, axis=2), lengths_B, 5, convention)

    assert whole.rounds_B.tolist() == one.rounds_B.tolist()
    np.testing.assert_allclose(whole.rounds_B, each.rounds_B, rtol=1e-13)
    np.testing.assert_allclose(whole.starts_BT, each.starts_BT, rtol=1e-12, atol=1e-15)


def test_too_few_places_are_an_error() -> None:
    """2 places say nothing of the third."""
    with pytest.raises(ValueError, match="2 places were given for gamma 3"):
        expected_rounds(np.ones((1, 6, 2)), np.array([4]), 3, CONVENTIONS["user"])


class _ByGamma:
    """A draft whose q depends on how many tokens it drafts, and on the place: log q = -gamma / 4 - place / 8 - x / 16."""

    kind = replace(LOOKUP, depends_on_gamma=True)
    layers, states, longest, models = (), None, None, ()

    def examine(self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Features | None) -> DraftScores:
        places_P = np.arange(gamma)
        values = []
        for row in batch.rows:
            tokens = np.concatenate([row.tokens, np.zeros(gamma, row.tokens.dtype)])
            at_SP = tokens[np.arange(len(row.tokens))[:, None] + places_P]
            values.append(-gamma / 4 - places_P / 8 - at_SP / 16)
        return DraftScores(values, hits=False)

    def begin(self, *_: Any) -> Any:
        raise AssertionError


def _log_q(gamma: int, place: int, token: int) -> float:
    return -gamma / 4 - place / 8 - token / 16


def test_a_draft_that_depends_on_gamma_is_examined_at_each() -> None:
    """min(1, q / p) at each draft length is that of blocks of this length, token by token."""
    generator, gammas, length = np.random.default_rng(3), 4, 9
    tokens = generator.integers(0, 8, length + gammas - 1)
    log_p = np.log(generator.random(len(tokens))).astype(np.float32)
    item: StoredCompletion = stored_completion([1, 2], tokens, length=length, log_p=log_p, vocabulary=8)
    settings = EvaluateConfig(convention="vllm", max_gamma=gammas, gamma=2)
    ((found,),) = Examiner(Sampling(), settings).counts(_ByGamma(), [item])

    for gamma in range(1, gammas + 1):
        a_TP = np.zeros((len(tokens), gamma))
        for token, place in ((t, j) for t in range(len(tokens)) for j in range(min(gamma, t + 1))):
            q = _log_q(gamma, place, int(tokens[token]))
            a_TP[token, place] = min(1.0, float(np.exp(q - log_p[token])))
        everywhere = np.full(len(tokens), gamma)
        decodes = list(_decodes(a_TP, everywhere, length, gamma, CONVENTIONS["vllm"]))
        assert sum(weight * len(rounds) for weight, rounds in decodes) == pytest.approx(found.rounds[gamma - 1])
        accepted = sum(weight * stood for weight, rounds in decodes for _, stood, _ in rounds)
        assert accepted == pytest.approx(found.accepted_drafts[gamma - 1])
        if gamma == settings.gamma:  # its acceptance rate is over examined tokens
            examined = sum(weight * (stood + rejected) for weight, rounds in decodes for _, stood, rejected in rounds)
            assert (accepted, examined) == (pytest.approx(found.accepted), pytest.approx(found.examined))


def test_nan_is_said_of_such_a_draft_too() -> None:
    """Values that are no numbers at any place of any draft length."""

    class _Damaged(_ByGamma):
        def examine(self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Features | None) -> DraftScores:
            found = super().examine(batch, sampling, gamma, features)
            if gamma == 3:
                found.values[-1][1, 2] = np.nan
            return found

    examiner = Examiner(Sampling(), EvaluateConfig(convention="user", max_gamma=4, gamma=2))
    with pytest.raises(BrokenDraft, match="NaN logits on completion 0: its weights are damaged"):
        list(examiner.counts(_Damaged(), [stored_completion([1], [2, 3, 4, 5], vocabulary=8)]))
