"""From per-prompt counts to figures with intervals, block by block. Memory does not grow with the number of prompts, only with
that of conversations that have several."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.count_table import CountTable, SegmentTable
from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.position_bins import BINS, bin_edges, tokens_before_edges
from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.ratio_sums import RatioSums
from pipeline.acceptance.rounds import Floats, iid_tokens_per_call
from pipeline.acceptance.schema import DomainFigures, Figure, Figures, PositionBin, Rounds, SegmentFigures
from pipeline.errors import UnderstudyError

_RATE = 0  # columns of the ratios: the acceptance rate, Omega by gamma, the rate by output position and by context


class AcceptanceTally:
    """Sums from which all figures of one set of completions follow; prompts are added and not kept. `shared`: the conversations
    of several prompts, each of which is one unit of the intervals."""

    def __init__(self, max_gamma: int, shared: Collection[str]) -> None:
        self._max_gamma, self._shared = max_gamma, frozenset(shared)
        self._output, self._context = 1 + max_gamma, 1 + max_gamma + BINS
        self._ratios = RatioSums(1 + max_gamma + 2 * BINS, self._shared)
        self._prompts = self._tokens = self._loop_tokens = 0
        self._accepted = self._examined = self._loop_accepted = 0.0
        self._lists_4G = np.zeros((4, max_gamma))  # rounds, their variance, accepted drafts, accepted by position
        self._examines_all = True  # false for prompt-lookup
        self._segments: dict[str, _SegmentTally] = {}

    def add(self, counts: Sequence[PromptCounts]) -> None:
        """Add prompts, some thousand at once, because sums take memory too. ValueError for counts that are NaN or infinite."""
        if not counts:
            return
        table = CountTable.of(counts)
        tokens_N, accepted_N, examined_N, calls_NG = (
            table.columns[name].astype(np.float64) for name in ("tokens", "accepted", "examined", "calls")
        )
        binned, bins, present = self._bins(table)
        shape = (len(table), 1 + self._max_gamma)
        self._ratios.add(
            np.column_stack([accepted_N, np.broadcast_to(tokens_N[:, None], calls_NG.shape), binned]),
            np.column_stack([examined_N, calls_NG, bins]),
            table.domains,
            np.column_stack([np.ones(shape, dtype=bool), present]),
            table.conversations,
        )
        for row, name in enumerate(("rounds", "rounds_variance", "accepted_drafts", "per_position")):
            self._lists_4G[row] += table.columns[name].sum(0)
        self._prompts += len(table)
        self._tokens += int(tokens_N.sum())
        self._accepted += float(accepted_N.sum())
        self._examined += float(examined_N.sum())
        self._loop_tokens += int(table.columns["loop_tokens"].sum())
        self._loop_accepted += float(table.columns["loop_accepted"].sum())
        self._examines_all &= bool((examined_N == tokens_N).all())
        for name, segment in table.segments.items():
            self._segments.setdefault(name, _SegmentTally(self._max_gamma, self._shared)).add(table, segment)

    def _bins(self, table: CountTable) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Accepted mass, tokens, and whether there are any, of each prompt in each bin; output position, then context.
        A prompt whose tokens were not all examined adds nothing by position."""
        by_output, by_context = (table.bins[name] for name in ("accepted_by_output", "accepted_by_context"))
        lengths_N = np.where(by_output.lengths_N > 0, table.columns["tokens"], 0)
        prompts_N = table.columns["prompt_tokens"]
        tokens = [
            np.diff(tokens_before_edges(before_N, lengths_N), axis=1)
            for before_N in (np.zeros_like(prompts_N), prompts_N)
        ]
        accepted_NK = np.concatenate([by_output.dense(BINS), by_context.dense(BINS)], axis=1)
        tokens_NK = np.concatenate(tokens, axis=1)
        return accepted_NK, tokens_NK.astype(np.float64), tokens_NK > 0

    def figures(self, confidence: float) -> Figures:
        """All figures, with intervals by conversation, stratified by domain. UnderstudyError if no prompt was added."""
        if not self._prompts:
            raise UnderstudyError("there is no completion to examine")
        gammas = range(1, self._max_gamma + 1)
        alpha = self._acceptance(confidence)
        omega = {gamma: self._ratios.interval(gamma, confidence) for gamma in gammas}
        rounds_G, variance_G, _, positions_G = self._lists_4G
        per_position = (positions_G / rounds_G[-1]).tolist() if rounds_G[-1] else [0.0] * self._max_gamma
        return Figures(
            prompts=self._prompts,
            tokens=self._tokens,
            acceptance_rate=alpha.figure,
            tokens_per_target_call={g: omega[g].figure for g in gammas},
            mean_acceptance_length={g: self._acceptance_length(g) for g in gammas},
            rounds={g: Rounds(float(rounds_G[g - 1]), float(variance_G[g - 1] ** 0.5)) for g in gammas},
            iid_error={g: float(iid_tokens_per_call(alpha.value, g) - omega[g].value) for g in gammas},
            per_position_acceptance=per_position,
            conditional_acceptance=[
                value / before for value, before in zip(per_position, [1.0, *per_position], strict=False) if before > 0
            ],
            loop_share=self._loop_tokens / self._tokens,
            acceptance_rate_without_loops=self._without_loops(),
            by_output_position=self._by_bin(self._output, confidence),
            by_context_length=self._by_bin(self._context, confidence),
            by_segment=self._by_segment(confidence),
        )

    def _by_segment(self, confidence: float) -> dict[str, SegmentFigures]:
        """The segments by name, those with most tokens first. Empty where there is one."""
        if len(self._segments) < 2:
            return {}
        by_size = sorted(self._segments, key=lambda name: (-self._segments[name].tokens, name))
        return {name: self._segments[name].figures(self._tokens, confidence) for name in by_size}

    def domains(self, gamma: int, confidence: float) -> dict[str, DomainFigures]:
        """Acceptance rate and Omega of each domain."""
        return {
            domain: DomainFigures(
                self._ratios.prompts(_RATE, domain),
                self._acceptance(confidence, domain).figure,
                {gamma: self._ratios.interval(gamma, confidence, domain).figure},
            )
            for domain in self._ratios.strata
        }

    def _acceptance(self, confidence: float, domain: str | None = None) -> Interval:
        """Prompt-lookup may propose nothing: then the rate is 0 without an interval."""
        if self._ratios.denominator(_RATE, domain) == 0:
            return Interval(0.0, float("-inf"), float("inf"), self._ratios.prompts(_RATE, domain))
        return _share(self._ratios.interval(_RATE, confidence, domain))

    def _acceptance_length(self, gamma: int) -> float:
        """1 + accepted / rounds, as vLLM logs it. A completion of one token may have no round at all."""
        rounds, accepted = self._lists_4G[0, gamma - 1], self._lists_4G[2, gamma - 1]
        return float(1 + accepted / rounds) if rounds else 1.0

    def _without_loops(self) -> float | None:
        """The figures without loops; None where every token is in a loop, and for prompt-lookup: it does not examine every token,
        and what it examines inside loops is not counted."""
        tokens = self._tokens - self._loop_tokens
        return (self._accepted - self._loop_accepted) / tokens if self._examines_all and tokens > 0 else None

    def _by_bin(self, first: int, confidence: float) -> list[PositionBin] | None:
        """Acceptance by position, for the bins that hold any token; None for prompt-lookup."""
        if not self._examines_all:
            return None
        return [
            PositionBin(
                *bin_edges(number),
                int(self._ratios.denominator(first + number)),
                _share(self._ratios.interval(first + number, confidence)).figure,
            )
            for number in range(BINS)
            if self._ratios.prompts(first + number)
        ]


