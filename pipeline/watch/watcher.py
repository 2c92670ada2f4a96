"""One look: read, test, and report what has changed. Does no I/O but by its reader."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.config.watch import WatchConfig
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.watch import moved
from pipeline.watch.prediction import ServedDraft
from pipeline.watch.reading import Look
from pipeline.watch.share import WatchedShare, watched_shares, with_draft_tokens
from pipeline.watch.state import Last, WatchState
from pipeline.watch.thresholds import Window, observed_speedup
from pipeline.watch.watched_counts import WatchedCounts


@dataclass(frozen=True)
class Costs:
    """The step times of the served draft, and the context that they are taken at."""

    steps: StepCosts
    context: int


def with_look(
    state: WatchState, look: Look, served: ServedDraft, settings: WatchConfig, costs: Costs | None
) -> WatchState:
    """The state after `look`, but for the reader's. The counts since another draft is served are of both, so the look that
    finds it tests nothing."""
    after = _with_look(state, look, served, settings, costs)
    goes_on = after.has_drift and (after.verdict, after.since) == (state.verdict, state.since)
    return replace(after, champion=state.champion if goes_on else "")


def _with_look(
    state: WatchState, look: Look, served: ServedDraft, settings: WatchConfig, costs: Costs | None
) -> WatchState:
    predicted, time = served.predicted, look.time
    state = replace(state, looks=state.looks + 1)
    if served.digest != state.draft:
        return _of_draft(state, served.digest, time)
    if look.counts is None or not look.seconds:
        return state
    seconds, gamma = look.seconds, _gamma(served, settings)
    shares = watched_shares(look.counts, predicted, gamma)
    if not shares:
        return state
    if settings.rule == "window":
        counts = with_draft_tokens(look.counts, gamma)
        state = replace(state, window=state.window.with_look(counts, time, settings))
    else:
        state = replace(state, counts=state.counts.with_look(shares, time, seconds, settings))
    last = {**state.last, **{share.name: _last(share, time) for share in shares}}
    domains = moved.with_look(state.domains, look.by_domain, gamma, seconds)
    return _with_paying(replace(state, last=last, domains=domains), look, gamma, costs)


def _last(share: WatchedShare, time: float) -> Last:
    return Last(
        time=time,
        share=share.rate,
        predicted=share.predicted,
        trials=share.trials,
        dependence=float(share.dependence),
    )


def _of_draft(state: WatchState, digest: str, time: float) -> WatchState:
    """The state once another draft is champion and served. A reference stays if it is of deviations from a prediction, and the
    next look has a prediction."""
    counts = state.counts.renewed(time) if digest and state.draft else WatchedCounts(began=time)
    return replace(state, draft=digest, counts=counts, window=Window())


def _with_paying(state: WatchState, look: Look, gamma: int | None, costs: Costs | None) -> WatchState:
    if costs is None or gamma is None or not look.seconds:
        return state
    speedup = observed_speedup(look, gamma, costs.steps, costs.context)
    if speedup is None:
        return state
    return replace(state, paying=state.paying.with_look(speedup, look.time, look.seconds))


def _gamma(served: ServedDraft, settings: WatchConfig) -> int | None:
    return settings.draft_length if served.expected is None else served.expected.gamma


def ended(state: WatchState, time: float) -> WatchState:
    """The state without its drift, which was of a champion before. References stay, as where another champion is served."""
    return replace(state, counts=state.counts.renewed(time), window=Window(), champion="")


def changes(before: WatchState, after: WatchState) -> Sequence[str]:
    """What of the state has changed: `drift` (or a look that is far outside has come or gone), `paying`, `reference`."""
    changed = []
    has_changed = (before.verdict, before.since) != (after.verdict, after.since) and (
        before.has_drift or after.has_drift
    )
    if has_changed or (before.outside is None) != (after.outside is None):
        changed.append("drift")
    if before.paying.pays != after.paying.pays:
        changed.append("paying")
    if learned(before, after):
        changed.append("reference")
    return changed


def learned(before: WatchState, after: WatchState) -> Sequence[str]:
    """The counts whose reference is known since the last look."""
    return [name for name in after.counts.by_name if after.reference(name) and not before.reference(name)]
