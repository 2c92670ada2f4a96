"""Predictions of the examination beside an engine's counters: one row of the table per case."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy.special import stdtrit

from pipeline.acceptance.examine import examine
from pipeline.acceptance.intervals import ratio_gain
from pipeline.acceptance.moments import RoundMoments, round_moments
from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds
from pipeline.errors import BrokenDraft
from pipeline.speculation.settings import GREEDY, Sampling
from tests.conformance.deterministic import TIE, Floats, Unexplained, deterministic_rounds, explain
from tests.conformance.subject import TOKENS, Subject
from tests.conformance.texts import (
    BATCH_TOKENS,
    TokenizedText,
    continue_texts,
    log_p_test,
    text,
    token_statistics,
    with_log_p,
)

VLLM, OPENVINO = CONVENTIONS["vllm"], CONVENTIONS["openvino"]
CONTINUATIONS = 2  # of every sampled text: continuations past its end
Call = dict[str, Any]


def label(result: dict[str, Any], build: str, temperature: float, draft_sampling: str, gamma: int) -> dict[str, Any]:
    """What a row of an engine's result begins with."""
    return {name: result[name] for name in ("engine", "version", "torch") if name in result} | {
        "build": build,
        "temperature": temperature,
        "draft_sampling": draft_sampling,
        "gamma": gamma,
        "prompts": len(result["calls"][0]["tokens"]),
    }


def require_exact(row: dict[str, Any]) -> None:
    """Of `exact_row` or `openvino_row`: counts are identical and greedy text is the target's, but for near-ties that are listed;
    sampled text is within 4 standard errors of the target's."""
    assert [] == row["unexplained"]
    assert row["near_ties_of_the_draft"] or row["identical"]
    assert [] == row.get("not_the_target", [])
    assert "text" not in row or abs(row["text"]["standard_errors"]) < 4


def exact_row(subject: Subject, call: Call, gamma: int) -> dict[str, Any]:
    """A call where a_t is 0 or 1 (a greedy target or a greedy draft): counters must be equal. Past the end, at
    temperature 0 the target generates more tokens; at temperature 1 the engine's own tokens from its trace are used,
    as far as its last round went."""
    greedy = call["temperature"] == 0
    own = _texts(subject, call, past_the_end=True)
    texts = continue_texts(subject.target_model, own, gamma - 1, GREEDY, subject.vocabulary, 0) if greedy else own
    sampling = GREEDY if greedy else Sampling()
    a = _acceptance(subject, texts, sampling, GREEDY, gamma)
    lengths_B = np.array([item.length for item in texts])
    found = expected_rounds(stack(a, lengths_B, gamma), lengths_B, gamma, VLLM)
    predicted = _counts(found.rounds_B.sum(), found.accepted_BG.sum(0))
    assert predicted == _whole(predicted), "a_t is 0 or 1, and yet the counts are not whole"
    seen = [[accepted + 1 for accepted in _rounds(steps)] for steps in call["steps"]]
    return {
        "predicted": _whole(predicted),
        "counted": call["counters"],
        "identical": _whole(predicted) == _compared(call["counters"]),
        **_rounds_explained(subject, texts, a, gamma, VLLM, seen),
        **_of_the_text(subject, own, greedy),
        "tokens": int(lengths_B.sum()),
        "stopped": int((lengths_B < lengths_B.max()).sum()),
    }


def openvino_row(subject: Subject, call: Call, gamma: int) -> dict[str, Any]:
    """openvino-genai at temperature 0: target calls including the prefill, and the tokens emitted by each. It reports
    accepted tokens of all rounds of a text but the last."""
    own = [text(prompt, tokens, len(tokens)) for prompt, tokens in zip(subject.prompts, call["tokens"], strict=True)]
    texts = continue_texts(subject.target_model, own, gamma, GREEDY, subject.vocabulary, 0)
    a = _acceptance(subject, texts, GREEDY, GREEDY, gamma)
    lengths_B = np.array([item.length for item in texts])
    found = expected_rounds(stack(a, lengths_B, 0), lengths_B, gamma, OPENVINO)
    rounds = [
        deterministic_rounds(a_T, item.length, gamma, OPENVINO, TOKENS) for a_T, item in zip(a, texts, strict=True)
    ]
    before_last = sum(emitted - 1 for prompt in rounds for emitted in prompt[:-1])
    predicted = {"target_calls": round(found.calls_B.sum()), "accepted_before_last": before_last}
    counted = {
        "target_calls": sum(len(steps) for steps in call["steps"]),
        "accepted_before_last": sum(call["accepted"]),
    }
    return {
        "predicted": predicted,
        "counted": counted,
        "identical": predicted == counted,
        **_rounds_explained(subject, texts, a, gamma, OPENVINO, [steps[1:] for steps in call["steps"]]),
        **_of_the_text(subject, own, greedy=True),
        "tokens": int(lengths_B.sum()),
        "stopped": int((lengths_B < lengths_B.max()).sum()),
    }


