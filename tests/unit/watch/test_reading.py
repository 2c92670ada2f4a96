"""One look at all replicas: sums, averages, problems, and a state that is stored between looks."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pipeline.config.watch import WatchConfig
from pipeline.engines.counts import Counts
from pipeline.store.artifacts import Store
from pipeline.store.json_text import parse_json
from pipeline.watch.own_requests import OwnRequests
from pipeline.watch.reading import EngineReader, ReaderState
from tests.standin_metrics import Answer, CountingEngine, showing

NOW = 1.7956e9
STATE = TypeAdapter(ReaderState)


class Fleet:
    """Replicas that can be down."""

    def __init__(self, count: int, place: Path) -> None:
        self.engines = [CountingEngine("vllm", running=float(number)) for number in range(count)]
        self.down, self.own = set[int](), OwnRequests(Store(place), "draft")
        self.urls = list[str]()

    @contextmanager
    def served(self) -> Iterator["Fleet"]:
        with ExitStack() as stack:
            self.urls = [stack.enter_context(showing(self._answer(number))) for number in range(len(self.engines))]
            yield self

    def _answer(self, number: int) -> Any:
        def answer(path: str, asked: Mapping[str, str]) -> Answer:
            return (503, {}, b"") if number in self.down else (200, {}, self.engines[number].page().encode())

        return answer

    def reader(self, state: ReaderState | None = None, **settings: Any) -> EngineReader:
        config = WatchConfig.model_validate({"endpoints": self.urls, "timeout_seconds": 5.0} | settings)
        return EngineReader(config, "vllm", self.own, state)


def test_looks_add_up_over_replicas(tmp_path: Path) -> None:
    """The first has no counts; one that is down counts when it is back, and meanwhile is a problem."""
    with Fleet(3, tmp_path).served() as fleet:
        reader = fleet.reader()
        first, _ = reader.read(NOW)
        assert (None, None, 1.0, ()) == (first.counts, first.seconds, first.running, first.problems)
        one = [engine.decode(10, (7, 5, 2)) for engine in fleet.engines]
        fleet.down = {2}
        second, _ = reader.read(NOW + 300)
        assert (one[0] + one[1], 300.0, 0.5) == (second.counts, second.seconds, second.running)
        assert (f"{fleet.urls[2]}: HTTP 503",) == second.problems
        fleet.down = set()
        two = [engine.decode(10, (7, 5, 2)) for engine in fleet.engines]
        third, _ = reader.read(NOW + 600)
        assert one[2] + two[0] + two[1] + two[2] == third.counts
        fleet.down = {0, 1, 2}
        last, _ = reader.read(NOW + 900)
        assert (None, None, 3) == (last.counts, last.running, len(last.problems))


def test_the_state_goes_through_json(tmp_path: Path) -> None:
    """A reader that is made of the stored state goes on where the other was; replicas without counters are forgotten."""
    with Fleet(2, tmp_path).served() as fleet:
        _, state = fleet.reader().read(NOW)
        text = STATE.dump_json(state)
        assert state == STATE.validate_python(parse_json(text))
        assert len(text) < 2000
        decoded = [engine.decode(10, (7, 5, 2)) for engine in fleet.engines]
        fleet.down = {1}
        found, state = fleet.reader(STATE.validate_python(parse_json(text))).read(NOW + 300)
        assert decoded[0] == found.counts
        found, state = fleet.reader(state).read(NOW + 3 * 86_400)
        assert {fleet.urls[0]} == set(state.replicas)
        assert Counts(**dict.fromkeys(asdict(Counts()), 0.0)) == found.counts


def test_another_model_begins_anew(tmp_path: Path) -> None:
    """Its counters are not compared with those of the model before."""
    with Fleet(1, tmp_path).served() as fleet:
        _, state = fleet.reader(model="target").read(NOW)
        fleet.engines = [CountingEngine("vllm", model="other")]
        fleet.engines[0].decode(10, (7, 5, 2))
        found, _ = fleet.reader(state, model="other").read(NOW + 300)
    assert (None, ()) == (found.counts, found.problems)


def test_a_clock_that_goes_back(tmp_path: Path) -> None:
    """No time has passed by it, and the counts are counted."""
    with Fleet(1, tmp_path).served() as fleet:
        reader = fleet.reader()
        reader.read(NOW)
        decoded = fleet.engines[0].decode(10, (7, 5, 2))
        found, _ = reader.read(NOW - 60)
    assert (decoded, None, ("the clock went back by 60 s since the look before",)) == (
        found.counts,
        found.seconds,
        found.problems,
    )


def _row(**fields: Any) -> str:
    found = {
        "num_spec_steps": 10,
        "num_draft_tokens": 30,
        "num_accepted_draft_tokens": 7,
        "acceptance_histogram": [3, 7],
    }
    row = {"response": {"usage": {"completion_tokens": 17}, "metrics": {"speculative_decoding": found}}, **fields}
    return json.dumps(row) + "\n"


ROW = Counts(drafts=10, draft_tokens=30, accepted=7, accepted_first=7, tokens=17)


def test_a_log_alone_and_beside_counters(tmp_path: Path) -> None:
    """Its rows are counted by domain; without endpoints their sum is what was counted."""
    log = tmp_path / "requests.jsonl"
    log.write_text(_row())
    with Fleet(1, tmp_path).served() as fleet:
        both, alone = fleet.reader(log=str(log)), EngineReader(WatchConfig(log=str(log)), "vllm", fleet.own)
        first = [reader.read(NOW)[0] for reader in (both, alone)]
        assert [None, None] == [one.counts for one in first]
        assert all(() == one.problems for one in first)
        with log.open("a") as file:
            file.write(_row(domain="code") + _row() + "{broken\n")
        decoded = fleet.engines[0].decode(10, (7, 5, 2))
        found, state = both.read(NOW + 300)
        assert (decoded, {"code": ROW, "default": ROW}) == (found.counts, found.by_domain)
        assert 1 == len(found.problems)
        assert state == STATE.validate_python(parse_json(STATE.dump_json(state)))
        found, state = alone.read(NOW + 300)
        assert (ROW + ROW, None) == (found.counts, found.running)
        assert (None, {}) == ((again := alone.read(NOW + 600)[0]).counts, again.by_domain)


def test_a_replica_that_came_later_is_named(tmp_path: Path) -> None:
    """It counts from the look after; at the first look all are new, and none is named. One that was down is known."""
    with Fleet(3, tmp_path).served() as fleet:
        fleet.down = {2}
        reader, seen = fleet.reader(), list[tuple[str, ...]]()
        for look in range(4):
            fleet.down = {2: {1}}.get(look, set()) if look else {2}
            seen.append(reader.read(NOW + 300 * look)[0].notes)
        assert [(), (f"{fleet.urls[2]} came since the look before; it is counted from now on",), (), ()] == seen
