"""The best draft length for each batch size, from step times and acceptance. Pure.

With n requests in the batch, decoding a request takes rounds(gamma) * step(gamma, n) seconds. Minimising this for each n
minimises latency and maximises throughput. Between two lengths that are nearly equal the minimum is decided by noise in the
step times and changes to and fro, and every change of length costs an engine something; so a schedule has few stretches of
batch sizes, and gives up at most 1% at each batch size for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.costs.accuracy import StepAccuracy
from pipeline.latency.costs.ideal_speedup import break_even
from pipeline.latency.load.measured_losses import MeasuredLosses

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MAX_LOSS = 0.01  # time that a stretch may cost at a batch size, relative to the best draft length there
_MAX_STRETCHES = 8  # if more are needed, the loss is doubled until they are enough
_LARGE_LOSS = 1.0  # beyond it there are more stretches, because lengths that lost are left out


def request_seconds(rounds_G: Floats, step_GN: Floats) -> Floats:
    """Seconds to decode the mean request by draft length and batch size: [gamma, n - 1]. `rounds_G[0]` is plain decoding, one
    token per round."""
    return rounds_G[:, None] * step_GN


def draft_lengths(rounds_G: Floats, step_GN: Floats, lost_GN: Bools | None = None) -> Ints:
    """The draft length for each batch size, 0 where speculation is not faster: the fewest stretches of one length that are never
    more than 1% slower than the best length, at most 8; of those, the ones with the least loss in total. `lost_GN`: lengths that
    are not used because they lost in the measurements; there is another one at each batch size. If 8 stretches cannot leave them
    out, more are used."""
    seconds_GN = request_seconds(rounds_G, step_GN)
    if lost_GN is not None:
        seconds_GN = np.where(lost_GN & ~lost_GN.all(0), np.inf, seconds_GN)
    loss_GN, allowed, most = seconds_GN / seconds_GN.min(0) - 1, _MAX_LOSS, _MAX_STRETCHES
    while (lengths_N := _fewest_stretches(loss_GN, allowed, most)) is None:
        allowed, most = (2 * allowed, most) if allowed < _LARGE_LOSS or lost_GN is None else (_MAX_LOSS, 2 * most)
    return lengths_N


def _fewest_stretches(loss_GN: Floats, allowed: float, most: int) -> Ints | None:
    """By dynamic programming over batch sizes: cost_SG is the least total loss so far with S + 1 stretches, the last of length
    G. None if more stretches than `most` are needed."""
    gammas, count = loss_GN.shape
    limited_GN = np.where(loss_GN <= allowed, loss_GN, np.inf)
    cost_SG = np.full((most, gammas), np.inf)
    cost_SG[0] = limited_GN[:, 0]
    before_NSG = np.zeros((count, most, gammas), dtype=np.int64)  # the length at the batch size before
    for n in range(1, count):
        best_S = cost_SG.argmin(1)
        least_S = np.append(np.inf, cost_SG[np.arange(most), best_S][:-1])
        changes_SG = least_S[:, None] < cost_SG
        before_NSG[n] = np.where(changes_SG, np.append(0, best_S[:-1])[:, None], np.arange(gammas))
        cost_SG = np.where(changes_SG, least_S[:, None], cost_SG) + limited_GN[:, n]
    possible = np.isfinite(cost_SG).any(1)
    if not possible.any():
        return None
    stretch = int(possible.argmax())
    gamma = int(cost_SG[stretch].argmin())
    lengths_N = np.empty(count, dtype=np.int64)
    for n in range(count - 1, -1, -1):
        lengths_N[n] = gamma
        before = int(before_NSG[n, stretch, gamma])
        stretch -= before != gamma
        gamma = before
    return lengths_N


def speedups(rounds_G: Floats, step_GN: Floats) -> Floats:
    """Speedup over plain decoding by draft length and batch size: [gamma, n - 1]."""
    seconds_GN = request_seconds(rounds_G, step_GN)
    speedup_GN: Floats = seconds_GN[0] / seconds_GN
    return speedup_GN


def largest_paying_batch(lengths_N: Ints) -> int:
    """The largest batch size at which speculation is faster; 0 if none."""
    paying = np.flatnonzero(lengths_N)
    return int(paying[-1]) + 1 if len(paying) else 0


def batch_ranges(lengths_N: Sequence[int] | Ints) -> list[tuple[int, int, int]]:
    """(first batch size, last batch size, gamma) of each range with one draft length."""
    lengths_N = np.asarray(lengths_N)
    begins = np.flatnonzero(np.diff(lengths_N, prepend=-1))
    ends = np.append(begins[1:], len(lengths_N))
    return [(int(begin) + 1, int(end), int(lengths_N[begin])) for begin, end in zip(begins, ends, strict=True)]


def for_vllm(lengths_N: Sequence[int] | Ints) -> dict[str, Any]:
    """Keys of vLLM's `--speculative-config`; a constant draft length needs no schedule."""
    fixed, stretches = {"num_speculative_tokens": int(max(lengths_N))}, batch_ranges(lengths_N)
    if len(stretches) == 1:
        return fixed
    return fixed | {"num_speculative_tokens_per_batch_size": [list(stretch) for stretch in stretches]}


