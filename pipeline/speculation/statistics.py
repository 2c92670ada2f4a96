"""Counts of a decode: target calls, drafted and accepted tokens, by position. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.speculation.batch import Completion, Seconds


@dataclass(frozen=True)
class Statistics:
    """Sums over completions. Tokens past the length limit are not counted; accepted tokens past a stop token are, as engines
    count them.

    A round is a target call after the prefill. Its last token (the correction or the bonus token) is not a draft token.
    Position 0 is the first draft token of a round."""

    completions: int
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    rejected: int  # first rejections: rounds in which a draft token was rejected
    accepted_at: tuple[int, ...]  # rounds whose draft token i was accepted
    drafted_at: tuple[int, ...]  # rounds that drafted a token at position i
    histogram: tuple[int, ...]  # rounds with exactly n accepted tokens
    seconds: Seconds  # of all completions; each completion of a batch counts the rounds it took part in

    @property
    def tokens_per_target_call(self) -> float:
        """Omega, without the prefill call: the first round starts at the last token of the prompt (start 0)."""
        return self.tokens / self.rounds

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds, as vLLM logs it."""
        return 1 + self.accepted / self.rounds

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted tokens; it falls with the draft length even for a good draft."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def examined_acceptance_rate(self) -> float:
        """Accepted / examined tokens; tokens after a rejection are not examined. Estimates alpha."""
        examined = self.accepted + self.rejected
        return self.accepted / examined if examined else 0.0


def count(completions: Iterable[Completion]) -> Statistics:
    """Statistics of one or more completions. Raises ValueError for none."""
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
