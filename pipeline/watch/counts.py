"""What engines count of speculation, in one form for all of them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Sums over the requests of a time. A count that the engine does not export is None.

    `drafts`: proposals of the draft, one a target call that verifies (rounds). `draft_tokens`: proposed. `accepted`: accepted
    draft tokens. `accepted_first`: drafts whose first token was accepted. `tokens`: emitted, the target's own included.
    """

    drafts: float = 0.0
    draft_tokens: float | None = None
    accepted: float | None = None
    accepted_first: float | None = None
    tokens: float | None = None

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            drafts=self.drafts + other.drafts,
            draft_tokens=_sum(self.draft_tokens, other.draft_tokens),
            accepted=_sum(self.accepted, other.accepted),
            accepted_first=_sum(self.accepted_first, other.accepted_first),
            tokens=_sum(self.tokens, other.tokens),
        )


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One look at all engines and the log.

    `time`: Unix seconds. `seconds`: since the look before; None at the first. `counts`: what was counted since then, over all
    replicas; None where nothing could be read. `running`: requests in decode on a replica, on average over those that answered.
    `by_domain`: the counts of the log's rows since then, where it has domains. `problems`: what could not be read, a line each.
    """

    time: float
    seconds: float | None
    counts: Counts | None
    running: float | None = None
    by_domain: Mapping[str, Counts] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