def for_tensorrt(lengths_N: Sequence[int] | Ints) -> dict[str, Any]:
    """Keys of TensorRT-LLM's `speculative_config`. Batch size 1 gets the longest draft length, as its validator requires.
    Every batch size is listed, because releases differ in whether a key is the first or the last batch size of its range."""
    return {
        "max_draft_len": int(max(lengths_N)),
        "draft_len_schedule": {number: int(gamma) for number, gamma in enumerate(lengths_N, 1)}
        | {1: int(max(lengths_N))},
    }


def break_even_acceptances(step_GN: Floats) -> Floats:
    """Break-even acceptance rate of the best draft length by batch size, for iid acceptance; infinite if none pays."""
    acceptances = [break_even(dict(enumerate(step_G[1:] / step_G[0], 1))) for step_G in step_GN.T]
    return np.array([np.inf if acceptance is None else acceptance for acceptance in acceptances])


FORMATS = {"vllm": for_vllm, "tensorrt-llm": for_tensorrt}


@dataclass(frozen=True)
class DraftOption:
    """One of several drafts on the same target."""

    name: str
    rounds_G: Floats
    step_GN: Floats
    accuracy: StepAccuracy  # of `step_GN` inside what was measured
    unmeasured: frozenset[int] = frozenset()  # draft lengths whose times are interpolated
    ranges: Mapping[int, tuple[int, int]] = field(
        default_factory=dict
    )  # measured batch sizes of the others; empty: all
    losses: MeasuredLosses | None = None  # in the measurements of its costs, if they are of a server
    acceptance_known: bool = True  # False: there is no break-even
    plain: bool = True  # False: plain decoding was not measured, so there is neither a speedup nor a break-even
    accuracy_at: Callable[[int, int], StepAccuracy] | None = (
        None  # by draft length and batch size; None: the same everywhere
    )

    def accuracy_of(self, gamma: int, batch: int) -> StepAccuracy:
        """The accuracy of a step of this draft length beside one of plain decoding."""
        at = self.accuracy_at or (lambda *_: self.accuracy)
        return at(gamma, batch).or_worse(at(0, batch)) if self.plain else at(gamma, batch)

    def measured(self, gamma: int, batch: int) -> bool:
        """Whether this draft length was measured at batch sizes around this one."""
        low, high = self.ranges.get(gamma, (1, batch))
        return gamma not in self.unmeasured and low <= batch <= high


