"""What engines count while a canary asks them is no traffic, whatever else happens between two looks."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.watch import WatchConfig
from pipeline.store.artifacts import Store
from pipeline.watch import own_requests as module
from pipeline.watch.exposition import Page, Total, Totals
from pipeline.watch.increments import Increment, WatchedReplica, increment
from pipeline.watch.own_requests import ASKINGS, CanaryCounters, OwnRequests, of_traffic
from pipeline.watch.reading import EngineReader
from pipeline.watch.scraping import Scraper
from tests.standin_metrics import Answer, CountingEngine, showing

NOW, NAME = 1.7956e9, "big-draft"
TRAFFIC, CANARY = (7, 5, 2), (9, 9, 9)
LEFT_OUT = "what the engines counted while a canary asked them is left out"


class Site:
    """An engine, its readers, and canaries; they share a store."""

    def __init__(self, place: Path) -> None:
        self.engine, self.is_down, self.looks = CountingEngine("vllm"), False, 0
        self.own, self.settings = OwnRequests(Store(place), NAME), WatchConfig()

    @contextmanager
    def served(self) -> Iterator["Site"]:
        def answer(path: str, asked: Mapping[str, str]) -> Answer:
            return (503, {}, b"") if self.is_down else (200, {}, self.engine.page().encode())

        with showing(answer) as url:
            self.settings = WatchConfig.model_validate({"endpoints": [url], "timeout_seconds": 5.0})
            yield self

    def reader(self) -> EngineReader:
        return EngineReader(self.settings, "vllm", self.own)

    def read(self, reader: EngineReader) -> Any:
        self.looks += 1
        return reader.read(NOW + 300 * self.looks)[0]

    def asking(self) -> Any:
        return self.own.asking(Scraper(self.settings, "vllm"), "vllm", lambda by: None)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path).served() as made:
        yield made


def test_a_canary_is_left_out_and_traffic_around_it_is_not(site: Site) -> None:
    """To the unit, of several canaries between two looks too; a look without one has no note."""
    reader = site.reader()
    site.read(reader)
    before = site.engine.decode(10, TRAFFIC)
    with site.asking() as growth:
        own = site.engine.decode(32, CANARY)
    (found,) = growth.by_url.values()
    between = site.engine.decode(8, TRAFFIC)
    with site.asking():
        site.engine.decode(32, CANARY)
    after = site.engine.decode(11, TRAFFIC)
    seen = site.read(reader)
    assert own == found.counts
    assert (before + between + after, ()) == (seen.counts, seen.problems)
    assert (LEFT_OUT.replace("a canary", "2 canaries"),) == seen.notes
    alone = site.engine.decode(12, TRAFFIC)
    seen = site.read(reader)
    assert (alone, ()) == (seen.counts, seen.notes)


def test_a_reader_that_begins_after_a_canary_knows_nothing_of_it(site: Site) -> None:
    """Its first look has what was counted before."""
    with site.asking():
        site.engine.decode(32, CANARY)
    reader = site.reader()
    site.read(reader)
    traffic = site.engine.decode(10, TRAFFIC)
    seen = site.read(reader)
    assert (traffic, ()) == (seen.counts, seen.notes)


def test_a_canary_that_was_killed(site: Site) -> None:
    """What it counted is not known, so it is left out with the traffic since; the look after counts again."""
    reader = site.reader()
    site.read(reader)
    before = site.engine.decode(10, TRAFFIC)
    with site.asking():
        known = ASKINGS.find(site.own.store, NAME)
        site.engine.decode(32, CANARY)
    assert known is not None
    assert {} == known.askings[-1].after
    ASKINGS.write(site.own.store, known, NAME)  # as it is where the process ended inside
    site.engine.decode(11, TRAFFIC)
    seen = site.read(reader)
    assert before == seen.counts
    assert "its counters before or after a canary are unknown" in seen.problems[0]
    traffic = site.engine.decode(12, TRAFFIC)
    assert traffic == site.read(reader).counts


def test_counters_that_a_canary_could_not_read(site: Site) -> None:
    """Before it: what came before cannot be told from it."""
    reader = site.reader()
    site.read(reader)
    site.engine.decode(10, TRAFFIC)
    site.is_down = True
    with site.asking() as growth:
        site.is_down = False
        site.engine.decode(32, CANARY)
    assert ["503" in str(one) for one in growth.by_url.values()] == [True]
    after = site.engine.decode(11, TRAFFIC)
    seen = site.read(reader)
    assert (after, 1) == (seen.counts, len(seen.problems))


def test_more_canaries_than_are_remembered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted before the first that is remembered is left out, and said."""
    monkeypatch.setattr(module, "_MOST_KEPT", 2)
    reader = site.reader()
    site.read(reader)
    for _ in range(3):
        between = site.engine.decode(10, TRAFFIC)
        with site.asking():
            site.engine.decode(32, CANARY)
    last = site.engine.decode(11, TRAFFIC)
    seen = site.read(reader)
    assert (between + last, 1) == (seen.counts, len(seen.problems))


