"""All findings of the watch of one registered name: the state of what is compared now, and what other looks have found. Pure.

The one place that decides which drifts are open. Lines, `--json`, exit code, `/metrics`, MLflow and notices are derived from it,
so none of them can pass over a drift that was found under another fingerprint (`compared.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.watch.state import WatchState
from pipeline.watch.watcher import ended

_STEADY = "steady"


@dataclass(frozen=True)
class Due:
    """What is to be sent to the receiver of notices: the drift of `state`, or `none`, the end of all. `keys`: the states that
    remember `told` once it was accepted."""

    state: WatchState
    keys: Sequence[str]
    told: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The states of one registered name. `own`: the state of what is compared now, which is kept as `key`. `others`: the other
    states, by key. `path`: gives the file of a key."""

    name: str
    key: str
    own: WatchState
    others: Mapping[str, WatchState]
    path: Callable[[str], Path]

    @property
    def states(self) -> Mapping[str, WatchState]:
        """All states by key, the own one first."""
        return {self.key: self.own, **self.others}

    @property
    def open(self) -> Mapping[str, WatchState]:
        """The states that have a drift, by key, the own one first."""
        return {key: state for key, state in self.states.items() if state.has_drift}

    @property
    def elsewhere(self) -> Mapping[str, WatchState]:
        """Those of the open ones of which the looks of now are no evidence."""
        return {key: state for key, state in self.open.items() if key != self.key}

    @property
    def shown(self) -> WatchState:
        """The state to show where there is room for one."""
        return next(iter(self.open.values()), self.own)

    @property
    def due(self) -> Sequence[Due]:
        """Each drift that the receiver has not accepted; where none is open and it has accepted one, the end. So the end of one
        drift is not sent while another one goes on."""
        if self.open:
            told = {key: f"{state.verdict} {state.since:.0f}" for key, state in self.open.items()}
            return [Due(self.states[key], (key,), now) for key, now in told.items() if _known(self.states[key]) != now]
        known = {key: state for key, state in self.states.items() if _known(state) != _STEADY}
        return [Due(max(known.values(), key=lambda state: state.since), tuple(known), _STEADY)] if known else []

    def having(self, changed: Mapping[str, WatchState]) -> "Findings":
        """The findings with other states, by key."""
        states = {**self.states, **changed}
        own = states.pop(self.key)
        return replace(self, own=own, others=states)

    def under(self, champion: str, asked: Mapping[str, WatchState], now: float) -> "Findings":
        """The findings without those of the `asked` drifts, by key, that were found while another draft than `champion` was the
        registry's. What is compared now is of the draft that its export names, if there is one."""
        changed = dict[str, WatchState]()
        for key, state in asked.items():
            is_served = key == self.key and bool(state.draft)
            known = state.champion or (
                "" if is_served else state.draft
            )  # of an earlier version only the export is known
            if not known:
                changed[key] = replace(state, champion=champion)
            elif known != champion and not is_served:
                changed[key] = ended(state, now)
        return self.having(changed)

    def after(self, told: Due) -> "Findings":
        """The findings once the receiver has accepted a notice."""
        now = {key: replace(state, told={**state.told, "drift": told.told}) for key, state in self.states.items()}
        return self.having({key: now[key] for key in told.keys})


def _known(state: WatchState) -> str:
    """What the receiver has accepted about a state."""
    return state.told.get("drift", _STEADY)
