"""What a canary found, as its file in the store has it. Imports nothing heavy."""

from dataclasses import field
from typing import Literal

from pipeline.config.pair import NumberFormat
from pipeline.engines.counts import Counts
from pipeline.engines.facts import WatchedEngine
from pipeline.store.parsing import Count, Flag, Number, Text, format_of, stored
from pipeline.store.state_files import StateFile

# "contradictory": two kinds of evidence exclude each other, so neither gives its verdict.
Verdict = Literal["as_examined", "changed", "not_as_examined", "contradictory", "inconclusive"]
LARGEST = 100
BAD: tuple[Verdict, ...] = ("contradictory", "changed", "not_as_examined")  # the worst first


@stored(kw_only=False)
class Answer:
    """The answer to one question. `why` names the evidence."""

    verdict: Verdict
    why: Text

    @property
    def is_bad(self) -> bool:
        return self.verdict in BAD


@stored
class Divergence:
    """The first token of an answer that is not the stored one; None where the completion has ended. `gap`: between the
    target's log p of the two, as the engine scores them now; None where it does not. `against`: it scores the token that it
    emitted lower than the stored one."""

    prompt: Text
    position: Count
    emitted: Count | None
    stored: Count | None
    gap: Number | None
    against: Flag = False


@stored
class TargetEvidence:
    """Is it the target that was examined? `log_p_difference`: mean absolute difference of log p of known tokens from what was
    recorded, in nats; None with `problem` where the engine does not give it. `log_p_largest`: the largest of these differences,
    descending, at most `LARGEST`. `text_tokens`: of the stored completions, up to the first that was not emitted."""

    dtype: NumberFormat  # that the target was examined in
    log_p_tokens: Count
    log_p_difference: Number | None
    problem: Text
    completions: Count
    equal: Count  # of them, to the stored greedy ones
    divergences: list[Divergence]
    log_p_largest: list[Number] = field(default_factory=list)
    text_tokens: Count = 0


@stored
class RequestEvidence:
    """What the engine counted for one request, or for all, and what the examined draft does on the emitted tokens: `least` and
    `most`, since tokens past the end may be accepted or not. `ties` and `beyond`: positions at which the draft must have chosen
    otherwise, within and outside the tolerance; `beyond` is None where no few choices explain the counts."""

    prompt: Text  # empty: all requests
    tokens: Count
    counted: Counts
    least: Counts
    most: Counts
    ties: list[Count]
    beyond: list[Count] | None


@stored
class DraftEvidence:
    """Is it the draft that was examined, and is it asked as exported? `near_ties`: positions at which its two best logits may be
    ordered otherwise. `exported`: draft lengths of the export, empty without an export; `lengths`: how the engine's differ.
    `others`: answers that were not compared, as their draft length changed meanwhile."""

    source: Literal["answers", "counters", "nothing"]
    requests: list[RequestEvidence]
    gamma: Number | None  # draft tokens a draft, as the engine counts them or as it was exported; None: they change
    exact: bool  # target and draft are computed in float32
    positions: Count
    near_ties: Count
    problem: Text  # why there are no counts, and what to switch on
    exported: list[Count] = field(default_factory=list)
    lengths: Text = ""
    others: Count = 0


@stored
class EndpointResult:
    """The result of one engine."""

    url: Text
    model: Text
    version: Text | None  # of the engine
    target: TargetEvidence
    draft: DraftEvidence
    about_target: Answer
    about_draft: Answer


@stored(name="result of a canary", schema=1, remedy="delete it and run `understudy canary CONFIG` again")
class CanaryResult:
    """The three answers, over all engines. `unasked`: by URL, why an engine could not be asked."""

    time: Text
    name: Text  # in the registry
    version: Text
    digest: Text
    engine: WatchedEngine
    prompts: Count
    max_tokens: Count
    target: Answer
    traffic: Answer
    draft: Answer
    endpoints: list[EndpointResult]
    unasked: dict[Text, Text]

    @property
    def is_bad(self) -> bool:
        """Whether something is not what was examined."""
        return self.target.is_bad or self.traffic.is_bad or self.draft.is_bad

    @property
    def is_complete(self) -> bool:
        """Whether every engine was asked, and target and draft could be judged."""
        return not self.unasked and "inconclusive" not in (self.target.verdict, self.draft.verdict)


CANARY = StateFile(format_of(CanaryResult), "canary/{}")