def _rounds_explained(
    subject: Subject,
    texts: Sequence[TokenizedText],
    a: Sequence[Floats],
    gamma: int,
    convention: Convention,
    seen: Sequence[Sequence[int]],
) -> dict[str, list[Any]]:
    """Every round must emit what a_t predicts, up to near-ties of the draft; prompts that near-ties do not explain are listed."""
    ties: list[dict[str, Any]] = []
    unexplained: list[str] = []
    for number, (item, a_T, emitted) in enumerate(zip(texts, a, seen, strict=True)):
        padded_T, gap_at = np.concatenate([a_T, np.zeros(gamma)]), _Gap(subject.draft_model, item)
        try:
            found = explain(padded_T, item.length, gamma, convention, TOKENS, emitted, gap_at)
            ties += [{"prompt": number, **asdict(tie)} for tie in found]
        except Unexplained as reason:
            unexplained.append(f"prompt {number}: {reason}")
    return {"near_ties_of_the_draft": ties, "unexplained": unexplained}


class _Gap:
    """The gap between the draft's two largest logits at a position; evaluated only where the engine differs."""

    def __init__(self, model: Any, item: TokenizedText) -> None:
        self._model, self._item = model, item

    def __call__(self, position: int) -> float:
        short_T = token_statistics(self._model, [self._item])[0].short
        return abs(float(short_T[position])) if position < len(short_T) else float("inf")


def _of_the_text(subject: Subject, texts: Sequence[TokenizedText], greedy: bool) -> dict[str, Any]:
    """At temperature 0: tokens that are not our target's argmax, with the logit gap; otherwise the log-likelihood test."""
    statistics = token_statistics(subject.target_model, texts)
    if not greedy:
        return {
            "text": dict(zip(("mean_log_p", "expected", "standard_errors"), log_p_test(texts, statistics), strict=True))
        }
    missed = [
        {"prompt": number, "position": int(position), "gap": float(item_statistics.short[position])}
        for number, item_statistics in enumerate(statistics)
        for position in np.flatnonzero(item_statistics.short > 0)
    ]
    return {
        "near_ties_of_the_target": [tie for tie in missed if tie["gap"] < TIE],
        "not_the_target": [tie for tie in missed if tie["gap"] >= TIE],
    }


def pooled_row(subject: Subject, calls: Sequence[Call], gamma: int) -> dict[str, Any]:
    """Calls at temperature 1 with a sampled draft, pooled: differences in exact standard errors.

    Rounds that start inside a text depend on that text alone, so `drafts` is exact given it. What is accepted past the end
    depends on unknown target tokens: the prediction is the mean over continuations sampled from the target,
    and their variance enters the standard error, once for the engine's own and once for ours.
    """
    counted, mean_R, variance_R = np.zeros(2 + gamma), np.zeros(2 + gamma), np.zeros(2 + gamma)
    all_texts = []
    for call in calls:
        own = _texts(subject, call, past_the_end=False)
        all_texts += own
        mean_MBR, variance_MBR = (np.stack(parts) for parts in zip(*_moments(subject, own, gamma, call), strict=True))
        among_BR = mean_MBR.var(0, ddof=1)
        mean_R += mean_MBR.mean(0).sum(0)
        variance_R += (variance_MBR.mean(0) + among_BR * (1 + 1 / CONTINUATIONS)).sum(0)
        compared = _compared(call["counters"])
        counted += np.array([compared["drafts"], compared["accepted"], *compared["per_position"]])
    errors_R = (counted - mean_R) / variance_R**0.5
    return {
        "predicted": _named(mean_R),
        "counted": _whole(_named(counted)),
        "standard_error": _named(variance_R**0.5),
        "difference_in_standard_errors": _named(errors_R),
        "largest_difference": float(np.abs(errors_R).max()),
        **_of_the_text(subject, all_texts, greedy=False),
        "tokens": sum(item.length for item in all_texts),
        "seeds": [call["seed"] for call in calls],
    }


def _moments(subject: Subject, own: Sequence[TokenizedText], gamma: int, call: Call) -> list[tuple[Floats, ...]]:
    lengths_B = np.array([item.length for item in own])
    found = []
    for number in range(CONTINUATIONS):
        seed = call["seed"] * CONTINUATIONS + number
        longer = continue_texts(subject.target_model, own, gamma - 1, Sampling(), subject.vocabulary, seed)
        a = _sampled_acceptance(subject, longer, gamma)
        moments = round_moments(stack(a, lengths_B, gamma), lengths_B, gamma, VLLM)
        found.append(tuple(_columns(moments, part) for part in ("mean", "variance")))
    return found


