"""How many tokens an engine drafts, beside what its export has. Pure.

vLLM and SGLang never clip a draft, so draft tokens over drafts of an answer is the draft length, or the mean of several where the
length changed meanwhile. llama.cpp counts no drafts: its length is the one that explains the counts (`drafted.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.engines.counts import Counts
from pipeline.export.schema import Expected

_MOST_OTHERS = (
    0.5  # share of the answers that may have a lower mean length: an engine without room for all tokens drafts fewer
)


@dataclass(frozen=True)
class ExpectedLengths:
    """Draft lengths above 0, ascending, with which the engine should draft. `exported`: its export states them; else they are
    those of the examination, and the engine may have others."""

    values: tuple[int, ...]
    exported: bool

    @property
    def text(self) -> str:
        return " or ".join(map(str, self.values))


@dataclass(frozen=True)
class LengthsSeen:
    """The draft lengths that the counts show. `by_answer`: the length of every draft of an answer, None where it changed
    meanwhile. `wrong`: what is not as exported."""

    by_answer: list[int | None]
    wrong: str = ""

    @property
    def of_all(self) -> int | None:
        """The length of all answers; None where there are several."""
        lengths = {*self.by_answer}
        return lengths.pop() if len(lengths) == 1 else None


def exported_lengths(expected: Expected | None, digest: str, examined: int, at_once: int | None) -> ExpectedLengths:
    """The draft lengths of the export `expected`; only that of the champion, whose digest is given, is of what is served.
    `at_once`: the most requests that the engine has at a time, where it is known, so that no more of a schedule is used."""
    if expected is None or expected.draft.digest != digest:
        return ExpectedLengths((examined,), exported=False)
    by_batch = expected.draft_lengths_by_batch[:at_once]
    return ExpectedLengths(tuple(sorted({*by_batch} - {0})) or (expected.gamma,), exported=True)


def lengths_seen(counts: Sequence[Counts], wanted: ExpectedLengths) -> LengthsSeen:
    """The draft lengths of answers with counts. Where the engine counts no drafts, the length is taken to be as exported."""
    means = [
        float(max(wanted.values))
        if not answer.drafts or answer.draft_tokens is None
        else answer.draft_tokens / answer.drafts
        for answer in counts
    ]
    whole = {int(mean) for mean in means if mean == int(mean)}
    if not wanted.exported:
        return LengthsSeen([int(mean) if {mean} == {*means} and whole else None for mean in means])
    # A mean of several lengths is never the lowest or the highest of them, and hardly the same in all answers.
    low, high = wanted.values[0], wanted.values[-1]
    is_one = len(means) > 1 and len({*means}) == 1 and bool(whole)
    outside = [mean for mean in means if not low <= mean <= high]
    is_wrong = max(means, default=0) > high or len(outside) > _MOST_OTHERS * len(means)
    if is_wrong or (is_one and not whole & {*wanted.values}):
        drafted = f"{means[0]:g}" if len({*means}) == 1 else f"{min(means):.3g} to {max(means):.3g}"
        return LengthsSeen(
            [int(mean) if mean == int(mean) else None for mean in means], not_as_exported(drafted, wanted)
        )
    return LengthsSeen([int(mean) if mean in (low, high) or is_one else None for mean in means])


def not_as_exported(drafted: object, wanted: ExpectedLengths) -> str:
    """What is wrong about an engine that drafts so many tokens."""
    return f"the engine drafts {drafted} tokens at a time, and its export has {wanted.text}"
