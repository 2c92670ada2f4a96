"""What the watch says, in lines. Pure."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pipeline.config.watch import WatchConfig
from pipeline.watch.drift import SIDES
from pipeline.watch.moved import moved
from pipeline.watch.share import FIRST
from pipeline.watch.state import Last, WatchState

_USUAL_CAUSE = {
    "low": "the traffic or the target changed, another draft is served, or, if it is very low, the output is garbled; "
    "`understudy canary` tells which",
    "high": "often a loop in the output; `understudy canary` tells whether the target changed",
}


def status_line(state: WatchState, settings: WatchConfig) -> str:
    """The state in one line."""
    last = state.last
    if last is None:
        return "nothing was counted yet: the first look reads where counters and log stand; look again in some minutes"
    predicted = f", predicted {last.predicted:.3f}" if state.draft else ""
    counted = f"{last.name} {last.share:.3f}{predicted} ({_count(last)} {_when(state, last)})"
    return f"{state_line(state)}; {counted}; {_reference(state, settings)}{_paying(state)}"


def state_line(state: WatchState) -> str:
    """`steady`, or the drift, when it began, what moved, and what is usual for it."""
    if not state.has_drift:
        return "no drift"
    direction = "below" if state.verdict == "low" else "above"
    found = moved(state.domains, SIDES[state.verdict]) if state.verdict in SIDES else None
    of = (
        ""
        if found is None
        else f"; most in {found.domain} ({100 * found.change:+.1f} points, {100 * found.part:.0f}% of it)"
    )
    return (
        f"drift: acceptance is {direction} what it should be since about {clock(state.since)}{of} "
        f"({_USUAL_CAUSE[state.verdict]})"
    )


def paying_line(state: WatchState) -> str:
    """Whether speculation pays at the observed acceptance and load."""
    speedup = state.paying.speedup or 1.0
    if state.paying.pays:
        return f"speculation pays again at this load (x{speedup:.2f})"
    return f"speculation costs {100 * (1 / speedup - 1):.0f}% at this load (x{speedup:.2f}): switch it off, or shorten the drafts"


def reference_line(state: WatchState) -> str:
    """What the reference says, once it is known."""
    reference = state.drift.reference
    assert reference is not None
    level = (
        f"{100 * reference.mean_level:+.1f} points from the prediction"
        if state.draft
        else f"{reference.mean_level:.3f}"
    )
    return (
        f"reference of {reference.days:.0f} days and {reference.trials:,.0f} drafts: level {level}, hours within "
        f"{100 * reference.band:.1f} points, design effect {reference.design_effect:.1f}"
    )


def clock(time: float) -> str:
    """Unix seconds as ISO 8601, UTC, as `corpus.since` takes it."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _count(last: Last) -> str:
    return f"{last.trials:,.0f} {'drafts' if last.name == FIRST else 'draft tokens'}"


def _when(state: WatchState, last: Last) -> str:
    return (
        "in the last look" if last.time == state.reader.time else f"in the look of {clock(last.time)}, and none since"
    )


def _reference(state: WatchState, settings: WatchConfig) -> str:
    if settings.rule == "window":
        return f"rule window ({settings.window} draft tokens, threshold {settings.threshold:g})"
    if state.drift.reference is not None:
        return f"hours usually within {100 * state.drift.reference.band:.1f} points"
    days = sum(one.seconds for one in state.drift.hours) / 86_400
    trials = sum(one.n for one in state.drift.hours)
    band = "nothing is tested until then" if not state.draft else f"until then a band of {100 * settings.band:g} points"
    return (
        f"learning the reference: {days:.1f} of {settings.reference_days} days, {trials:,.0f} of "
        f"{settings.reference_drafts:,} drafts; {band}"
    )


def _paying(state: WatchState) -> str:
    speedup = state.paying.speedup
    if speedup is None:
        return ""
    return f"; speculation {'pays' if state.paying.pays else 'does not pay'} (x{speedup:.2f})"


def figures(state: WatchState) -> dict[str, Any]:
    """For `--json`."""
    last, reference = state.last, state.drift.reference
    return {
        "drift": state.verdict if state.has_drift else None,
        "since": clock(state.since),
        "draft": state.draft or None,
        "looks": state.looks,
        "watched": None if last is None else last.name,
        "acceptance": None if last is None else last.share,
        "predicted": None if last is None or not state.draft else last.predicted,
        "reference": None if reference is None else asdict(reference),
        "speedup": state.paying.speedup,
        "pays": state.paying.pays if state.paying.speedup is not None else None,
        "message": state_line(state),
    }