def _columns(moments: RoundMoments, part: str) -> Floats:
    """Drafts, accepted, accepted by position: one column each, (B, 2 + gamma)."""
    counts = (moments.rounds, moments.accepted, moments.per_position)
    columns: Floats = np.column_stack([getattr(count, part) for count in counts])
    return columns


def _sampled_acceptance(subject: Subject, texts: Sequence[TokenizedText], gamma: int) -> list[Floats]:
    """Of a draft sampled at temperature 1."""
    return _acceptance(subject, with_log_p(subject.target_model, texts), Sampling(), Sampling(), gamma)


def _acceptance(
    subject: Subject, texts: Sequence[TokenizedText], sampling: Sampling, draft_sampling: Sampling, gamma: int
) -> list[Floats]:
    """By token, or by token and place for a head."""
    found = examine({"draft": subject.loaded_draft}, texts, sampling, draft_sampling, BATCH_TOKENS, gamma)["draft"]
    assert not isinstance(found, BrokenDraft), found
    return [one.at(gamma).astype(float) for one in found]


def against_the_target(
    subject: Subject,
    target_texts: Sequence[TokenizedText],
    copies: int,
    calls: Sequence[Call],
    gamma: int,
    draft_sampling: str,
) -> dict[str, float]:
    """The examination as it is normally used: on texts generated by the target, not by the engine. Mean acceptance length
    predicted and counted, and the difference in standard errors, with the prompt as unit. `target_texts` holds
    `copies` texts per prompt, one set after the other, each with gamma - 1 tokens past its end."""
    if draft_sampling == "greedy":
        a = _acceptance(subject, target_texts, Sampling(), GREEDY, gamma)
    else:
        a = _sampled_acceptance(subject, target_texts, gamma)
    lengths_B = np.array([item.length for item in target_texts])
    found = expected_rounds(stack(a, lengths_B, gamma), lengths_B, gamma, VLLM)
    rounds_N = found.rounds_B.reshape(copies, -1).sum(0)
    accepted_N = found.accepted_BG.sum(1).reshape(copies, -1).sum(0)
    seen = [[_rounds(steps) for call in calls for steps in [call["steps"][number]]] for number in range(len(rounds_N))]
    seen_rounds_N = np.array([float(sum(len(rounds) for rounds in prompt)) for prompt in seen])
    seen_accepted_N = np.array([float(sum(sum(rounds) for rounds in prompt)) for prompt in seen])
    gain = ratio_gain(seen_accepted_N, seen_rounds_N, accepted_N, rounds_N, [""] * len(rounds_N), 0.95)
    error = (gain.high - gain.value) / float(stdtrit(len(rounds_N) - 1, 0.975))
    return {
        "predicted": 1 + float(accepted_N.sum() / rounds_N.sum()),
        "counted": 1 + float(seen_accepted_N.sum() / seen_rounds_N.sum()),
        "difference_in_standard_errors": gain.value / error,
    }


def check_trace(call: Call) -> None:
    """The trace agrees with the public counters, and the text is the trace truncated at its end."""
    rounds = [accepted for steps in call["steps"] for accepted in _rounds(steps)]
    assert call["counters"]["drafts"] == len(rounds)
    assert call["counters"]["accepted"] == sum(rounds)
    for tokens, steps in zip(call["tokens"], call["steps"], strict=True):
        assert tokens == [token for step in steps for token in step][: len(tokens)]


def _rounds(steps: Sequence[Sequence[int]]) -> list[int]:
    """Accepted tokens of each round; the first step is the prefill, which emits one token without a draft."""
    assert len(steps[0]) == 1
    return [len(step) - 1 for step in steps[1:]]


def _texts(subject: Subject, call: Call, past_the_end: bool) -> list[TokenizedText]:
    return [
        text(prompt, [token for step in steps for token in step] if past_the_end else tokens, len(tokens))
        for prompt, tokens, steps in zip(subject.prompts, call["tokens"], call["steps"], strict=True)
    ]


def stack(a: Sequence[Floats], lengths_B: np.ndarray, gamma: int) -> Floats:
    """Of texts of different lengths, with nothing accepted past what is known."""
    width = int(lengths_B.max()) + gamma
    return np.stack([np.concatenate([a_T, np.zeros((width, *a_T.shape[1:]))])[:width] for a_T in a])


def _counts(drafts: float, per_position_G: Floats) -> dict[str, Any]:
    return _named(np.array([drafts, per_position_G.sum(), *per_position_G]))


def _named(values_R: Floats) -> dict[str, Any]:
    return {
        "drafts": float(values_R[0]),
        "accepted": float(values_R[1]),
        "per_position": [float(value) for value in values_R[2:]],
    }


def _whole(counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "drafts": round(counts["drafts"]),
        "accepted": round(counts["accepted"]),
        "per_position": [round(value) for value in counts["per_position"]],
    }


def _compared(counters: dict[str, Any]) -> dict[str, Any]:
    return {name: counters[name] for name in ("drafts", "accepted", "per_position")}
