"""A look, what follows from it, and the state that is kept: lines, a notice, a point in MLflow."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pipeline.config.root import Config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.handover.link import LINK
from pipeline.handover.notice import send
from pipeline.handover.settle import lock_name
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.progress import Progress
from pipeline.registry.mlflow_client import tracking_location
from pipeline.registry.registry import registry_for
from pipeline.registry.watch_series import log_watch
from pipeline.store.artifacts import Store
from pipeline.store.files import content_key
from pipeline.watch.compared import Compared, compared
from pipeline.watch.counts import Observation
from pipeline.watch.drift_notice import drift_notice, due
from pipeline.watch.lines import paying_line, reference_line, state_line
from pipeline.watch.prediction import Served, check_countable, served
from pipeline.watch.reading import Reader
from pipeline.watch.share import short
from pipeline.watch.state import STATE, WatchState, all_states, new_state
from pipeline.watch.watcher import Costs, changes, learned, observed

_HOUR = 3600.0


@dataclass
class Watch:
    """The watch of one registered name. `look` may be called for months: it raises nothing that the next look may not have."""

    config: Config
    store: Store
    name: str
    progress: Progress
    state: WatchState
    key: str  # of the state's file
    _reader: Reader | None = None
    _said: Sequence[str] = ()
    _unsent: str = ""  # why the last notice was not accepted

    def look(self, now: float) -> Observation:
        """Read, test, tell, and write the state. UnderstudyError where the export cannot be read, UsageError
        where nothing says the draft length of an engine that counts drafts only."""
        found = served(self.config)
        check_countable(found, self.config.watch)
        self._check_link(found)
        self._choose(found, now)
        costs = self._costs(found)  # before counters are read: what an error has read is lost
        if self._reader is None:
            self._reader = Reader(self.config.watch, found.engine, self.state.reader)
        observation, reader = self._reader.read(now)
        if self.store.is_locked(lock_name(self.name)):  # replicas load another draft, one after another
            observation = replace(observation, counts=None, by_domain={})
        for note in observation.notes:
            self.progress.line(f"{self.name}: {note}")
        elsewhere = self.found_elsewhere()
        self._say_problems((*observation.problems, *([] if elsewhere is None else [self.line_of(*elsewhere)])))
        before = self.state
        after = observed(before, observation, found, self.config.watch, costs)
        after = replace(after, reader=reader, compared=compared(self.config.watch, found))
        for change in changes(before, after):
            self._say(change, after)
        if after.has_drift or elsewhere is None:  # the end of one drift is not told while another one goes on
            after = self._told(after, now)
        self._log(before, after, now)
        self.state = after
        STATE.write(self.store, after, self.key)
        return observation

    def _choose(self, found: Served, now: float) -> None:
        """The state of what is compared now: its looks go on where nothing but the champion has changed. Else it is another one,
        and what the others have found stays."""
        wanted = compared(self.config.watch, found)
        if self._goes_on(self.state, wanted, found):
            return
        states = all_states(self.store, self.name)
        self._reader = None
        self.key = next((key for key, one in states.items() if self._goes_on(one, wanted, found)), "")
        if self.key:
            self.state = states[self.key]
            return
        self.key = f"{self.name}@{content_key([asdict(wanted), found.digest])[:12]}" if states else self.name
        self.state = new_state(now)
        self.progress.line(
            f"{self.name}: the first look at {wanted.text}; what other looks have found stays in "
            f"{STATE.path(self.store, self.name)}, and this watch remembers in {STATE.path(self.store, self.key)}"
        )

    def _goes_on(self, state: WatchState, wanted: Compared, found: Served) -> bool:
        known = state.known_compared
        if not state.looks or (known is not None and not known.is_of(wanted)):
            return not state.looks
        return state.draft == found.digest or self._is_champion(found)

    def _is_champion(self, found: Served) -> bool:
        """Whether the exported draft is the champion: then it has become that since. Without a registry the link says it."""
        if not tracking_location(self.config, self.store).exists:
            return found.by_link
        return self._champion() == found.digest

    def _champion(self) -> str | None:
        """The digest of the registry's champion; None where there is none, or no registry. RegistryUnavailable."""
        if not tracking_location(self.config, self.store).exists:
            return None
        champion = registry_for(self.config, self.store).champion()
        return None if champion is None else champion.digest

    def found_elsewhere(self) -> tuple[str, WatchState] | None:
        """A drift that looks at something else have found, with the key of its state: this look is no evidence of it. A drift of
        a draft that is no longer champion is over."""
        for key, state in all_states(self.store, self.name).items():
            if key == self.key or not state.has_drift:
                continue
            try:
                champion = self._champion() if state.draft else None
            except UnderstudyError:  # not known, so not over
                champion = None
            if champion is None or champion == state.draft:
                return key, state
        return None

    def line_of(self, key: str, state: WatchState) -> str:
        """Of a drift that was found elsewhere."""
        known = state.known_compared
        what = "something else" if known is None else known.text
        return (
            f"{self.name}: {state_line(state)}; found in {what}, and this look, which compares something else, is no evidence of "
            f"it: look with the config that found it, or move {STATE.path(self.store, key)} away"
        )

    def _check_link(self, found: Served) -> None:
        """A prediction that is lost would end a drift, and begin a reference of what drifted."""
        export = self.config.promote.export
        known = [one for one in all_states(self.store, self.name).values() if one.draft]
        if found.expected is None and known and export is not None:
            raise UnderstudyError(
                f"promote.export.out: the link {Path(export.out) / LINK} is gone, by which the watch knows the prediction. Is "
                "the disk mounted? `understudy champion settle CONFIG` makes the link. To watch without a prediction, move "
                f"{STATE.path(self.store, self.name)} away"
            )

    def _say(self, change: str, state: WatchState) -> None:
        if change == "reference":
            for count in learned(self.state, state):
                self.progress.line(f"{self.name}: {reference_line(state, count)}")
        elif change == "paying":
            (self.progress.line if state.paying.pays else self.progress.warn)(f"{self.name}: {paying_line(state)}")
        else:
            (self.progress.warn if state.has_drift else self.progress.line)(f"{self.name}: {state_line(state)}")

    def _say_problems(self, problems: Sequence[str]) -> None:
        """Once each, until it is over: a replica that is down for days is no line every 5 minutes."""
        for problem in problems:
            if problem not in self._said:
                self.progress.warn(problem)
        self._said = problems

    def _told(self, state: WatchState, now: float) -> WatchState:
        settings, now_due = self.config.watch.notice, due(state)
        if settings is None or now_due is None:
            return state
        try:
            send(settings, drift_notice(state, self.name, now))
        except UnderstudyError as error:
            if str(error) != self._unsent:
                self.progress.warn(str(error))
            self._unsent = str(error)
            return state
        self._unsent = ""
        return replace(state, told={**state.told, "drift": now_due})

    def _log(self, before: WatchState, after: WatchState, now: float) -> None:
        """A point an hour, and one at each change."""
        looked_at = before.looked_at
        is_due = looked_at is None or looked_at // _HOUR != now // _HOUR or bool(changes(before, after))
        if after.looked_at != now or not is_due:
            return
        figures = {"watch_drift": float(after.has_drift)}
        for name, last in after.last.items():
            if last.time == now:
                figures[f"watch_acceptance_{short(name)}"] = last.share
                if after.draft:
                    figures[f"watch_deviation_{short(name)}"] = last.share - last.predicted
        if after.paying.speedup is not None:
            figures["watch_speedup"] = after.paying.speedup
        try:
            log_watch(self.config, self.store, self.name, figures, int(now // 60))
        except UnderstudyError as error:
            self._say_problems((*self._said, f"no point in MLflow: {error}"))

    def _costs(self, found: Served) -> Costs | None:
        """Of the served variant, where `gate.profile` names a profile of it."""
        if found.expected is None:
            return None
        path, load = self.config.gate.profile.get(found.expected.draft.variant), self.config.gate.load
        if path is None or load is None:
            return None
        return Costs(read_step_costs(Path(path)), load.context)


def watch_of(config: Config, store: Store, name: str, now: float, progress: Progress) -> Watch:
    """The watch as it was left. UsageError if the config names nothing to read."""
    if not config.watch.endpoints and config.watch.log is None:
        raise UsageError(
            "watch: nothing to read; name the replicas in watch.endpoints, or the deployment's log in watch.log "
            "(docs/operations.md)"
        )
    store.create()
    if (state := STATE.find(store, name)) is None:
        progress.line(f"{name}: the first look; the watch remembers in {STATE.path(store, name)}")
    return Watch(config, store, name, progress, state or new_state(now), name)