def test_a_look_while_a_canary_asks_is_left_to_the_next(site: Site) -> None:
    """It would have a part of the canary's requests in it. It reads nothing, at once, and is no problem, which would be an error
    of `--once`; the next counts the traffic of both, in the time of both."""
    reader = site.reader()
    site.read(reader)
    before = site.engine.decode(10, TRAFFIC)
    with site.asking():
        site.engine.decode(16, CANARY)
        seen = site.read(reader)
        site.engine.decode(16, CANARY)
    assert (None, None, ()) == (seen.counts, seen.seconds, seen.problems)
    (note,) = seen.notes
    assert f"a canary is asking the engines (process {os.getpid()} on" in note
    after = site.engine.decode(11, TRAFFIC)
    seen = site.read(reader)
    assert (before + after, 600.0, (LEFT_OUT,)) == (seen.counts, seen.seconds, seen.notes)


def test_a_canary_waits_for_a_look_and_for_another_canary(site: Site) -> None:
    """And says for what. Each has its own readings."""
    said = list[str]()

    def ask() -> None:
        with site.own.asking(Scraper(site.settings, "vllm"), "vllm", said.append):
            site.engine.decode(32, CANARY)

    second = threading.Thread(target=ask)
    with site.own.apart():
        second.start()
        second.join(0.5)
        assert second.is_alive()
    second.join()
    third = threading.Thread(target=ask)
    with site.asking():
        third.start()
        third.join(0.5)
        assert third.is_alive()
    third.join()
    known = ASKINGS.find(site.own.store, NAME)
    assert known is not None
    numbers = [one.number for one in known.askings]
    assert [0, *numbers[:-1]] == [one.previous for one in known.askings]
    assert (3, 3, ["another process", f"process {os.getpid()}"]) == (
        len(set(numbers)),
        len([one for one in known.askings if one.after]),
        [one.split(" on ")[0] for one in said],
    )


def test_an_engine_that_begins_again_while_a_canary_asks(site: Site) -> None:
    """What it counted of the canary is not known; the traffic before and after is."""
    reader = site.reader()
    site.engine.decode(50, TRAFFIC)
    site.read(reader)
    before = site.engine.decode(10, TRAFFIC)
    with site.asking() as growth:
        site.engine.decode(16, CANARY)
        site.engine = CountingEngine("vllm")
        site.engine.decode(16, CANARY)
    assert ["its counters began again meanwhile" in str(one) for one in growth.by_url.values()] == [True]
    after = site.engine.decode(11, TRAFFIC)
    seen = site.read(reader)
    assert (before + after, ()) == (seen.counts, seen.problems)


def test_a_look_of_an_earlier_version_knows_no_canaries(site: Site) -> None:
    """Those before it are told by their time: taken for later ones, their counters would be those of an engine that began
    again."""
    with site.asking():
        site.engine.decode(32, CANARY)
    site.engine.decode(10, TRAFFIC)
    reader, now = site.reader(), time.time() + 1
    _, state = reader.read(now)
    state = replace(state, replicas={url: replace(one, asked=None) for url, one in state.replicas.items()})
    traffic = site.engine.decode(11, TRAFFIC)
    seen, _ = EngineReader(site.settings, "vllm", site.own, state).read(now + 300)
    assert (traffic, ()) == (seen.counts, seen.notes)


def test_the_record_is_small_whatever_the_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many engines fewer canaries are remembered, and one always."""
    monkeypatch.setattr(module, "_MOST_READ", 10)
    own = OwnRequests(Store(tmp_path), NAME)
    for engines, kept in ((1, 10), (4, 2), (11, 1)):
        counters = {f"u{number}": {"0": totals(1, 1.0)} for number in range(engines)}
        own._write(
            tuple(CanaryCounters(number=one, previous=0, before=counters, after=counters) for one in range(1, 101))
        )
        known = ASKINGS.find(own.store, NAME)
        assert known is not None
        assert [*range(101 - kept, 101)] == [one.number for one in known.askings]


def totals(drafts: int, began: float) -> Totals:
    return {"drafts": Total(value=float(drafts), created=began)}


@given(st.lists(st.sampled_from(["traffic", "canary", "restart", "look"]), max_size=30))
def test_whatever_happens_between_two_looks(events: list[str]) -> None:
    """Counts are those of the traffic: all that was counted since the reading before, and of an engine that began again since
    then; a canary reads before and after. A reading that counted nothing twice, and nothing of a canary."""
    value, began, number, unread, askings = 0, 1.0, 0, 0, list[CanaryCounters]()
    past = increment(Page(engines={"0": totals(0, began)}), None, "vllm", 0.0).after
    expected = counted = 0.0

    def look() -> None:
        nonlocal past, counted
        found = _of_traffic(totals(value, began), past, askings)
        past, counted = found.after, counted + (found.counts.drafts or 0.0 if found.counts is not None else 0.0)
        assert () == found.problems

    for event in events:
        if event == "traffic":
            value, unread = value + 5, unread + 5
        elif event == "restart":
            value, began, unread = 0, began + 100.0, 0
        elif event == "look":
            look()
            expected, unread = expected + unread, 0
        else:
            expected, unread, number = expected + unread, 0, number + 1
            before, value = totals(value, began), value + 64
            after = {"u": {"0": totals(value, began)}}
            askings.append(CanaryCounters(number=number, previous=number - 1, before={"u": {"0": before}}, after=after))
    look()
    assert expected + unread == counted


def _of_traffic(now: Totals, past: WatchedReplica, askings: list[CanaryCounters]) -> Increment:
    return of_traffic(Page(engines={"0": now}), past, "u", askings, "vllm", 0.0)
