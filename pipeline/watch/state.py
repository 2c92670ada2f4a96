"""What the watch remembers from one look to the next: one small file, `watch/<registered name>.json` in the store.

A watch of the same name that compares something else (`compared.py`) has its own, `watch/<registered name>@<hash>.json`.
"""

from collections.abc import Mapping
from dataclasses import asdict, field
from math import inf

from pipeline.store.artifacts import Store
from pipeline.store.parsing import Amount, Count, Moment, Text, format_of, stored
from pipeline.store.state_files import StateFile
from pipeline.watch.compared import ComparedCount
from pipeline.watch.drift import SIDES, Drift, Outside, started
from pipeline.watch.moved import Recent
from pipeline.watch.reading import ReaderState
from pipeline.watch.reference import SLOTS, Reference
from pipeline.watch.share import FIRST
from pipeline.watch.thresholds import Paying, Window
from pipeline.watch.watched_counts import WatchedCounts


@stored
class Last:
    """A count in the last look that had it: for `/metrics`, and for readers of the state. `share`: as counted. `dependence`:
    trials of a draft."""

    time: Moment
    share: Amount
    predicted: Amount
    trials: Amount
    dependence: Amount = 1.0


@stored(name="state of the watch", schema=1, remedy="move it away; the watch then learns its reference again")
class WatchState:
    """The state of a watch. `draft`: the digest of the exported draft, empty without one. `domains`, `last`: by the name of the
    count. `told`: the states that the receiver of notices has accepted. `compared`: None before the first look, and in a file of
    an earlier version. `champion`: while there is a drift, the digest of the registry's champion under which it was found; empty
    if not known."""

    reader: ReaderState
    draft: Text
    counts: WatchedCounts
    window: Window
    domains: Mapping[Text, Mapping[Text, Recent]]
    paying: Paying
    last: Mapping[Text, Last] = field(default_factory=dict)
    told: Mapping[Text, Text] = field(default_factory=dict)
    looks: Count = 0
    compared: ComparedCount | None = None
    champion: Text = ""

    @property
    def known_compared(self) -> ComparedCount | None:
        """What the looks so far have compared; of an earlier version by the state of its reader. None where nothing states it."""
        if self.compared is not None or not self.looks:
            return self.compared
        log = () if self.reader.log is None else (self.reader.log.path,)
        places = tuple(self.reader.replicas) or log
        if not places:  # all replicas were down for days
            return None
        return ComparedCount(
            reads="endpoints" if self.reader.replicas else "log",
            places=places,
            engine=self.reader.watched,
            rule="window" if self.window.counts else "sequential",
            is_predicted=bool(self.draft),
        )

    @property
    def verdict(self) -> str:
        """`steady`, `low` or `high`, by the rule that is in use: only one of the two is updated."""
        return "low" if self.window.low else self.counts.verdict

    @property
    def since(self) -> float:
        return self.window.since if self.window.low else self.counts.since

    @property
    def has_drift(self) -> bool:
        return self.verdict in SIDES

    @property
    def shown(self) -> str | None:
        """The count to show where there is room for one: the one that drifts, else first tokens; None before the first look."""
        latest = [name for name, share in self.last.items() if share.time == self.looked_at]
        return self.counts.drifting or min(latest, key=lambda name: name != FIRST, default=None)

    @property
    def outside(self) -> tuple[str, Outside] | None:
        """The count that is far from its prediction in the last look that had counts, without a drift yet."""
        latest = {name for name, share in self.last.items() if share.time == self.looked_at}
        outliers = [(name, outlier) for name, outlier in self.counts.outside.items() if name in latest]
        return min(outliers, key=lambda item: item[1].seconds, default=None)

    def reference(self, name: str) -> Reference | None:
        """The reference of this count, once it is known."""
        return self.counts.by_name[name].drift.reference if name in self.counts.by_name else None

    @property
    def looked_at(self) -> float | None:
        """When something was counted last, Unix seconds."""
        return max((share.time for share in self.last.values()), default=None)


def _check(state: WatchState) -> None:
    for watched in state.counts.by_name.values():
        _check_drift(watched.drift)
    if any(
        not 0 <= value < inf for counts in state.window.counts for value in asdict(counts).values() if value is not None
    ):
        raise ValueError("window.counts: numbers of 0 or more are expected")


def _check_drift(drift: Drift) -> None:
    if set(drift.looks) != set(SIDES) or set(drift.blocks) != set(SIDES):
        raise ValueError("drift: a chart for each side is expected")
    sizes = {len(detector.components) for charts in (drift.looks, drift.blocks) for detector in charts.values()}
    if sizes != {len(started(0.0).looks["low"].components)} or len(drift.end.components) != 1:
        raise ValueError("drift: another number of sizes than this version tests")
    if drift.reference is not None and len(drift.reference.level) != SLOTS:
        raise ValueError("drift.reference.level: a level for each block of the day is expected")


STATE = StateFile(format_of(WatchState, check=_check), "watch/{}")


def all_states(store: Store, name: str) -> dict[str, WatchState]:
    """The states of this registered name, by the key of the file: the first one has the name itself."""
    by_key = {key: STATE.find(store, key) for key in STATE.keys(store, name)}
    return {key: state for key, state in by_key.items() if state is not None}


def new_state(time: float) -> WatchState:
    """The state before the first look."""
    return WatchState(
        reader=ReaderState(), draft="", counts=WatchedCounts(began=time), window=Window(), domains={}, paying=Paying()
    )