def _share(interval: Interval) -> Interval:
    """The interval of a rate without what no rate can be; over few prompts it may reach past 0 or 1."""
    low, high = (
        (max(interval.low, 0.0), min(interval.high, 1.0)) if isfinite(interval.low) else (interval.low, interval.high)
    )
    return replace(interval, low=low, high=high)


class _SegmentTally:
    """Sums of one segment, over the prompts that have it."""

    def __init__(self, max_gamma: int, shared: Collection[str]) -> None:
        # The acceptance rate, that of the tokens with which the segment begins, and tokens of a round by gamma.
        self._ratios, self._max_gamma, self.tokens, self._begins = RatioSums(2 + max_gamma, shared), max_gamma, 0, 0

    def add(self, table: CountTable, segment: SegmentTable) -> None:
        """The prompts of a table, and the counts in the segment of those that have it."""
        columns, places = segment.columns, segment.places_M.tolist()
        numerators_NK = np.column_stack([columns[name] for name in ("accepted", "begins_accepted", "emitted")])
        denominators_NK = np.column_stack([columns[name] for name in ("examined", "begins", "rounds")]).astype(
            np.float64
        )
        domains, conversations = ([names[place] for place in places] for names in (table.domains, table.conversations))
        self._ratios.add(numerators_NK, denominators_NK, domains, denominators_NK > 0, conversations)
        self.tokens += int(columns["tokens"].sum())
        self._begins += int(columns["begins"].sum())

    def figures(self, all_tokens: int, confidence: float) -> SegmentFigures:
        def interval(ratio: int) -> Interval | None:
            return self._ratios.interval(ratio, confidence) if self._ratios.prompts(ratio) else None

        rate, begins = interval(0), interval(1)
        rounds = {gamma: interval(1 + gamma) for gamma in range(1, self._max_gamma + 1)}
        return SegmentFigures(
            prompts=self._ratios.prompts(0),
            tokens=self.tokens,
            share=self.tokens / all_tokens,
            # Prompt-lookup may propose nothing.
            acceptance_rate=Figure(0.0, None, None, 0) if rate is None else _share(rate).figure,
            tokens_per_target_call={gamma: own.figure for gamma, own in rounds.items() if own is not None},
            begins=self._begins,
            acceptance_of_begins=None if begins is None else _share(begins).figure,
        )
