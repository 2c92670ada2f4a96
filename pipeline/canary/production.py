"""The first drafts of production after a reload, beside what the champion's examination predicts. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pipeline.engines.counts import Counts
from pipeline.export.schema import CounterFigures, Expected
from pipeline.store.parsing import Number, Text, stored
from pipeline.watch.prediction import predicted_by
from pipeline.watch.share import FIRST, Predicted, WatchedShare, has_one_length, watched_shares

# "otherwise": as predicted for the other `draft_sample_method` than the export's.
State = Literal["as_predicted", "short", "otherwise", "too_few", "not_known"]


@stored
class Production:
    """What production's counters show. `length`: mean acceptance length, with `low`, where a draft as examined has it at the
    least; `first`: share of the drafts whose first token was accepted, and as predicted."""

    state: State
    why: Text
    drafts: Number = 0.0
    length: Number | None = None
    low: Number | None = None
    first: Number | None = None
    predicted_first: Number | None = None


def compare(counts: Counts | None, expected: Expected | None, digest: str, margin: float) -> Production:
    """The comparison with the prediction. Short where the mean acceptance length lies below the prediction interval for so many
    prompts, and the accepted share of all draft tokens, or of the first ones where the engine counts them, more than `margin`
    below the prediction. With a changing draft length only first tokens are comparable. Otherwise where it is not as predicted,
    above or below, and is so for the other way of choosing draft tokens. `digest`: of the champion.
    """
    if expected is None:
        return Production(
            state="not_known", why="there is no expected.json to compare with (promote.export or watch.expected)"
        )
    if expected.draft.digest != digest:
        why = f"the expected.json is of {expected.draft.label}, not of the champion; call `understudy champion settle CONFIG`"
        return Production(state="not_known", why=why)
    if counts is None or counts.drafts is None or counts.accepted is None:
        return Production(state="not_known", why="the engines' counters do not include the number of accepted drafts")
    figures = expected.deployed.by_draft_length[expected.gamma]
    drafts, of_a_prompt = counts.drafts, figures.drafts / expected.deployed.prompts
    known = [prompts for prompts in sorted(figures.fresh_prompts) if drafts >= prompts * of_a_prompt]
    if not known:
        needed = min(figures.fresh_prompts, default=0) * of_a_prompt
        return Production(state="too_few", why=f"{drafts:.0f} drafts of production, of {needed:.0f}", drafts=drafts)
    shares = _shares(counts, predicted_by(expected, expected.deployed))
    production = _judged(counts, drafts, shares, figures, figures.fresh_prompts[known[-1]].low, margin)
    if expected.other_drafting is None:
        return production
    others = _shares(counts, predicted_by(expected, expected.other_drafting))
    is_other = bool(others) and all(abs(share.rate - share.predicted) <= margin for share in others)
    if not is_other or all(abs(share.rate - share.predicted) <= margin for share in shares):
        return production
    ways = ("greedily", "by sampling") if expected.draft_sampling == "probabilistic" else ("by sampling", "greedily")
    shown = f"that is what a draft shows whose tokens are chosen {ways[0]}, and the export has them chosen {ways[1]}"
    return replace(production, state="otherwise", why=f"{production.why}; {shown}")


def _shares(counts: Counts, predicted: Predicted) -> list[WatchedShare]:
    """The shares of the watch that are comparable."""
    is_one_length = has_one_length(counts, predicted.gamma)
    shares = watched_shares(counts, predicted, predicted.gamma)
    return [share for share in shares if share.name == FIRST or is_one_length]


def _judged(
    counts: Counts,
    drafts: float,
    shares: Sequence[WatchedShare],
    figures: CounterFigures,
    low: float | None,
    margin: float,
) -> Production:
    accepted = counts.accepted
    assert accepted is not None  # looked at by `compare`
    predicted = figures.accepted_per_position[0]
    first = next((share.rate for share in shares if share.name == FIRST), None)
    length = 1 + accepted / drafts if any(share.name != FIRST for share in shares) else None
    is_low = length is None or low is None or length < low
    predicted_length = f"at least {low:.3f}" if low is not None else f"{1 + figures.accepted / figures.drafts:.3f}"
    shown = [] if length is None else [f"mean acceptance length {length:.3f}, {predicted_length} was predicted"]
    shown += [] if first is None else [f"{FIRST} {first:.3f}, {predicted:.3f} was predicted"]
    if not shares:
        state: State = "not_known"
        shown.append("the draft length changes and the engine does not count by position")
    else:
        is_beyond = any(share.rate < share.predicted - margin for share in shares)
        state = "short" if is_low and is_beyond else "as_predicted"
    return Production(
        state=state,
        why=f"{drafts:.0f} drafts of production: {'; '.join(shown)}",
        drafts=drafts,
        length=length,
        low=low,
        first=first,
        predicted_first=predicted,
    )
