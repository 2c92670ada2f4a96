"""Which count of an engine is watched: a share of successes that has a prediction. Pure."""

from dataclasses import dataclass, replace

from pipeline.engines.counts import Counts

FIRST = "acceptance of the first draft token"
ALL = "accepted share of the draft tokens"
_PER_DRAFT = "accepted share of the draft tokens, at a constant draft length"


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
class Share:
    """`successes` of `trials`, and the share that was predicted; 0 without a prediction. `dependence`: trials of one draft, which
    agree with one another."""

    name: str
    trials: float
    successes: float
    predicted: float
    dependence: int = 1
    design_effect: float | None = None  # of drafts, as examined

    @property
    def deviation(self) -> float:
        """Successes beyond those predicted."""
        return self.successes - self.trials * self.predicted


def with_draft_tokens(counts: Counts, gamma: int | None) -> Counts:
    """With the draft tokens of an engine that counts drafts and not their tokens, at a constant draft length `gamma`."""
    if counts.draft_tokens is not None or counts.drafts is None or gamma is None:
        return counts
    return replace(counts, draft_tokens=counts.drafts * gamma)


def watched_share(counts: Counts, predicted: Predicted | None, gamma: int | None) -> Share | None:
    """The first position where the engine counts it: with a changing draft length only it is comparable, because no engine
    exports how many drafts had a second token. Else the accepted tokens of all draft tokens. None where nothing was drafted.

    `gamma`: the draft length, for an engine that counts drafts and not their tokens.
    """
    if counts.accepted_first is not None and counts.drafts:
        first = 0.0 if predicted is None else predicted.first
        return Share(
            name=FIRST,
            trials=counts.drafts,
            successes=counts.accepted_first,
            predicted=first,
            design_effect=None if predicted is None else predicted.design_effect,
        )
    if counts.accepted is None:
        return None
    length = gamma if predicted is None else predicted.gamma
    proposed = with_draft_tokens(counts, length).draft_tokens
    if not proposed:
        return None
    share = 0.0 if predicted is None else predicted.accepted / predicted.gamma
    accepted = min(counts.accepted, proposed)
    return Share(
        name=_PER_DRAFT if counts.draft_tokens is None else ALL,
        trials=proposed,
        successes=accepted,
        predicted=share,
        dependence=length or 1,
        design_effect=None if predicted is None else predicted.design_effect,
    )
