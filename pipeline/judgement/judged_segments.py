"""Which segments of the completions are judged: the gate and `understudy check` ask the same function. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.profile import PromptCounts

LEAST_SHARE = 0.1  # of the tokens, from which on a segment is judged


@dataclass(frozen=True)
class SegmentShare:
    """A segment, and its share of all tokens."""

    name: str
    share: float

    @property
    def judged(self) -> bool:
        """Whether it must not lose acceptance. Smaller ones have too few tokens to prove it."""
        return self.share >= LEAST_SHARE


def segment_shares(counts: Sequence[PromptCounts]) -> list[SegmentShare]:
    """The segments of these prompts, by name. None where all tokens are of one: its figures are those of all tokens."""
    segments = CountTable.of(counts).segments
    tokens = {name: int(segment.columns["tokens"].sum()) for name, segment in sorted(segments.items())}
    total = sum(tokens.values())
    return [SegmentShare(name, count / total) for name, count in tokens.items()] if len(tokens) > 1 else []
