"""The speed of a candidate over a baseline that is another kind of draft. Pure.

Acceptance rates of other kinds are of other tokens, and a round of a head takes another time than one of a model. What compares
is the tokens per second of decoding a request, at the deployed draft length:

    gain = k L_c / L_b - 1,    k = t_b / t_c

L: examined tokens per round, 1 + accepted / rounds; t: seconds of a round, b with the baseline and c with the candidate. Prompts
are paired, so the interval of L_c / L_b is that of L_c - (L_c / L_b) L_b, the first-order expansion of the ratio (delta method).
k is either measured on this machine, each round against a step of plain decoding in the same turn, or taken from step times at
`gate.load`. A measured k has bounds of its own, which combine with those of L_c / L_b as in `acceptance/step_times.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, hypot, inf, log

import numpy as np

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.decoding_speed import DecodingSpeed, Measured, of_turns
from pipeline.acceptance.gains import Counts, tokens_per_round_ratio
from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.step_times import StepTimes
from pipeline.judgement.at_load import StatedLoad, covered
from pipeline.judgement.schema import BASELINE, CANDIDATE, Side
from pipeline.latency.load.serving import point_at_load
from pipeline.latency.load.workload import Workload

NOT_KNOWN = (
    "no step times; set evaluate.speed.turns to measure them here, or gate.load, gate.profile and gate.champion_profile"
)


@dataclass(frozen=True)
class RoundRatio:
    """Seconds of a round with the baseline / with the candidate, at one draft length."""

    value: float
    low: float
    high: float
    source: str  # where it is from, for people


def speed_gain(draft: Counts, base: Counts, gamma: int, ratio: RoundRatio, confidence: float) -> Interval:
    """Interval of the gain in tokens per second, as a share of those with `base`, paired by prompt. UnderstudyError if the
    prompts differ."""
    tokens = tokens_per_round_ratio(CountTable.of(draft), CountTable.of(base), gamma, confidence)
    value = ratio.value * tokens.value
    if tokens.low <= 0 or not np.isfinite(tokens.high):
        return Interval(value - 1, -inf, inf, tokens.prompts, conversations=tokens.conversations)
    below = hypot(log(tokens.value / tokens.low), log(ratio.value / ratio.low))
    above = hypot(log(tokens.high / tokens.value), log(ratio.high / ratio.value))
    exact = ratio.low == ratio.high
    return replace(
        tokens,
        value=value - 1,
        low=ratio.value * tokens.low - 1 if exact else value * exp(-below) - 1,
        high=ratio.value * tokens.high - 1 if exact else value * exp(above) - 1,
        error=ratio.value * tokens.error if exact else float("nan"),
    )


def measured_ratio(
    times: Mapping[Side, StepTimes], speed: DecodingSpeed | None, gamma: int, confidence: float
) -> RoundRatio | str:
    """The ratio of the speeds from step times on this machine, or why there is none."""
    if speed is None or speed.baseline is None or not {CANDIDATE, BASELINE} <= times.keys():
        return NOT_KNOWN
    if (reason := speed.candidate.not_measurable or speed.baseline.not_measurable) is not None:
        return reason
    ways = [times[side].target_passes for side in (CANDIDATE, BASELINE)]
    if ways[0] is None or ways[0] != ways[1]:
        return (
            f"the target was computed in different ways ({ways[0] or 'unknown'}, {ways[1] or 'unknown'}), as beside a head on a "
            "CPU: set gate.load, gate.profile and gate.champion_profile"
        )
    speeds = dict[Side, Measured]()
    for side in (CANDIDATE, BASELINE):
        lengths = sorted(times[side].rounds)
        length = min(gamma, lengths[-1])  # the longest that was timed is shorter where the draft proposes no more
        turns = zip(*(times[side].rounds[length] for length in lengths), strict=True)
        rounds = [float(np.interp(length, lengths, seconds)) for seconds in turns]
        speeds[side] = of_turns(
            [plain / drafted for plain, drafted in zip(times[side].plain, rounds, strict=True)], confidence
        )
    ours, theirs = speeds[CANDIDATE], speeds[BASELINE]
    if ours.low is None or ours.high is None or theirs.low is None or theirs.high is None:
        return "there are too few turns for bounds; raise evaluate.speed.turns"
    value = ours.median / theirs.median
    below = hypot(log(ours.median / ours.low), log(theirs.high / theirs.median))
    above = hypot(log(ours.high / ours.median), log(theirs.median / theirs.low))
    return RoundRatio(value, value * exp(-below), value * exp(above), f"measured on {speed.device}")


def predicted_ratio(
    candidate: StatedLoad, of_candidate: Workload, baseline: StatedLoad, of_baseline: Workload
) -> RoundRatio:
    """The ratio of the speeds from step times at the stated load, at the mean batch with the baseline, or a full one where the
    load exceeds its capacity; step costs are treated as exact."""
    cap, gamma = baseline.max_batch, baseline.gamma
    served = point_at_load(
        covered(baseline, of_baseline), baseline.step_costs, baseline.requests_per_second, cap, gamma
    ).speculative
    batch = cap if served is None else min(max(round(served.batch), 1), cap)
    known = batch <= min(load.step_costs.max_requests for load in (candidate, baseline))
    ours, theirs = (
        float(load.step_costs.steps(cap, round(workload.context), gamma)[gamma, batch - 1])
        for load, workload in ((candidate, of_candidate), (baseline, of_baseline))
    )
    value = theirs / ours
    beyond = "" if known else ", more than was measured"
    return RoundRatio(value, value, value, f"predicted at the stated load, {batch} in a batch{beyond}")
