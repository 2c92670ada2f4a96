"""What the watch reports, in lines. Pure."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pipeline.config.watch import WatchConfig
from pipeline.watch.drift import SIDES, Outside
from pipeline.watch.findings import Findings
from pipeline.watch.moved import moved
from pipeline.watch.share import FIRST
from pipeline.watch.state import Last, WatchState

_DIRECTION = {"low": "below", "high": "above"}
_USUAL_CAUSE = {
    "low": "the traffic or the target changed, another draft is served, or, if it is very low, the output is garbled; "
    "`understudy canary` finds out which",
    "high": "often a loop in the output; `understudy canary` checks whether the target changed",
}


def status_line(findings: Findings, settings: WatchConfig) -> str:
    """All findings in one line."""
    return "; ".join([_own_line(findings.own, settings), *elsewhere_lines(findings)])


def drift_lines(findings: Findings) -> list[str]:
    """A line for each drift that is open."""
    return [*([state_line(findings.own)] if findings.own.has_drift else []), *elsewhere_lines(findings)]


def elsewhere_lines(findings: Findings) -> list[str]:
    """A line for each drift that looks at something else have found: those of now are no evidence of it."""
    return [
        f"{state_line(state)}; found in {compared_text(state)}, and this look compares something else and cannot end "
        f"it: look with the config that found it, or move {findings.path(key)} away"
        for key, state in findings.elsewhere.items()
    ]


def compared_text(state: WatchState) -> str:
    """What the looks of a state have compared."""
    known = state.known_compared
    return "something else" if known is None else known.text


def _own_line(state: WatchState, settings: WatchConfig) -> str:
    if state.looked_at is None:
        return (
            "nothing was counted yet: the first look records where counters and log stand; look again in some minutes"
        )
    counted = [
        _counted(name, share, bool(state.draft)) for name, share in state.last.items() if share.time == state.looked_at
    ]
    when = _when(state, state.looked_at)
    return f"{state_line(state)}; {when}: {', '.join(counted)}; {_reference(state, settings)}{_paying(state)}"


def state_line(state: WatchState) -> str:
    """Whether there is a drift, when it began, what moved, and what is usual for it."""
    if not state.has_drift:
        return "no drift" if state.outside is None else _outside_text(*state.outside)
    what = state.counts.drifting or "acceptance"
    domain = moved(state.domains.get(state.shown or "", {}), SIDES[state.verdict]) if state.verdict in SIDES else None
    of = (
        ""
        if domain is None
        else f"; most in {domain.domain} ({100 * domain.change:+.1f} points, {100 * domain.part:.0f}% of it)"
    )
    return (
        f"drift: {what} is {_DIRECTION[state.verdict]} what it should be since about {clock(state.since)}{of} "
        f"({_USUAL_CAUSE[state.verdict]})"
    )


def _outside_text(name: str, outside: Outside) -> str:
    why = "until then it may be a burst of other traffic: watch.burst_minutes" if outside.as_burst else "too few drafts"
    return (
        f"no drift yet, but {name} is far {_DIRECTION[outside.side]} what it should be: an alarm in about "
        f"{outside.seconds / 60:,.0f} minutes if it stays there ({why})"
    )


def paying_line(state: WatchState) -> str:
    """Whether speculation pays at the observed acceptance and load."""
    speedup = state.paying.speedup or 1.0
    if state.paying.pays:
        return f"speculation pays again at this load (x{speedup:.2f})"
    return (
        f"speculation is {100 * (1 / speedup - 1):.0f}% slower than plain decoding at this load (x{speedup:.2f}); turn it off or "
        "lower the draft length"
    )


def reference_line(state: WatchState, name: str) -> str:
    """The reference of the count `name`, once it is known."""
    reference = state.reference(name)
    assert reference is not None
    level = (
        f"{100 * reference.mean_level:+.1f} points from the prediction"
        if state.draft
        else f"{reference.mean_level:.3f}"
    )
    return (
        f"{name}: reference of {reference.days:.0f} days and {_trials(name, reference.trials)}: level {level}, hours within "
        f"{100 * reference.band:.1f} points, design effect {reference.design_effect:.1f}"
    )


def clock(time: float) -> str:
    """Unix seconds as ISO 8601, UTC, as `corpus.since` takes it."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _counted(name: str, last: Last, is_predicted: bool) -> str:
    predicted = f", predicted {last.predicted:.3f}" if is_predicted else ""
    return f"{name} {last.share:.3f}{predicted} ({_trials(name, last.trials)})"


def _trials(name: str, trials: float) -> str:
    return f"{trials:,.0f} {'drafts' if name == FIRST else 'draft tokens'}"


def _when(state: WatchState, time: float) -> str:
    return "last look" if time == state.reader.time else f"look of {clock(time)}, and nothing counted since"


def _reference(state: WatchState, settings: WatchConfig) -> str:
    if settings.rule == "window":
        return f"rule window ({settings.window} draft tokens, threshold {settings.threshold:g})"
    name = state.shown or ""
    if (reference := state.reference(name)) is not None:
        return f"hours usually within {100 * reference.band:.1f} points"
    hours = state.counts.by_name[name].drift.hours if name in state.counts.by_name else ()
    days = sum(hour.seconds for hour in hours) / 86_400
    drafts = sum(hour.n for hour in hours) / (state.last[name].dependence if name in state.last else 1.0)
    band = "nothing is tested until then" if not state.draft else f"until then a band of {100 * settings.band:g} points"
    return (
        f"learning the reference: {days:.1f} of {settings.reference_days} days, {drafts:,.0f} of "
        f"{settings.reference_drafts:,} drafts; {band}"
    )


def _paying(state: WatchState) -> str:
    speedup = state.paying.speedup
    if speedup is None:
        return ""
    return f"; speculation {'pays' if state.paying.pays else 'does not pay'} (x{speedup:.2f})"


def figures(findings: Findings) -> dict[str, Any]:
    """The figures for `--json`: those of the state that has a drift, and each drift that is open."""
    state = findings.shown
    name = state.shown
    last = None if name is None else state.last.get(name)
    reference = None if name is None else state.reference(name)
    return {
        "drift": state.verdict if state.has_drift else None,
        "since": clock(state.since),
        "outside": None if state.outside is None else {"count": state.outside[0], **asdict(state.outside[1])},
        "draft": state.draft or None,
        "looks": state.looks,
        "watched": name,
        "acceptance": None if last is None else last.share,
        "predicted": None if last is None or not state.draft else last.predicted,
        "reference": None if reference is None else asdict(reference),
        "speedup": state.paying.speedup,
        "pays": state.paying.pays if state.paying.speedup is not None else None,
        "message": "; ".join(drift_lines(findings)) or state_line(state),
        "drifts": [
            {
                "drift": open_state.verdict,
                "since": clock(open_state.since),
                "compared": compared_text(open_state),
                "file": str(findings.path(key)),
            }
            for key, open_state in findings.open.items()
        ],
    }
