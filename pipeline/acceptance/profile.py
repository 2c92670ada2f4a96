"""A draft's acceptance profile: from per-prompt counts to figures with intervals, and to JSON and back. No I/O, no model.

The per-prompt counts are the sufficient statistics: every figure, gain and paired interval follows from them, so a gate or
a regression check needs nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.intervals import Interval, ratio_gain, ratio_interval
from pipeline.acceptance.rounds import Convention, expected_rounds, iid_tokens_per_call
from pipeline.errors import UnderstudyError

SCHEMA = 1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PromptCounts:
    """What one examined completion adds to every figure. Lists are by gamma: entry g - 1 is gamma g."""

    id: str
    domain: str
    tokens: int  # length of the completion
    accepted: float  # numerator of the acceptance rate: sum of a_t, or tokens accepted by examination
    examined: float  # its denominator: tokens, or tokens accepted plus first rejections
    rounds: list[float]
    calls: list[float]
    accepted_drafts: list[float]
    per_position: list[float]  # at the largest gamma: rounds whose drafted token i was accepted
    loop_tokens: int = 0
    loop_accepted: float = 0.0  # sum of a_t over tokens inside a loop


def count_completions(
    ids: Sequence[str],
    domains: Sequence[str],
    a: Sequence[Floats],
    lengths: Sequence[int],
    loops: Sequence[NDArray[np.bool_]],
    max_gamma: int,
    convention: Convention,
) -> list[PromptCounts]:
    """Counts of every completion for gamma 1..max_gamma. `a` holds a_t, overrun included; `loops` marks looping tokens."""
    if not ids:
        raise UnderstudyError("there is no completion to examine")
    lengths_B = np.asarray(lengths, dtype=np.int64)
    width = int(lengths_B.max()) + (0 if convention.clipped else max_gamma - 1)
    a_BT = np.zeros((len(ids), width))
    for row, values in enumerate(a):
        a_BT[row, : min(len(values), width)] = values[:width]
        needed = lengths[row] + (0 if convention.clipped else max_gamma - 1)
        if len(values) < needed:
            raise UnderstudyError(
                f"prompt {ids[row]}: convention '{convention.name}' needs {needed - lengths[row]} target tokens "
                f"past the end and {len(values) - lengths[row]} are stored; raise generate.lookahead"
            )
    by_gamma = [expected_rounds(a_BT, lengths_B, gamma, convention) for gamma in range(1, max_gamma + 1)]
    counts = []
    for row, (prompt, domain, length) in enumerate(zip(ids, domains, lengths, strict=True)):
        own_T, loop_T = a_BT[row, :length], loops[row][:length]
        counts.append(
            PromptCounts(
                prompt,
                domain,
                length,
                float(own_T.sum()),
                float(length),
                [float(rounds.rounds_B[row]) for rounds in by_gamma],
                [float(rounds.calls_B[row]) for rounds in by_gamma],
                [float(rounds.accepted_BG[row].sum()) for rounds in by_gamma],
                [float(value) for value in by_gamma[-1].accepted_BG[row]],
                int(loop_T.sum()),
                float(own_T[loop_T].sum()),
            )
        )
    return counts


def figures(counts: Sequence[PromptCounts], confidence: float) -> dict[str, Any]:
    """All figures of one set of completions, with intervals by prompt, stratified by domain."""
    strata = [item.domain for item in counts]
    tokens_N = _column(counts, "tokens")
    gammas = range(1, len(counts[0].rounds) + 1)
    alpha = _acceptance(counts, confidence)
    omega = {g: ratio_interval(tokens_N, _listed(counts, "calls", g), strata, confidence) for g in gammas}
    rounds = {g: _listed(counts, "rounds", g) for g in gammas}
    last = len(gammas)
    position_N = [np.array([item.per_position[index] for item in counts]) for index in range(last)]
    total = rounds[last].sum()
    per_position = [float(values.sum() / total) if total else 0.0 for values in position_N]
    return {
        "prompts": len(counts),
        "tokens": int(tokens_N.sum()),
        "acceptance_rate": interval_json(alpha),
        "tokens_per_target_call": {str(g): interval_json(omega[g]) for g in gammas},
        "mean_acceptance_length": {str(g): _acceptance_length(counts, g) for g in gammas},
        "iid_error": {str(g): iid_tokens_per_call(alpha.value, g) - omega[g].value for g in gammas},
        "per_position_acceptance": per_position,
        "conditional_acceptance": [
            value / before if before > 0 else 0.0
            for value, before in zip(per_position, [1.0, *per_position], strict=False)
        ],
        "loop_share": float(_column(counts, "loop_tokens").sum() / tokens_N.sum()),
        "acceptance_rate_without_loops": _without_loops(counts),
    }


def by_domain(counts: Sequence[PromptCounts], gamma: int, confidence: float) -> dict[str, Any]:
    """Acceptance rate and Omega of each domain."""
    found = {}
    for domain in sorted({item.domain for item in counts}):
        own = [item for item in counts if item.domain == domain]
        strata = [domain] * len(own)
        found[domain] = {
            "prompts": len(own),
            "acceptance_rate": interval_json(_acceptance(own, confidence)),
            "tokens_per_target_call": {
                str(gamma): interval_json(
                    ratio_interval(_column(own, "tokens"), _listed(own, "calls", gamma), strata, confidence)
                )
            },
        }
    return found


def acceptance_gain(draft: Sequence[PromptCounts], base: Sequence[PromptCounts], confidence: float) -> Interval:
    """Interval of the gain in acceptance rate over the same prompts, paired. UnderstudyError if the prompts differ."""
    _same_prompts(draft, base)
    return ratio_gain(
        _column(draft, "accepted"),
        _column(draft, "examined"),
        _column(base, "accepted"),
        _column(base, "examined"),
        [item.domain for item in draft],
        confidence,
    )


def omega_gain(draft: Sequence[PromptCounts], base: Sequence[PromptCounts], gamma: int, confidence: float) -> Interval:
    """Interval of the gain in tokens per target call at `gamma`, paired. UnderstudyError if the prompts differ."""
    _same_prompts(draft, base)
    return ratio_gain(
        _column(draft, "tokens"),
        _listed(draft, "calls", gamma),
        _column(base, "tokens"),
        _listed(base, "calls", gamma),
        [item.domain for item in draft],
        confidence,
    )


def counts_json(counts: Sequence[PromptCounts]) -> list[dict[str, Any]]:
    return [asdict(item) for item in counts]


def counts_from_json(rows: Sequence[Mapping[str, Any]]) -> list[PromptCounts]:
    return [PromptCounts(**row) for row in rows]


def interval_json(interval: Interval) -> dict[str, Any]:
    """JSON has no infinity: unknown bounds are null."""
    bounds = {"low": interval.low, "high": interval.high}
    return {
        "value": interval.value,
        "prompts": interval.prompts,
        **{name: bound if np.isfinite(bound) else None for name, bound in bounds.items()},
    }


def _same_prompts(draft: Sequence[PromptCounts], base: Sequence[PromptCounts]) -> None:
    if [item.id for item in draft] != [item.id for item in base]:
        raise UnderstudyError(
            "the two profiles are not over the same prompts in the same order; examine both on one set of completions"
        )


def _column(counts: Sequence[PromptCounts], name: str) -> Floats:
    return np.array([getattr(item, name) for item in counts], dtype=np.float64)


def _listed(counts: Sequence[PromptCounts], name: str, gamma: int) -> Floats:
    return np.array([getattr(item, name)[gamma - 1] for item in counts], dtype=np.float64)


def _acceptance(counts: Sequence[PromptCounts], confidence: float) -> Interval:
    """Prompt-lookup may find nothing to propose: then nothing was accepted, and nothing is known of the spread."""
    examined_N = _column(counts, "examined")
    if counts and not examined_N.any():
        return Interval(0.0, float("-inf"), float("inf"), len(counts))
    return ratio_interval(_column(counts, "accepted"), examined_N, [item.domain for item in counts], confidence)


def _acceptance_length(counts: Sequence[PromptCounts], gamma: int) -> float:
    """1 + accepted / rounds, as vLLM logs it. A completion of one token may have no round at all."""
    rounds = _listed(counts, "rounds", gamma).sum()
    return float(1 + _listed(counts, "accepted_drafts", gamma).sum() / rounds) if rounds else 1.0


def _without_loops(counts: Sequence[PromptCounts]) -> float | None:
    """None where every token loops, and for prompt-lookup, which does not examine every token: a loop's share of what it
    examined is not counted."""
    if (_column(counts, "examined") != _column(counts, "tokens")).any():
        return None
    tokens = _column(counts, "examined").sum() - _column(counts, "loop_tokens").sum()
    accepted = _column(counts, "accepted").sum() - _column(counts, "loop_accepted").sum()
    return float(accepted / tokens) if tokens > 0 else None