@dataclass(frozen=True)
class Schedule:
    """The best choice for batch size N, entry N - 1."""

    drafts: list[DraftOption]
    winner_N: list[str | None]  # name of the fastest draft; None if plain decoding is fastest
    lengths_N: Ints  # its draft length; 0
    speedup_N: Floats  # over plain decoding; NaN: unknown
    break_even_N: Floats  # break-even acceptance rate of that draft, or of the first if none pays; NaN: unknown
    accuracy_N: list[StepAccuracy]  # of its step times
    measured_N: list[bool]  # whether this draft length was measured at such batch sizes
    open_N: list[tuple[int, ...]] = field(
        default_factory=list
    )  # draft lengths that the error at the edge leaves open; none inside
    load: int | None = None  # the only batch size of which something is known

    def at_load(self, load: int) -> "Schedule":
        """The schedule of measurements at one load: its draft length is that of all batch sizes, and everything else is unknown
        there."""
        here, count = load - 1, len(self.lengths_N)
        elsewhere_N = np.arange(count) != here
        return replace(
            self,
            winner_N=[self.winner_N[here]] * count,
            lengths_N=np.full(count, self.lengths_N[here]),
            speedup_N=np.where(elsewhere_N, np.nan, self.speedup_N),
            break_even_N=np.where(elsewhere_N, np.nan, self.break_even_N),
            measured_N=[bool(is_elsewhere) for is_elsewhere in ~elsewhere_N],
            open_N=[()] * count,
            load=load,
        )

    @property
    def uncertain_N(self) -> NDArray[np.bool_]:
        """Whether there is a draft whose speedup is within the error of the step times."""
        least_N = np.array([accuracy.certain_speedup for accuracy in self.accuracy_N])
        uncertain_N: NDArray[np.bool_] = (self.lengths_N > 0) & (self.speedup_N < least_N)
        return uncertain_N


def plain_spread(drafts: Sequence[DraftOption]) -> float:
    """Largest relative difference of plain decoding between the drafts' measurements at one batch size: 0.1 is 10%."""
    plain_DN = np.array([draft.step_GN[0] for draft in drafts])
    return float((plain_DN.max(0) / plain_DN.min(0)).max() - 1)


def make_schedule(drafts: Sequence[DraftOption]) -> Schedule:
    """Each draft's speedup is over the plain decoding measured with it, so a slow measurement does not penalise a draft."""
    lengths_DN = np.array(
        [
            draft_lengths(draft.rounds_G, draft.step_GN, draft.losses.lost_GN if draft.losses else None)
            for draft in drafts
        ]
    )
    each_N = np.arange(lengths_DN.shape[1])
    speedup_DN = np.array(
        [
            speedups(draft.rounds_G, draft.step_GN)[lengths_N, each_N] if draft.plain else np.full(len(each_N), np.nan)
            for draft, lengths_N in zip(drafts, lengths_DN, strict=True)
        ]
    )
    first_N = speedup_DN.argmax(0)
    lengths_N = lengths_DN[first_N, each_N]
    winner_N = [drafts[winner].name if gamma else None for winner, gamma in zip(first_N, lengths_N, strict=True)]
    measured_N = [
        drafts[winner].measured(int(gamma), batch)
        for batch, (winner, gamma) in enumerate(zip(first_N, lengths_N, strict=True), 1)
    ]
    break_even_DN = np.array(
        [
            break_even_acceptances(draft.step_GN)
            if draft.acceptance_known and draft.plain
            else np.full(len(each_N), np.nan)
            for draft in drafts
        ]
    )
    accuracy_N = [
        drafts[winner].accuracy_of(int(gamma), batch)
        for batch, (winner, gamma) in enumerate(zip(first_N, lengths_N, strict=True), 1)
    ]
    return Schedule(
        list(drafts),
        winner_N,
        lengths_N,
        speedup_DN[first_N, each_N],
        break_even_DN[first_N, each_N],
        accuracy_N,
        measured_N,
        [_open(drafts[winner], int(lengths_N[n]), n, accuracy_N[n]) for n, winner in enumerate(first_N)],
    )


def _open(draft: DraftOption, chosen: int, n: int, accuracy: StepAccuracy) -> tuple[int, ...]:
    """Draft lengths that are slower than the chosen one by no more than the error at the edge, itself among them; empty inside
    what was measured, and if there is no other."""
    if not accuracy.edge:
        return ()
    seconds_G = request_seconds(draft.rounds_G, draft.step_GN)[:, n]
    error = np.inf if accuracy.left_out is None else accuracy.left_out + accuracy.tokens
    within_G = seconds_G <= seconds_G[chosen] * (1 + error)
    within_G[sorted(draft.unmeasured)] = False
    within_G[0] &= draft.plain
    within_G[chosen] = True
    lengths = tuple(np.flatnonzero(within_G).tolist())
    return lengths if len(lengths) > 1 else ()
