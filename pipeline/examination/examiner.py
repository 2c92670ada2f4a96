"""Examines drafts over stored completions: used by evaluate, probe, check, the cross-check and during training.

Completions are read in windows, so memory does not grow with their number. A window depends on the stored shard alone, so figures
depend neither on the machine nor on what else is examined.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.examine import ScoredCompletion, acceptance_probabilities, engine_sampling, examine
from pipeline.acceptance.profile import Completions, PromptCounts, count_completions
from pipeline.acceptance.repetition import repetition_mask
from pipeline.acceptance.rounds import CONVENTIONS, Acceptance, Convention, Floats, examined_tokens, expected_rounds
from pipeline.config.evaluate import EvaluateConfig
from pipeline.errors import BrokenDraft
from pipeline.examination.windows import windows
from pipeline.generation.completion_store import StoredCompletion
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import batches

OnDone = Callable[[int], None]  # called with the number of completions done since the last call
# called with a window of completions and the acceptance of each, lookahead included
OnAcceptance = Callable[[Sequence[StoredCompletion], Sequence[Acceptance]], None]


class AcceptanceSummary(NamedTuple):
    """A few numbers about a draft, cheap enough to compute while it trains."""

    acceptance: float
    omega: float  # tokens per target call at settings.gamma
    segments: Mapping[str, float] = MappingProxyType({})  # acceptance rate by segment, where there are several


class _Needed(NamedTuple):
    """What an examination reads of a completion."""

    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    log_p: NDArray[np.float32]
    domain: str


def _silent(count: int) -> None:
    pass


@dataclass(frozen=True)
class Examiner:
    """Examines drafts under fixed conditions. `settings.convention` decides how the engine samples the draft."""

    sampling: Sampling  # of the target, which produced the completions under it
    settings: EvaluateConfig
    count_as: str | None = None  # the convention of the counts, where it is not settings.convention
    drafts_as: str | None = None  # the convention of the sampling of the draft, where it is not settings.convention

    def in_batches(self, batch_tokens: int) -> "Examiner":
        """The examiner with other batches: results differ by rounding only."""
        return replace(self, settings=self.settings.model_copy(update={"batch_tokens": batch_tokens}))

    def at_gamma(self, gamma: int) -> "Examiner":
        """The examiner at another draft length."""
        return replace(self, settings=self.settings.model_copy(update={"gamma": gamma}))

    def attempt_batch(self, draft: LoadedDraft, completions: Iterable[StoredCompletion]) -> Callable[[int], None]:
        """A function that examines `draft` on one batch of at least n tokens, all of the longest of `completions`. For
        `out_of_memory.batch_named`."""

        @cache
        def longest() -> _Needed:
            (needed,) = self._needed([max(completions, key=lambda item: len(item.prompt) + len(item.tokens))])
            return needed

        def attempt(batch_tokens: int) -> None:
            length = len(longest().prompt) + len(longest().tokens)
            rows = -(-batch_tokens // length)
            self.in_batches(rows * length).examine({"draft": draft}, [longest()] * rows)

        return attempt

    @property
    def counting(self) -> Convention:
        """The convention by which target calls are counted."""
        return CONVENTIONS[self.count_as or self.settings.convention]

    @property
    def _draft_sampling(self) -> Sampling:
        return engine_sampling(self.drafts_as or self.settings.convention, self.sampling, self.settings.draft_sampling)

    def acceptance(self, draft: LoadedDraft, completions: Sequence[ScoredCompletion]) -> list[Floats]:
        """The acceptance of every token of every completion, lookahead included: by token, or by token and place, up to
        settings.gamma, where it depends on the start of the round. Raises BrokenDraft if the draft cannot be examined."""
        settings = (self.sampling, self._draft_sampling, self.settings.batch_tokens)
        if draft.kind.by_token:
            return acceptance_probabilities(draft, completions, *settings)
        acceptance = examine({"draft": draft}, completions, *settings, self.settings.gamma)["draft"]
        if isinstance(acceptance, BrokenDraft):
            raise acceptance
        return [own.at(self.settings.gamma).astype(np.float64) for own in acceptance]

    def examine(
        self,
        drafts: Mapping[str, LoadedDraft],
        completions: Sequence[ScoredCompletion],
        on_done: OnDone = _silent,
        first_number: int = 0,
    ) -> dict[str, list[Acceptance] | BrokenDraft]:
        """The acceptance of every token of every completion from each draft."""
        batch_tokens, max_gamma = self.settings.batch_tokens, self.settings.max_gamma
        return examine(
            drafts, completions, self.sampling, self._draft_sampling, batch_tokens, max_gamma, on_done, first_number
        )

    def counts(
        self,
        draft: LoadedDraft,
        completions: Iterable[StoredCompletion],
        on_done: OnDone = _silent,
        on_acceptance: OnAcceptance | None = None,
        first_number: int = 0,
    ) -> Iterator[list[PromptCounts]]:
        """Per-prompt counts of one draft, window by window. BrokenDraft if it cannot be examined; completions are numbered from
        `first_number`."""
        for window in self.counts_of_all({"draft": draft}, completions, on_done, on_acceptance, first_number):
            counts = window["draft"]
            if isinstance(counts, BrokenDraft):
                raise counts
            yield counts

    def counts_of_all(
        self,
        drafts: Mapping[str, LoadedDraft],
        completions: Iterable[StoredCompletion],
        on_done: OnDone = _silent,
        on_acceptance: OnAcceptance | None = None,
        first_number: int = 0,
    ) -> Iterator[dict[str, list[PromptCounts] | BrokenDraft]]:
        """Per-prompt counts of several drafts, window by window.

        Completions are read, padded and searched for loops once for all drafts. For a draft that cannot be examined, one
        window holds the reason in place of its counts; later windows leave the draft out.
        """
        remaining, seen = dict(drafts), first_number
        for window in windows(completions):
            acceptance = self.examine(remaining, self._needed(window), on_done, seen)
            seen += len(window)
            facts = draft_independent(window)
            counts: dict[str, list[PromptCounts] | BrokenDraft] = {}
            for name, values in acceptance.items():
                if isinstance(values, BrokenDraft):
                    counts[name] = values
                    del remaining[name]
                else:
                    rate_gamma = None if drafts[name].kind.by_token else self.settings.gamma
                    counts[name] = count_completions(facts, values, self.settings.max_gamma, self.counting, rate_gamma)
                    if on_acceptance is not None:
                        on_acceptance(window, values)
            yield counts
            if not remaining:
                return

    def summary(self, draft: LoadedDraft, completions: Sequence[StoredCompletion]) -> AcceptanceSummary:
        """Acceptance rate and tokens per target call at settings.gamma. Raises BrokenDraft if the draft cannot be examined."""
        return self.summary_of(completions, self.acceptance_of(draft, completions, range(len(completions))))

    def groups(self, completions: Sequence[StoredCompletion]) -> list[list[int]]:
        """The numbers of the completions in each batch: processes may examine some of these each."""
        groups, first = list[list[int]](), 0
        for window in windows(completions):
            lengths = [len(item.prompt) + len(item.tokens) for item in window]
            groups += [[first + number for number in group] for group in batches(lengths, self.settings.batch_tokens)]
            first += len(window)
        return groups

    def acceptance_of(
        self, draft: LoadedDraft, completions: Sequence[StoredCompletion], numbers: Collection[int]
    ) -> list[Floats]:
        """`acceptance` of the completions with these numbers, in their order. Of whole `groups` the batches, and so the last
        digits, are those of an examination of all. Raises BrokenDraft."""
        acceptance, first = list[Floats](), 0
        for window in windows(completions):
            wanted = [item for number, item in enumerate(window, first) if number in numbers]
            acceptance += self.acceptance(draft, wanted)
            first += len(window)
        return acceptance

    def summary_of(self, completions: Sequence[StoredCompletion], acceptance: Iterable[Floats]) -> AcceptanceSummary:
        """The summary of the `acceptance` of all completions."""
        rates, tokens, calls, of_each, gamma = _Rates(), 0, 0.0, iter(acceptance), self.settings.gamma
        for window in windows(completions):
            a = list(islice(of_each, len(window)))
            lengths_B = np.array([item.length for item in window], dtype=np.int64)
            a_BT = np.zeros((len(window), lengths_B.max(), *a[0].shape[1:]))
            for row, (values_T, length) in enumerate(zip(a, lengths_B, strict=True)):
                a_BT[row, :length] = values_T[:length]
            rounds = expected_rounds(a_BT, lengths_B, gamma, self.counting)
            tokens += int(lengths_B.sum())
            calls += float(rounds.calls_B.sum())
            if a_BT.ndim == 2:
                rates.add(window, a_BT, np.ones_like(a_BT))
            else:
                rates.add(window, *examined_tokens(a_BT, lengths_B, gamma, self.counting, None, rounds.starts_BT))
        return AcceptanceSummary(rates.whole, tokens / calls, rates.by_segment)

    def _needed(self, window: Sequence[StoredCompletion]) -> list["_Needed"]:
        """The completions up to the last token that the convention counts: the draft need not read further."""
        past = 0 if self.counting.clipped else self.settings.max_gamma - 1
        ends = [item.length + past for item in window]
        return [
            _Needed(item.prompt, item.tokens[:end], item.log_p[:end], item.domain)
            for item, end in zip(window, ends, strict=True)
        ]


class _Rates:
    """Acceptance rates of all tokens and by segment, added window by window."""

    def __init__(self) -> None:
        self._accepted, self._examined = 0.0, 0.0
        self._by_segment = dict[str, tuple[float, float]]()

    def add(self, completions: Sequence[StoredCompletion], accepted_BT: Floats, examined_BT: Floats) -> None:
        for item, accepted_T, examined_T in zip(completions, accepted_BT, examined_BT, strict=True):
            inside = slice(item.length)
            self._accepted += float(accepted_T[inside].sum())
            self._examined += float(examined_T[inside].sum())
            for label in () if item.segments is None else np.unique(item.segments[inside]).tolist():
                of_segment_T = item.segments[inside] == label  # type: ignore[index]
                name = item.segment_names[label]
                accepted, examined = self._by_segment.get(name, (0.0, 0.0))
                self._by_segment[name] = (
                    accepted + float(accepted_T[inside][of_segment_T].sum()),
                    examined + float(examined_T[inside][of_segment_T].sum()),
                )

    @property
    def whole(self) -> float:
        return self._accepted / self._examined if self._examined else 0.0

    @property
    def by_segment(self) -> dict[str, float]:
        """The acceptance rate by segment; empty where all tokens are of one segment."""
        segments = sorted(self._by_segment.items()) if len(self._by_segment) > 1 else []
        return {name: accepted / examined for name, (accepted, examined) in segments if examined}


def draft_independent(window: Sequence[StoredCompletion]) -> Completions:
    """The facts that counts need of completions, whatever the draft."""
    labels = [item.segments for item in window if item.segments is not None]
    return Completions(
        [item.id for item in window],
        [item.conversation for item in window],
        [item.domain for item in window],
        np.array([len(item.prompt) for item in window], dtype=np.int64),
        np.array([item.length for item in window], dtype=np.int64),
        [repetition_mask(item.tokens[: item.length].tolist()) for item in window],
        labels if len(labels) == len(window) else None,
        window[0].segment_names,
    )
