"""Which counts of an engine are watched: shares of successes that have a prediction. Pure."""

from dataclasses import dataclass, replace

from pipeline.engines.counts import Counts

FIRST = "acceptance of the first draft token"
ALL = "accepted share of the draft tokens"
_ONE_LENGTH = (
    0.01  # share of the draft tokens that may be missing or more: drafts are shorter where a context or a grammar ends
)


def short(name: str) -> str:
    """The name of a count in the names of metrics and in their labels: `first` or `all`."""
    return "first" if name == FIRST else "all"


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the counters should show, from the examination of the draft that is served.

    `first`: share of the drafts whose first token is accepted; `accepted`: accepted tokens a draft, at `gamma` draft tokens;
    `design_effect`: of drafts, by conversation.
    """

    digest: str  # of the draft
    gamma: int
    first: float
    accepted: float
    design_effect: float | None = None


@dataclass(frozen=True, kw_only=True)
class WatchedShare:
    """A watched share: `successes` of `trials`, and the share that was predicted; 0 without a prediction. `dependence`: trials of
    one draft, which agree with one another."""

    name: str
    trials: float
    successes: float
    predicted: float
    dependence: int = 1
    design_effect: float | None = None  # of drafts, as examined

    @property
    def rate(self) -> float:
        """The share as counted."""
        return self.successes / self.trials

    @property
    def deviation(self) -> float:
        """Successes beyond those predicted."""
        return self.successes - self.trials * self.predicted


def with_draft_tokens(counts: Counts, gamma: int | None) -> Counts:
    """The counts with the draft tokens of an engine that counts drafts and not their tokens, at a constant draft length
    `gamma`."""
    if counts.draft_tokens is not None or counts.drafts is None or gamma is None:
        return counts
    return replace(counts, draft_tokens=counts.drafts * gamma)


def watched_shares(counts: Counts, predicted: Predicted | None, gamma: int | None) -> list[WatchedShare]:
    """The shares of first tokens where the engine counts them, and the accepted tokens of all draft tokens. Empty where nothing
    was drafted.

    No engine exports how many drafts had a second token, so with a changing draft length only first tokens are comparable, and
    all draft tokens are watched only where nothing else is. At a constant one they show what happens at later positions.
    `gamma`: the draft length, where there is no prediction.
    """
    first, length = _first(counts, predicted), gamma if predicted is None else predicted.gamma
    is_one_length = has_one_length(counts, length)
    if first is not None and not is_one_length:
        return [first]
    name = f"{ALL} (draft length {length})" if is_one_length else ALL
    return [share for share in (first, _all(counts, predicted, length, name)) if share is not None]


def has_one_length(counts: Counts, gamma: int | None) -> bool:
    """Whether the drafts had `gamma` tokens each; taken to be so where the engine counts drafts and not their tokens."""
    if gamma is None or not counts.drafts:
        return False
    expected = gamma * counts.drafts
    return counts.draft_tokens is None or abs(counts.draft_tokens - expected) <= _ONE_LENGTH * expected


def _first(counts: Counts, predicted: Predicted | None) -> WatchedShare | None:
    if counts.accepted_first is None or not counts.drafts:
        return None
    return WatchedShare(
        name=FIRST,
        trials=counts.drafts,
        successes=counts.accepted_first,
        predicted=0.0 if predicted is None else predicted.first,
        design_effect=None if predicted is None else predicted.design_effect,
    )


def _all(counts: Counts, predicted: Predicted | None, length: int | None, name: str) -> WatchedShare | None:
    proposed = with_draft_tokens(counts, length).draft_tokens
    if counts.accepted is None or not proposed:
        return None
    return WatchedShare(
        name=name,
        trials=proposed,
        successes=min(counts.accepted, proposed),
        predicted=0.0 if predicted is None else predicted.accepted / predicted.gamma,
        dependence=length or 1,
        design_effect=None if predicted is None else predicted.design_effect,
    )
