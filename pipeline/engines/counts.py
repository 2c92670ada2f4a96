"""What engines count of speculation, in one form for all of them. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Sums over the requests of a time. A count that the engine does not export is None.

    `drafts`: proposals of the draft, one a target call that verifies (rounds). `draft_tokens`: proposed. `accepted`: accepted
    draft tokens. `accepted_first`: drafts whose first token was accepted. `tokens`: emitted, the target's own included.
    """

    drafts: float | None = None
    draft_tokens: float | None = None
    accepted: float | None = None
    accepted_first: float | None = None
    tokens: float | None = None

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            drafts=_sum(self.drafts, other.drafts),
            draft_tokens=_sum(self.draft_tokens, other.draft_tokens),
            accepted=_sum(self.accepted, other.accepted),
            accepted_first=_sum(self.accepted_first, other.accepted_first),
            tokens=_sum(self.tokens, other.tokens),
        )

    @property
    def examined_acceptance_rate(self) -> float | None:
        """Estimate of the probability that a draft token is accepted; None where the counts do not determine it.

        The acceptance rate a at which g independent tokens a draft give the accepted tokens a draft that were counted:
        a + a^2 + ... + a^g (Leviathan et al. 2023, equation 1 less the target's own token). g need not be whole. So drafts of
        different lengths are comparable, which accepted over proposed tokens are not. Without a number of drafts it is that of
        the target's own tokens, one a call.
        """
        if self.accepted is None or not self.draft_tokens:
            return None
        drafts = self.drafts
        if drafts is None and self.tokens is not None:
            drafts = self.tokens - self.accepted
        if drafts is None or drafts <= 0:
            return None
        return _solved(min(self.accepted, self.draft_tokens) / drafts, max(1.0, self.draft_tokens / drafts))


def _solved(accepted: float, length: float) -> float:
    """a in [0, 1] for which a (1 - a^length) / (1 - a) is `accepted`; it grows with a."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * (1 - middle**length) / (1 - middle) < accepted else (low, middle)
    return (low + high) / 2


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
