"""Which evidence says what: the target, the traffic, or the engine and its draft."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.canary.arithmetic import is_exact, most_beyond, near_tie, near_ties
from pipeline.canary.diagnosis import CountersVerdict, about_draft, about_target, about_traffic, over_all
from pipeline.canary.schema import Answer, DraftEvidence, TargetEvidence, Verdict
from pipeline.commands.canary import summary
from tests.unit.canary.evidence import FINE, divergence, of_draft, of_request, of_target, result

CHANGED, OTHER = Answer("changed", "other weights"), Answer("not_as_examined", "another draft")
TORN = Answer("contradictory", "not what its log p imply")
OPEN = Answer("inconclusive", "no counts")
SPARSE: dict[str, Any] = {
    "log_p_tokens": 2000,
    "log_p_difference": 7e-4,
    "log_p_largest": [0.6, 0.5, 0.3, *[1e-5] * 97],
}


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        (of_target(), "as_examined", "10 of 10 greedy completions are the stored ones"),
        (of_target(log_p_difference=2e-3), "changed", "more than rounding in float32; a coarser number format"),
        (of_target(log_p_difference=0.5, equal=3, divergences=[divergence(0.2)]), "changed", "more than rounding in"),
        (of_target(dtype="bfloat16", log_p_difference=0.02), "as_examined", "differs by 0.02"),
        (of_target(dtype="bfloat16", log_p_difference=0.2), "changed", "more than rounding in bfloat16"),
        (of_target(equal=9, divergences=[divergence(1e-5)]), "as_examined", "1 first differ at a near-tie"),
        (
            of_target(equal=9, divergences=[divergence(1e-3)]),
            "changed",
            "1 of 10 greedy completions are not the stored",
        ),
        (of_target(dtype="bfloat16", divergences=[divergence(0.2)]), "as_examined", "near-tie"),
        (of_target(dtype="bfloat16", divergences=[divergence(0.3)]), "changed", "0.25 could be a tie"),
        # Evidence that excludes other evidence: neither gives its verdict.
        (
            of_target(log_p_difference=8.8e-7, equal=9, divergences=[divergence(1e-3, against=True)]),
            "contradictory",
            "does not emit what its own log p imply: 1 of 10 greedy completions",
        ),
        (
            of_target(log_p_difference=0.5, divergences=[divergence(0.3, against=True)]),
            "contradictory",
            "its own log p",
        ),
        (of_target(dtype="bfloat16", divergences=[divergence(0.3, against=True)]), "contradictory", "its own log p"),
        (of_target(equal=9, divergences=[divergence(1e-5, against=True)]), "as_examined", "near-tie"),
        (of_target(log_p_difference=8.8e-7, divergences=[divergence(0.2)]), "contradictory", "are not of one target"),
        (
            of_target(log_p_difference=5e-3, log_p_largest=[0.03], divergences=[divergence(0.2)]),
            "changed",
            "more than rounding",
        ),
        (of_target(dtype="bfloat16", log_p_difference=0.0, divergences=[divergence(2.0)]), "changed", "not the stored"),
        (of_target(log_p_difference=0.5), "contradictory", "log p are not those of what it emits"),
        (of_target(log_p_difference=0.5, completions=3, equal=3), "changed", "more than rounding"),
        # Few large differences among many tiny ones: the target changed at few tokens, and both kinds of evidence show it.
        (of_target(**SPARSE), "changed", "by more than 0.05 at 3 of them, more than rounding in float32"),
        (of_target(**SPARSE, equal=9, divergences=[divergence(0.4)]), "changed", "by 0.6 at most"),
        (of_target(**SPARSE | {"log_p_largest": [900.0], "log_p_difference": 0.45}), "changed", "more than rounding"),
        (
            of_target(**SPARSE, text_tokens=300, completions=32, equal=14, divergences=[divergence(0.4)] * 18),
            "contradictory",
            "18 of 32 greedy completions are not the stored ones",
        ),
        (
            of_target(
                log_p_difference=8.8e-7, log_p_tokens=2000, completions=32, equal=29, divergences=[divergence(0.01)] * 3
            ),
            "changed",
            "not the stored ones",
        ),
        (
            of_target(
                log_p_difference=8.8e-7,
                log_p_tokens=2000,
                completions=32,
                equal=22,
                divergences=[divergence(0.01)] * 10,
            ),
            "contradictory",
            "more than known tokens allow",
        ),
        # As engines give for NaN and for what is cut off (vLLM pull request 48585).
        (
            of_target(log_p_difference=5.0, log_p_largest=[9990.0, 1e-6]),
            "contradictory",
            "of 1 of 100 known tokens, as for",
        ),
        (of_target(dtype="bfloat16", log_p_tokens=2000, log_p_largest=[2.0] * 5), "as_examined", "by 2 at most"),
        (
            of_target(dtype="bfloat16", log_p_tokens=2000, log_p_largest=[2.0] * 6),
            "changed",
            "by more than 1.5 at 6 of them",
        ),
        (of_target(divergences=[divergence(None)]), "inconclusive", "whose log p is not known"),
        (of_target(log_p_difference=None, problem="refused"), "as_examined", "not given (refused)"),
        (of_target(log_p_difference=None, completions=0, equal=0), "inconclusive", "not given"),
    ],
)
def test_the_target(found: TargetEvidence, verdict: Verdict, said: str) -> None:
    """By log p of known tokens first; then by the text, where near-ties are no change."""
    answer = about_target(found)
    assert (verdict, True) == (answer.verdict, said in answer.why), answer.why


def _asked(seed: int, of_log_p: tuple[float, float], of_text: tuple[float, float]) -> TargetEvidence:
    """1,000 known tokens, and 32 greedy completions of 24. Of log p and of the text: at which share of the places the logits are
    others, and by how much; elsewhere by 1e-6."""
    rng, places, vocabulary = np.random.default_rng(seed), 1000 + 32 * 24, 40

    def log_softmax(logits_NV: NDArray[np.float64]) -> NDArray[np.float64]:
        shifted_NV: NDArray[np.float64] = logits_NV - np.log(np.exp(logits_NV).sum(-1, keepdims=True))
        return shifted_NV

    before_NV = log_softmax(rng.normal(0, 2, (places, vocabulary)))
    share_N, size_N = (
        np.repeat([one[index] for one in (of_log_p, of_text)], (1000, places - 1000)) for index in (0, 1)
    )
    size_N = np.where(rng.random(places) < share_N, size_N, 1e-6)
    now_NV = log_softmax(before_NV + size_N[:, None] * rng.normal(0, 1, before_NV.shape))
    token_N = (before_NV[:1000] + rng.gumbel(size=(1000, vocabulary))).argmax(-1)
    off_N = np.abs(now_NV - before_NV)[np.arange(1000), token_N]
    stored_NT, now_NTV = before_NV[1000:].argmax(-1).reshape(32, 24), now_NV[1000:].reshape(32, 24, -1)
    emitted_NT = now_NTV.argmax(-1)
    divergences, tokens = [], 0
    for stored_T, emitted_T, now_TV in zip(stored_NT, emitted_NT, now_NTV, strict=True):
        at = next((place for place in range(24) if stored_T[place] != emitted_T[place]), None)
        tokens += 24 if at is None else at + 1
        if at is not None:
            divergences.append(divergence(float(now_TV[at, emitted_T[at]] - now_TV[at, stored_T[at]])))
    return of_target(
        log_p_tokens=1000,
        log_p_difference=float(off_N.mean()),
        log_p_largest=sorted(off_N.tolist(), reverse=True)[:100],
        completions=32,
        equal=32 - len(divergences),
        divergences=divergences,
        text_tokens=tokens,
    )


@pytest.mark.parametrize("size", [0.003, 0.03, 0.3, 3.0])
@pytest.mark.parametrize("share", [0.01, 0.1, 1.0])
def test_a_changed_target_never_contradicts_itself(share: float, size: float) -> None:
    """Whether at few places or at all, by little or much. By chance once in 10,000 for each of the 36."""
    for seed in range(3):
        answer = about_target(_asked(seed, (share, size), (share, size)))
        assert answer.verdict in ("changed", "as_examined"), answer.why
        assert "changed" == answer.verdict or share * size < 0.01, answer.why


@pytest.mark.parametrize("size", [0.3, 3.0])
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_a_text_of_another_target_than_log_p_contradicts(share: float, size: float) -> None:
    """And the reverse: log p that are not of the text."""
    for seed in range(3):
        for of_log_p, of_text in (((0.0, 0.0), (share, size)), ((0.004, size), (1.0, size))):
            answer = about_target(_asked(seed, of_log_p, of_text))
            assert "contradictory" == answer.verdict, answer.why
        if size > 1:
            assert "contradictory" == about_target(_asked(seed, (share, size), (0.0, 0.0))).verdict or share < 1


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        (of_draft(of_request([])), "as_examined", "4 drafts, 7 accepted"),
        (of_draft(of_request([]), of_request([])), "as_examined", "8 drafts, 14 accepted"),
        (of_draft(of_request([], ties=2)), "as_examined", "2 of 3 near-ties of the draft went the other way"),
        (of_draft(of_request([1])), "not_as_examined", "counts of 1 of 1 requests"),
        (of_draft(of_request([]), of_request(None)), "not_as_examined", "counts of 1 of 2 requests"),
        (of_draft(of_request([1, 2]), exact=False), "as_examined", "2 other choices, of at most 3"),
        (of_draft(of_request([1, 2, 3, 4]), exact=False), "not_as_examined", "another way"),
        (of_draft(of_request(None), exact=False), "not_as_examined", "1 of 1 requests"),
        (of_draft(of_request([], prompt=""), source="counters"), "as_examined", "the engine's counters"),
        (of_draft(of_request(None, prompt=""), source="counters"), "not_as_examined", "the engine's counters"),
        (
            of_draft(of_request([]), gamma=3, exported=[5], lengths="it drafts 3"),
            "not_as_examined",
            "it drafts 3; at that length its counts are those of the examined draft; start it with",
        ),
        (of_draft(of_request(None), gamma=3, exported=[5], lengths="it drafts 3"), "not_as_examined", "are not those"),
        (of_draft(gamma=None, exported=[5], lengths="it drafts 3 to 5"), "not_as_examined", "its draft length changes"),
        (
            of_draft(of_request([]), exported=[5], others=2),
            "as_examined",
            "2 other answers had drafts of several lengths",
        ),
        (of_draft(of_request([])), "as_examined", "no export states how many tokens"),
        (of_draft(), "inconclusive", "no answer has the two tokens"),
        (of_draft(problem="start it with --counts", source="nothing"), "inconclusive", "start it with --counts"),
    ],
)
def test_the_draft(found: DraftEvidence, verdict: Verdict, said: str) -> None:
    """In float32 every count must be explained by near-ties; in coarser formats a few choices may lie outside."""
    answer = about_draft(found)
    assert (verdict, True) == (answer.verdict, said in answer.why), answer.why


@pytest.mark.parametrize(
    ("fallen", "target", "draft", "verdict"),
    [
        (None, FINE, FINE, "inconclusive"),
        (False, FINE, FINE, "as_examined"),
        (True, FINE, FINE, "changed"),
        (True, CHANGED, FINE, "inconclusive"),
        (True, TORN, FINE, "inconclusive"),
        (True, FINE, OTHER, "inconclusive"),
        (True, FINE, OPEN, "inconclusive"),
        (True, OPEN, FINE, "inconclusive"),
    ],
)
def test_the_traffic(fallen: bool | None, target: Answer, draft: Answer, verdict: Verdict) -> None:
    """It changed only where the counters fell and the canary finds nothing else."""
    found = about_traffic(CountersVerdict(fallen, "nobody looked"), target, draft)
    assert (verdict, fallen is None) == (found.verdict, found.why == "nobody looked")


@pytest.mark.parametrize(
    ("target", "changes", "verdict", "said"),
    [
        (FINE, {}, "not_as_examined", "the engine drafts with other weights"),
        (CHANGED, {}, "inconclusive", "which is not the one that was examined; the counts of 1 of 1 requests are not"),
        (OPEN, {}, "inconclusive", "which may not be the one that was examined; the counts"),
        (TORN, {}, "inconclusive", "which may not be the one"),
        (CHANGED, {"gamma": 3, "exported": [5], "lengths": "it drafts 3"}, "not_as_examined", "it drafts 3"),
    ],
)
def test_a_head_on_another_target(target: Answer, changes: dict[str, Any], verdict: Verdict, said: str) -> None:
    """Its counts follow from the target's hidden states too: with another target they say nothing of the head's own weights. A
    wrong draft length is one with any target."""
    found = about_draft(of_draft(of_request(None), **changes), target)
    assert (verdict, True) == (found.verdict, said in found.why), found.why
    assert "as_examined" == about_draft(of_draft(of_request([])), target).verdict


def test_the_worst_engine_decides() -> None:
    """And is named; an engine that is as examined is not."""
    found = over_all([("http://a", FINE), ("http://b", OTHER), ("http://c", OPEN)])
    assert ("not_as_examined", "http://b: another draft") == (found.verdict, found.why)
    assert "contradictory" == over_all([("http://a", CHANGED), ("http://b", TORN)]).verdict  # no retraining meanwhile
    assert FINE == over_all([("http://a", FINE)])
    assert "all 2 engines; http://a: as it was" == over_all([("http://a", FINE), ("http://b", FINE)]).why
    assert "inconclusive" == over_all([]).verdict


def test_what_arithmetic_may_explain() -> None:
    """In float32 only ties; elsewhere one choice in 500, and one."""
    assert (2e-5, 0.25) == (near_tie(exact=True), near_tie(exact=False))
    margin, largest = np.array([0.12, 0.13, 1e-5]), np.array([9.0, 9.0, 9.0])
    assert [True, False, True] == near_ties(
        margin, largest, exact=False
    ).tolist()  # two spacings of bfloat16 at 8 to 16
    assert [False, False, True] == near_ties(margin, largest, exact=True).tolist()
    assert [True, True] == near_ties(margin, largest + 8.0, exact=False).tolist()[:2]
    assert (0, 3) == (most_beyond(exact=True, positions=1000), most_beyond(exact=False, positions=1000))
    assert is_exact("float32", "float32", "unquantized")
    assert not any(
        (
            is_exact("bfloat16", "float32", "unquantized"),
            is_exact("float32", "bfloat16", "unquantized"),
            is_exact("float32", "float32", "int8"),
        )
    )


@pytest.mark.parametrize(
    ("changes", "bad", "complete", "said"),
    [
        ({}, False, True, ""),
        ({"target": CHANGED}, True, True, "canary: target changed"),
        ({"target": TORN}, True, True, "canary: target contradictory"),
        ({"traffic": CHANGED}, True, True, "canary: traffic changed"),
        ({"traffic": OPEN}, False, True, ""),
        ({"draft": OTHER}, True, True, "canary: engine or draft not as examined"),
        ({"draft": OPEN}, False, False, "canary: not answered: engine or draft"),
        ({"unasked": {"http://two": "down"}}, False, False, "canary: not answered: 1 engines not asked"),
    ],
)
def test_what_decides_the_exit_code(changes: dict[str, object], bad: bool, complete: bool, said: str) -> None:
    """Without a state of the watch nothing is missing: the traffic is its question."""
    found = result(**changes)
    assert (bad, complete) == (found.is_bad, found.is_complete)
    assert not said or said == summary(found)
