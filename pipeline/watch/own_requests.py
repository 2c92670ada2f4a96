"""What engines counted while a canary asked them: no traffic, so the watch leaves it out.

A canary's requests cannot be told from others in a counter. So it writes down the counters before its first request and after its
last, and a look at the counters adds up what was counted up to the first and from the second on. Other requests that an engine
served meanwhile are left out with the canary's. Looks and canaries of a store exclude each other by a lock: a canary waits for a
look, which takes seconds, and a look that finds a canary asking leaves everything to the next.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pipeline.engines.counts import Counts
from pipeline.engines.facts import WatchedEngine
from pipeline.store.artifacts import Store
from pipeline.store.parsing import Count, Text, format_of, stored
from pipeline.store.state_files import StateFile
from pipeline.watch.exposition import Page, Total
from pipeline.watch.increments import Increment, WatchedReplica, increment
from pipeline.watch.scraping import Scrape, Scraper

# Of the latest canaries, and of the engines whose counters they read; a look that has missed more leaves out what was counted
# since the look before.
_MOST_KEPT, _MOST_READ = 100, 2000

_Counters = Mapping[
    Text, Mapping[Text, Mapping[Text, Total]] | None
]  # by URL and rank; None where they could not be read


@stored
class CanaryCounters:
    """The counters of the engines before and after one canary. `number`: grows with each. `previous`: the number of the one
    before. `after`: empty where it was killed."""

    number: Count
    previous: Count
    before: _Counters
    after: _Counters


@stored(
    name="record of canaries", schema=1, remedy="delete it; the watch then counts a canary's requests as traffic once"
)
class LatestCanaries:
    """The counters around the latest canaries, ascending by number."""

    askings: tuple[CanaryCounters, ...] = ()


ASKINGS = StateFile(format_of(LatestCanaries), "askings/{}")


@dataclass
class Growth:
    """What each engine counted while a canary asked, by URL, or why that is not known. Filled when the canary has asked."""

    by_url: dict[str, Increment | str] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnRequests:
    """The canaries that ask the engines of a registered name."""

    store: Store
    name: str

    @contextmanager
    def apart(self) -> Iterator[Sequence[CanaryCounters]]:
        """The counters around the canaries so far; none asks inside, while counters are read. NotFree where one is asking."""
        with self.store.lock(self._lock, shared=True, wait_seconds=0.0):
            yield (ASKINGS.find(self.store, self.name) or LatestCanaries()).askings

    @contextmanager
    def asking(self, scraper: Scraper, engine: WatchedEngine, on_wait: Callable[[str], None]) -> Iterator[Growth]:
        """Send requests inside; everything that the engines count meanwhile is left out of traffic."""
        self.store.create()
        with self.store.lock(self._lock, on_wait):
            known, growth = (ASKINGS.find(self.store, self.name) or LatestCanaries()).askings, Growth()
            previous, scraped = known[-1].number if known else 0, scraper.scrape()
            own = CanaryCounters(
                number=max(previous + 1, int(time.time())), previous=previous, before=_counters(scraped), after={}
            )
            self._write((*known, own))
            try:
                yield growth
            finally:
                again = scraper.scrape()
                self._write((*known, replace(own, after=_counters(again))))
                growth.by_url |= {
                    before.url: _growth(before, other, engine) for before, other in zip(scraped, again, strict=True)
                }

    @property
    def _lock(self) -> str:
        return f"asking-{self.name}"

    def _write(self, askings: tuple[CanaryCounters, ...]) -> None:
        read = max(1, sum(len(ranks or ()) for ranks in askings[-1].before.values()))
        most = max(1, min(_MOST_KEPT, _MOST_READ // read))
        ASKINGS.write(self.store, LatestCanaries(askings=askings[-most:]), self.name)


def of_traffic(
    page: Page,
    past: WatchedReplica | None,
    url: str,
    askings: Sequence[CanaryCounters],
    engine: WatchedEngine,
    now: float,
) -> Increment:
    """What `increment` gives, without what was counted while canaries asked. What lies between counters that are not known is
    left out, and reported."""
    latest = askings[-1].number if askings else 0
    # The numbers are times too, by which a look of an earlier version is placed.
    asked = 0 if past is None else int(past.seen) if past.asked is None else past.asked
    due = [] if past is None else [asking for asking in askings if asking.number > asked and url in asking.before]
    latest_increment, counts, problems = None, list[Counts](), list[str]()
    start = None if past is None or (due and askings[0].previous > asked) else past.engines
    for end, following in [*((asking.before[url], asking.after.get(url)) for asking in due), (page.engines, None)]:
        if end is not None:
            begun = past if latest_increment is None else latest_increment.after
            since = None if begun is None or start is None else replace(begun, engines=start)
            latest_increment = increment(page if end is page.engines else Page(engines=end), since, engine, now)
            counts += [] if latest_increment.counts is None else [latest_increment.counts]
            problems += latest_increment.problems
        if past is not None and (start is None or end is None):
            problems.append("its counters before or after a canary are unknown: its counts in between are left out")
        start = following
    assert latest_increment is not None  # the page's
    known = {} if past is None else past.engines
    return Increment(
        counts=sum(counts[1:], counts[0]) if counts else None,
        after=replace(latest_increment.after, asked=latest),
        problems=tuple(dict.fromkeys(problems)),
        came=tuple(rank for rank in page.engines if rank not in known),
        left_out=len(due),
    )


def _counters(scraped: Sequence[Scrape]) -> _Counters:
    return {scrape.url: None if scrape.page is None else scrape.page.engines for scrape in scraped}


def _growth(before: Scrape, after: Scrape, engine: WatchedEngine) -> Increment | str:
    if before.page is None or after.page is None:
        return before.problem or after.problem
    growth = increment(after.page, increment(before.page, None, engine, 0.0).after, engine, 0.0)
    return f"{after.url}: its counters began again meanwhile" if growth.after.left else growth
