"""What a decode did, counted: calls, drafted and accepted tokens, by position. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.speculation.batch import Completion, Seconds


@dataclass(frozen=True)
class Statistics:
    """Sums over completions, without overrun; what a round accepts past a stop token counts, as engines count it.

    A round is a target call after the prefill; its last token (a correction or bonus) is not a drafted one. Positions
    count from the first drafted token of a round."""

    completions: int
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    rejected: int  # first rejections: rounds in which a drafted token fell
    accepted_at: tuple[int, ...]  # rounds whose drafted token i stood
    drafted_at: tuple[int, ...]  # rounds that drafted a token i
    histogram: tuple[int, ...]  # rounds in which exactly n drafted tokens stood
    seconds: Seconds  # of all completions; of one batch, each completion counts its own share of the wall

    @property
    def tokens_per_target_call(self) -> float:
        """Omega, prefill not counted: the round that follows it sees the prompt's last token (start 0)."""
        return self.tokens / self.rounds

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds, as vLLM logs it."""
        return 1 + self.accepted / self.rounds

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted of all drafted tokens; falls with the draft length even for a good draft."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def examined_acceptance_rate(self) -> float:
        """Accepted of those that were examined: tokens after a rejection are not. Estimates alpha."""
        examined = self.accepted + self.rejected
        return self.accepted / examined if examined else 0.0


def count(completions: Iterable[Completion]) -> Statistics:
    """Statistics of some completions, at least one. Raises ValueError for none."""
    done = [completion for completion in completions if completion.rounds]
    if not done:
        raise ValueError("nothing was decoded")
    rounds = [pair for item in done for pair in zip(item.drafted, item.accepted, strict=True)]
    most = max(drafted for drafted, _ in rounds)
    stood = Counter(accepted for _, accepted in rounds)
    seconds = Seconds()
    for item in done:
        seconds.add(item.seconds)
    return Statistics(
        len(done),
        sum(item.length or len(item.tokens) for item in done),
        len(rounds),
        sum(drafted for drafted, _ in rounds),
        sum(accepted for _, accepted in rounds),
        sum(accepted < drafted for drafted, accepted in rounds),
        tuple(sum(accepted > index for _, accepted in rounds) for index in range(most)),
        tuple(sum(drafted > index for drafted, _ in rounds) for index in range(most)),
        tuple(stood[number] for number in range(most + 1)),
        seconds,
    )
