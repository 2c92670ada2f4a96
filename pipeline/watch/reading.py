"""A look: one reading of everything that shows how the champion does in production: the counters of all replicas, and the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.config.corpus import PromptSource
from pipeline.config.watch import WatchConfig
from pipeline.engines.counts import Counts
from pipeline.engines.facts import FACTS, WatchedEngine
from pipeline.store.locks import NotFree
from pipeline.store.parsing import Number, Text
from pipeline.watch.compared import watched
from pipeline.watch.followed_files import LogPositions, follow
from pipeline.watch.increments import WatchedReplica, forget
from pipeline.watch.log_counts import LogCounts
from pipeline.watch.own_requests import OwnRequests, of_traffic
from pipeline.watch.scraping import Scraper

_KEPT_SECONDS = 2 * 86_400.0  # after which a replica that shows no counters is forgotten
_MOST_REPLICAS = 1000  # that are remembered


@dataclass(frozen=True, kw_only=True)
class Look:
    """What all engines and the log show.

    `time`: Unix seconds. `seconds`: since the look before; None at the first. `counts`: what was counted since then, over all
    replicas; None where nothing could be read. `running`: requests in decode on a replica, on average over those that answered.
    `by_domain`: the counts of the log's rows since then, where it has domains. `problems`: what could not be read, a line each.
    `notes`: what else is new, a line each.
    """

    time: float
    seconds: float | None
    counts: Counts | None
    running: float | None = None
    by_domain: Mapping[str, Counts] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReaderState:
    """What the next look needs of those before. Its size is bounded. `time`: of the last look, in Unix seconds. `watched`: the
    engine and the model, of which `replicas` are the counters."""

    time: Number | None = None
    watched: Text = ""
    replicas: Mapping[Text, WatchedReplica] = field(default_factory=dict)  # by URL
    log: LogPositions | None = None


class EngineReader:
    """Reads production. What cannot be read is a problem in the look, and never an exception.

    Counts are those of the engines' counters; where no endpoints are configured, those of the log's rows, with the
    columns of `logged`.

    What engines counted while a canary asked them is left out; while one asks, nothing is read, and the next look counts since
    the last that did. UsageError when it is made: the environment variable of watch.key_variable is not set.
    """

    def __init__(
        self,
        settings: WatchConfig,
        engine: WatchedEngine,
        own: OwnRequests,
        state: ReaderState | None = None,
        logged: PromptSource | None = None,
    ) -> None:
        self._scraper, self._settings, self._own, self._logged = Scraper(settings, engine), settings, own, logged
        self._engine, self._watched = engine, watched(engine, settings)
        state = state or ReaderState()
        self._state = state if state.watched == self._watched else replace(state, replicas={})

    def read(self, now: float) -> tuple[Look, ReaderState]:
        """What was counted since the look before. `now`: Unix seconds. The state is to be stored; this reader goes on from it."""
        try:
            return self._read(now)
        except NotFree as canary:
            note = (
                f"a canary is asking the engines ({canary.holder}): this look reads nothing; the next counts for both"
            )
            return Look(time=now, seconds=None, counts=None, notes=(note,)), self._state

    def _read(self, now: float) -> tuple[Look, ReaderState]:
        problems, notes = list[str](), list[str]()
        seconds = None if self._state.time is None else now - self._state.time
        if seconds is not None and seconds <= 0:
            problems.append(f"the clock went back by {-seconds:,.0f} s since the look before")
            seconds = None
        counts, running, replicas = self._counters(now, problems, notes)
        by_domain, log = self._log(now, problems)
        if not self._settings.endpoints and by_domain:
            counts = _sum(list(by_domain.values()))
        self._state = ReaderState(time=now, watched=self._watched, replicas=replicas, log=log)
        look = Look(
            time=now,
            seconds=seconds,
            counts=counts,
            running=running,
            by_domain=by_domain,
            problems=tuple(problems),
            notes=tuple(notes),
        )
        return look, self._state

    def _counters(
        self, now: float, problems: list[str], notes: list[str]
    ) -> tuple[Counts | None, float | None, Mapping[str, WatchedReplica]]:
        """The counts and the requests in decode on an engine, over all replicas that answer. One that came after the first look
        is noted: its counts so far are of no known time."""
        replicas, counted, running, left_out = dict(self._state.replicas), list[Counts](), list[float](), 0
        if not self._settings.endpoints:
            return None, None, replicas
        with self._own.apart() as askings:
            scraped = self._scraper.scrape()
        for scrape in scraped:
            if scrape.page is None:
                problems.append(scrape.problem)
                continue
            is_known = scrape.url in replicas
            growth = of_traffic(scrape.page, replicas.get(scrape.url), scrape.url, askings, self._engine, now)
            left_out = max(left_out, growth.left_out)
            replicas[scrape.url] = growth.after
            problems += [f"{scrape.url}: {problem}" for problem in growth.problems]
            if self._state.time is not None:
                engines = [f"{scrape.url}, engine {rank}," for rank in growth.came]
                who = engines if is_known else [scrape.url]
                notes += [f"{name} came since the look before; it is counted from now on" for name in who]
            counted += [] if growth.counts is None else [growth.counts]
            running += [] if scrape.page.running is None else [scrape.page.running]
        if left_out:
            canaries = "a canary" if left_out == 1 else f"{left_out} canaries"
            notes.append(f"what the engines counted while {canaries} asked them is left out")
        average = sum(running) / len(running) if running else None
        return _sum(counted), average, forget(replicas, now, _KEPT_SECONDS, _MOST_REPLICAS)

    def _log(self, now: float, problems: list[str]) -> tuple[Mapping[str, Counts], LogPositions | None]:
        """The counts of the rows that were written since the look before."""
        if self._settings.log is None:
            return {}, None
        rows = LogCounts(FACTS[self._engine].counters.by_request, self._logged)
        after, unread = follow(Path(self._settings.log), self._state.log, now, rows.take)
        problems += [*unread, *(f"{self._settings.log}: {problem}" for problem in rows.problems())]
        return rows.by_domain(), after


def _sum(counts: Sequence[Counts]) -> Counts | None:
    return sum(counts[1:], counts[0]) if counts else None
