"""A look, what follows from it, and the state that is kept: lines, a notice, a point in MLflow; and one look after another."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from pipeline.config.root import Config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.export.link import LINK
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.notices.send import send
from pipeline.progress import Progress
from pipeline.registry.mlflow_client import tracking_location
from pipeline.registry.mlflow_runs import log_watch
from pipeline.registry.registry import champion_lock, registry_for
from pipeline.store.artifacts import Store
from pipeline.store.files import content_key
from pipeline.watch.compared import ComparedCount, compared
from pipeline.watch.drift_notice import drift_notice
from pipeline.watch.findings import Findings
from pipeline.watch.lines import clock, compared_text, paying_line, reference_line, state_line, status_line
from pipeline.watch.log_counts import source_of
from pipeline.watch.metrics import WatchMetrics
from pipeline.watch.own_requests import OwnRequests
from pipeline.watch.prediction import ServedDraft, check_countable, served
from pipeline.watch.reading import EngineReader, Look
from pipeline.watch.share import short
from pipeline.watch.state import STATE, WatchState, all_states, new_state
from pipeline.watch.watcher import Costs, changes, learned, with_look

_HOUR = 3600.0
_LISTED = 3
_PRINTED_EVERY = 3600.0  # seconds


@dataclass
class Watch:
    """The watch of one registered name. `look` may be called for months: it raises nothing that the next look may not have."""

    config: Config
    store: Store
    name: str
    progress: Progress
    findings: Findings
    _reader: EngineReader | None = None
    _reported: Sequence[str] = ()
    _unsent: str = ""  # why the last notice was not accepted

    def look(self, now: float) -> Look:
        """Read, test, notify, and write the states. UnderstudyError where the export cannot be read, UsageError where nothing
        states the draft length of an engine that counts drafts only."""
        served_draft = self._served()
        self._choose(served_draft, now)
        costs = self._costs(served_draft)  # before counters are read: what an error has read is lost
        before = self.findings
        if self._reader is None:
            log, sources = self.config.watch.log, self.config.corpus.sources
            logged = None if log is None else source_of(Path(log), sources)
            canaries = OwnRequests(self.store, self.name)
            self._reader = EngineReader(self.config.watch, served_draft.engine, canaries, before.own.reader, logged)
        look, reader = self._reader.read(now)
        if self.store.is_locked(lock := champion_lock(self.name)):  # replicas load another draft, one after another
            dropped = f"{self.name}: the champion is being changed ({self.store.holder(lock)}): this look is not tested"
            look = replace(look, counts=None, by_domain={}, problems=(*look.problems, dropped))
        for note in look.notes:
            self.progress.line(f"{self.name}: {note}")
        own = with_look(before.own, look, served_draft, self.config.watch, costs)
        own = replace(own, reader=reader, compared=compared(self.config.watch, served_draft))
        after, problems = self._of_champion(before.having({before.key: own}), now)
        self._report_problems((*look.problems, *problems))
        for change in changes(before.own, after.own):
            self._report(change, before.own, after.own)
        for key in before.elsewhere.keys() - after.open.keys():
            where = compared_text(before.others[key])
            self.progress.line(f"{self.name}: the drift in {where} has ended: another draft is champion")
        after = self._notified(after, now)
        self._log(before, after, now)
        self.findings = after
        for key, state in after.states.items():
            if key == after.key or state != before.others[key]:
                STATE.write(self.store, state, key)
        return look

    def beside(self) -> None:
        """Take what another process, which watches this name, has found, and print it. UnderstudyError where that has looked at
        something else than this config compares, unless a drift is open."""
        served_draft, states = self._served(), all_states(self.store, self.name)
        wanted, looked = (
            compared(self.config.watch, served_draft),
            {key: state for key, state in states.items() if state.looks},
        )
        if not looked:
            raise UnderstudyError(f"{self.name}: another process watches this, and has not looked yet; call again")
        latest = max(looked, key=lambda key: looked[key].reader.time or 0.0)
        if self._goes_on(looked[latest], wanted, served_draft):
            self.findings = self._findings(latest, looked[latest], states)
            when = clock(looked[latest].reader.time or 0.0)
            self.progress.line(f"{self.name}: another process watches this; its last look, at {when}:")
            return
        self.findings = self._findings(f"{self.name}@", new_state(0.0), states)  # nobody looks at it
        message = (
            f"{self.name}: another process watches this name and compares {compared_text(looked[latest])}; this config compares "
            f"{wanted.text}, which no process watches: start that process with this config"
        )
        if not self.findings.open:
            raise UnderstudyError(message)
        self.progress.warn(message)

    def _served(self) -> ServedDraft:
        served_draft = served(self.config)
        check_countable(served_draft, self.config.watch)
        self._check_link(served_draft)
        return served_draft

    def _findings(self, key: str, own: WatchState, states: Mapping[str, WatchState]) -> Findings:
        return _findings(self.store, self.name, key, own, states)

    def _choose(self, served_draft: ServedDraft, now: float) -> None:
        """The state of what is compared now: its looks go on where nothing but the champion has changed. Else it is another one,
        and what the others have found stays. The others are read anew: a person may have moved one away."""
        wanted, own = compared(self.config.watch, served_draft), self.findings.own
        states = all_states(self.store, self.name)
        if own.looks and self._goes_on(own, wanted, served_draft):
            self.findings = self._findings(self.findings.key, own, states)
            return
        self._reader = None
        if key := self._goes_on_from(states, wanted, served_draft):
            self.findings = self._findings(key, states[key], states)
            return
        key = f"{self.name}@{content_key([asdict(wanted), served_draft.digest])[:12]}" if states else self.name
        self.findings = self._findings(key, new_state(now), states)
        if states:
            kept = ", ".join(str(STATE.path(self.store, kept_key)) for kept_key in list(states)[:_LISTED])
            self.progress.line(
                f"{self.name}: the first look at {wanted.text}; the state of other looks stays in {kept}, and "
                f"that of this one is in {STATE.path(self.store, key)}"
            )

    def _goes_on_from(self, states: Mapping[str, WatchState], wanted: ComparedCount, served_draft: ServedDraft) -> str:
        """The key of the state that the looks of now go on from; empty where there is none."""
        return next(
            (key for key, state in states.items() if state.looks and self._goes_on(state, wanted, served_draft)), ""
        )

    def _goes_on(self, state: WatchState, wanted: ComparedCount, served_draft: ServedDraft) -> bool:
        known = state.known_compared
        if known is not None and not known.is_of(wanted):
            return False
        return state.draft == served_draft.digest or self._is_champion(served_draft)

    def _is_champion(self, served_draft: ServedDraft) -> bool:
        """Whether the exported draft is the champion: then it has become that since. Without a registry the link decides."""
        if not tracking_location(self.config, self.store).exists:
            return served_draft.by_link
        return self._champion() == served_draft.digest

    def _champion(self) -> str | None:
        """The digest of the registry's champion; None where there is none, or no registry. RegistryUnavailable."""
        if not tracking_location(self.config, self.store).exists:
            return None
        champion = registry_for(self.config, self.store).champion()
        return None if champion is None else champion.digest

    def _of_champion(self, findings: Findings, now: float) -> tuple[Findings, Sequence[str]]:
        """The findings without the drifts that were found under another champion than the registry's, and problems.

        The draft of what is compared now is the one that an export names. That of other states, and without an export, is the
        champion that was registered when the drift was found. The registry is asked only while that matters.
        """
        asked = {
            key: state
            for key, state in findings.open.items()
            if key != findings.key or not state.draft or not state.champion
        }
        try:
            champion = self._champion() if asked else None
        except UnderstudyError as error:  # not known, so nothing is over
            return findings, [f"it is unknown whether the champion changed: {error}"]
        if champion is None:
            return findings, []
        return findings.under(champion, asked, now), []

    def _check_link(self, served_draft: ServedDraft) -> None:
        """A prediction that is lost would end a drift, and begin a reference of what drifted."""
        export = self.config.promote.export
        if served_draft.expected is not None or export is None:
            return
        known = [
            str(STATE.path(self.store, key)) for key, state in all_states(self.store, self.name).items() if state.draft
        ]
        if known:
            raise UnderstudyError(
                f"promote.export.out: the link {Path(export.out) / LINK} is gone, and with it the prediction. Is "
                "the disk mounted? `understudy champion settle CONFIG` makes the link. To watch without a prediction, move "
                f"{' and '.join(known)} away"
            )

    def _report(self, change: str, before: WatchState, state: WatchState) -> None:
        if change == "reference":
            for count in learned(before, state):
                self.progress.line(f"{self.name}: {reference_line(state, count)}")
        elif change == "paying":
            (self.progress.line if state.paying.pays else self.progress.warn)(f"{self.name}: {paying_line(state)}")
        else:
            (self.progress.warn if state.has_drift else self.progress.line)(f"{self.name}: {state_line(state)}")

    def _report_problems(self, problems: Sequence[str]) -> None:
        """Print each problem once, until it is over: a replica that is down for days is no line every 5 minutes."""
        for problem in problems:
            if problem not in self._reported:
                self.progress.warn(problem)
        self._reported = problems

    def _notified(self, findings: Findings, now: float) -> Findings:
        """The findings after what is due was sent; what the receiver does not accept is due again at the next look."""
        settings, failed = self.config.watch.notice, ""
        for due in findings.due if settings is not None else ():
            assert settings is not None  # for the type checker
            try:
                send(settings, drift_notice(due.state, self.name, now))
            except UnderstudyError as error:
                failed = str(error)
                if failed != self._unsent:
                    self.progress.warn(failed)
                break
            findings = findings.after(due)
        self._unsent = failed
        return findings

    def _log(self, before: Findings, after: Findings, now: float) -> None:
        """Log a point an hour, and one at each change; of a look that counted nothing, only where a drift began or ended."""
        looked_at, own = before.own.looked_at, after.own
        is_hour = looked_at is None or looked_at // _HOUR != now // _HOUR
        has_changed = before.open.keys() != after.open.keys()
        is_due = own.looked_at == now and (is_hour or bool(changes(before.own, own)))
        if not is_due and not has_changed:
            return
        figures = {"watch_drift": float(bool(after.open))}
        for name, last in own.last.items():
            if last.time == now:
                figures[f"watch_acceptance_{short(name)}"] = last.share
                if own.draft:
                    figures[f"watch_deviation_{short(name)}"] = last.share - last.predicted
        if own.paying.speedup is not None:
            figures["watch_speedup"] = own.paying.speedup
        try:
            log_watch(self.config, self.store, self.name, figures, int(now // 60))
        except UnderstudyError as error:
            self._report_problems((*self._reported, f"no point in MLflow: {error}"))

    def _costs(self, served_draft: ServedDraft) -> Costs | None:
        """The costs of the served variant, where `gate.profile` names a profile of it."""
        if served_draft.expected is None:
            return None
        path, load = self.config.gate.profile.get(served_draft.expected.draft.variant), self.config.gate.load
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
    states = all_states(store, name)
    if not states:
        progress.line(f"{name}: the first look; its state is in {STATE.path(store, name)}")
    own = states.get(name) or new_state(now)
    return Watch(config, store, name, progress, _findings(store, name, name, own, states))


def watch_forever(watch: Watch) -> NoReturn:
    """A look that fails is reported, and the next one is made. A full disk is a failed look. The state is printed at the first
    two looks, after a failure, and every hour while nothing changes: silence is no sign of life."""
    settings, metrics = watch.config.watch, WatchMetrics(watch.name)
    if settings.metrics is not None:
        metrics.serve(settings.metrics)
    failed, looks, printed = "", 0, 0.0
    while True:
        began, next_look = time.time(), time.monotonic() + settings.interval_seconds
        try:
            look = watch.look(began)
            metrics.show(watch.findings, look, settings)
            looks += 1
            if looks <= 2 or failed or began - printed >= _PRINTED_EVERY:
                watch.progress.line(f"{watch.name}: {status_line(watch.findings, settings)}")
                printed = began
            failed = ""
        except (UnderstudyError, OSError) as error:
            if str(error) != failed:
                watch.progress.warn(str(error))
            failed = str(error)
        # By a clock that nobody sets: one that is put back by an hour would let the watch sleep for it.
        time.sleep(max(0.0, next_look - time.monotonic()))


def _findings(store: Store, name: str, key: str, own: WatchState, states: Mapping[str, WatchState]) -> Findings:
    others = {other: state for other, state in states.items() if other != key}
    return Findings(name=name, key=key, own=own, others=others, path=partial(STATE.path, store))
