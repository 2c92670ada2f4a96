"""What follows from a look: lines, a notice, points in MLflow, the state that is kept; and looks without end."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.config.root import Config
from pipeline.engines.counts import Counts
from pipeline.errors import UnderstudyError, UsageError
from pipeline.progress import Progress
from pipeline.registry.drafts import RegisteredDraft
from pipeline.store.artifacts import Store
from pipeline.watch import acting, forever
from pipeline.watch.acting import Watch, watch_of
from pipeline.watch.counts import Observation
from pipeline.watch.increments import Replica
from pipeline.watch.paying import Paying
from pipeline.watch.prediction import Served
from pipeline.watch.reading import ReaderState
from pipeline.watch.state import STATE
from pipeline.watch.window import Window
from tests.unit.watch.expectations import FlatCosts, expected_at, watched_state

MINUTE, HOUR = 60.0, 3600.0
BEGIN = 100 * HOUR
NAME = "big-draft"


def _config(**changes: Any) -> Config:
    watch = {
        "endpoints": ["http://one:8000"],
        "engine": "vllm",
        "burst_minutes": 0.01,
        "notice": {"program": "/bin/true"},
    }
    raw = {
        "name": "watched",
        "pair": {"target": {"source": "./big"}, "draft": {"source": "./small"}},
        "corpus": {"sources": [{"path": "prompts.jsonl"}]},
        "watch": watch,
    }
    return Config.model_validate(raw | changes)


@dataclass
class Site:
    """What a watch reads and tells: each may fail."""

    root: Path
    config: Config = field(default_factory=_config)
    served: Served = field(default_factory=lambda: Served("vllm", expected_at(first=0.8, accepted=1.92, gamma=3)))
    first: float | None = 0.8
    problems: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    points: list[tuple[Mapping[str, float], int]] = field(default_factory=list)
    began: list[list[str]] = field(default_factory=list)
    is_down: bool = False
    before: float | None = None
    began_with: list[ReaderState] = field(default_factory=list)

    def watch(self) -> Watch:
        progress = Progress(terminal=False)
        progress.line = self.lines.append  # type: ignore[method-assign]
        made = watch_of(self.config, Store(self.root), NAME, BEGIN, progress)
        self.began.append(list(self.lines))
        self.lines.clear()
        return made

    def reader(self, settings: object, engine: str, state: ReaderState) -> "Site":
        self.began_with.append(state)
        return self

    def read(self, now: float) -> tuple[Observation, ReaderState]:
        counts = None
        if self.first is not None and self.before is not None:
            counts = Counts(
                drafts=1000.0, draft_tokens=3000.0, accepted=2400 * self.first, accepted_first=1000 * self.first
            )
        seconds = None if self.before is None else now - self.before
        self.before = now
        found = Observation(time=now, seconds=seconds, counts=counts, running=4.0, problems=self.problems)
        return found, ReaderState(time=now)

    def send(self, settings: object, message: Any) -> None:
        if self.is_down:
            raise UnderstudyError("notice: nobody is there")
        self.told.append(message)

    def log(self, config: object, store: object, name: str, figures: Mapping[str, float], step: int) -> None:
        if self.is_down:
            raise UnderstudyError("MLflow does not answer")
        self.points.append((figures, step))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(acting, "Reader", made.reader)
    monkeypatch.setattr(acting, "served", lambda config: made.served)
    monkeypatch.setattr(acting, "send", made.send)
    monkeypatch.setattr(acting, "log_watch", made.log)
    return made


def _look(watch: Watch, site: Site, firsts: Sequence[float], begin: float = BEGIN, step: float = 5 * MINUTE) -> float:
    """Looks at these shares of the first position; when the next would be."""
    for first in firsts:
        site.first = first
        watch.look(begin)
        begin += step
    return begin


def test_the_state_is_kept_with_the_readers(site: Site) -> None:
    """Another process goes on from it, and its reader from where the other was."""
    watch = site.watch()
    _look(watch, site, [0.8, 0.8])
    kept = STATE.find(Store(site.root), NAME)
    assert kept == watch.state == site.watch().state
    assert [True, False] == [f"remembers in {site.root}/watch/{NAME}.json" in "".join(lines) for lines in site.began]
    assert (2, BEGIN + 5 * MINUTE) == (watch.state.looks, watch.state.reader.time)
    site.watch().look(BEGIN + 10 * MINUTE)
    assert [None, BEGIN + 5 * MINUTE] == [one.time for one in site.began_with]


def test_a_change_is_a_line_and_a_drift_a_warning(site: Site) -> None:
    """Its end is a line."""
    watch = site.watch()
    now = _look(watch, site, [0.8, 0.8])
    assert [] == site.lines
    now = _look(watch, site, [0.4] * 4, now)
    _look(watch, site, [0.8] * 10, now)
    assert [
        "warning: big-draft: drift: acceptance of the first draft token is below what it should be",
        "big-draft: no drift",
    ] == [one.partition(" since")[0] for one in site.lines]


def test_a_problem_is_said_once_until_it_is_over(site: Site) -> None:
    """A replica that is down for days is no line every 5 minutes."""
    watch = site.watch()
    for problems in (("one is down",), ("one is down",), (), ("one is down",)):
        site.problems = problems
        watch.look(BEGIN)
    assert ["warning: one is down"] * 2 == site.lines


def test_a_notice_is_sent_once_and_again_where_it_was_not_accepted(site: Site) -> None:
    """A drift, and its end."""
    watch = site.watch()
    now = _look(watch, site, [0.8, 0.8])
    site.is_down = True
    now = _look(watch, site, [0.4] * 4, now)
    assert "low" == watch.state.verdict
    assert ({}, []) == (watch.state.told, site.told)
    site.is_down = False
    now = _look(watch, site, [0.4] * 3, now)
    _look(watch, site, [0.8] * 10, now)
    assert ["low", "none"] == [one.drift for one in site.told]
    assert {"drift": "steady"} == STATE.find(Store(site.root), NAME).told  # type: ignore[union-attr]


def test_a_drift_that_follows_another_is_told(site: Site) -> None:
    """Each has its own key, by which a receiver drops what it knows."""
    watch, now = site.watch(), BEGIN
    for firsts in ([0.8] * 2, [0.4] * 4, [0.8] * 10, [0.4] * 4):
        now = _look(watch, site, firsts, now)
    assert ["low", "none", "low"] == [one.drift for one in site.told]
    assert 3 == len({one.key for one in site.told})


def test_an_export_that_was_replaced_is_read_at_the_next_look(site: Site) -> None:
    """A retraining promotes another draft while the watch runs: the drift of the one before is over."""
    watch = site.watch()
    now = _look(watch, site, [0.8] * 2 + [0.4] * 4)
    assert "low" == watch.state.verdict
    site.served = Served("vllm", expected_at(first=0.4, accepted=1.2, gamma=3, digest="other"), by_link=True)
    _look(watch, site, [0.4], now)
    assert ("steady", "other") == (watch.state.verdict, watch.state.draft)


def test_points_are_logged_each_hour_and_at_a_change(site: Site) -> None:
    """In minutes since 1970, so that a later point has a larger step; none of a look that counted nothing."""
    watch = site.watch()
    _look(watch, site, [0.8] * 14)  # 70 minutes
    assert [100 * 60 + 5, 101 * 60] == [step for _, step in site.points]
    figures = {
        "acceptance_first": 0.8,
        "acceptance_all": 0.64,
        "deviation_first": 0.0,
        "deviation_all": 0.0,
        "drift": 0.0,
    }
    assert {f"watch_{name}": value for name, value in figures.items()} == pytest.approx(site.points[-1][0])
    site.first = None
    watch.look(BEGIN + 2 * HOUR)
    assert 2 == len(site.points)
    _look(watch, site, [0.8, 0.3, 0.3, 0.3], BEGIN + 2 * HOUR + 20 * MINUTE)
    drifts = [(one["watch_drift"], step - 102 * 60) for one, step in site.points[2:]]
    assert [(0.0, 20), (1.0, 30)] == drifts
    assert -0.5 == pytest.approx(site.points[-1][0]["watch_deviation_first"])


def test_mlflow_that_does_not_answer_is_a_line(site: Site) -> None:
    """And the state is kept."""
    site.is_down = True
    watch = site.watch()
    _look(watch, site, [0.8] * 2)
    assert ["warning: no point in MLflow: MLflow does not answer"] == site.lines
    assert 2 == STATE.find(Store(site.root), NAME).looks  # type: ignore[union-attr]


def test_costs_are_of_the_served_variant_at_the_configured_context(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1 + 1.92 tokens in a step of twice a plain one."""
    seen = list[str]()
    costs, contexts = FlatCosts(plain=1.0, speculative=2.0), list[int]()
    steps = costs.steps

    def at(cap: int, context: int, gammas: int | None = None) -> Any:
        contexts.append(context)
        return steps(cap, context, gammas)

    costs.steps = at  # type: ignore[method-assign,assignment]

    def read(path: Path) -> Any:
        seen.append(path.name)
        return costs

    monkeypatch.setattr(acting, "read_step_costs", read)
    profiles = {"unquantized": "plain.json", "int8": "int8.json"}
    load = {"requests_per_second": 2.0, "context": 3000}
    site.config = _config(gate={"profile": profiles, "load": load})
    expected = site.served.expected
    assert expected is not None
    site.served = Served("vllm", replace(expected, draft=replace(expected.draft, variant="int8")))
    watch = site.watch()
    _look(watch, site, [0.8] * 2)
    assert {"int8.json"} == set(seen)
    assert (1 + 1.92) / 2 == pytest.approx(watch.state.paying.speedup)
    assert (1 + 1.92) / 2 == pytest.approx(site.points[-1][0]["watch_speedup"])
    assert {3000} == set(contexts)


def test_speculation_that_costs_is_a_warning(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it pays again it is a line."""
    costs = FlatCosts(plain=1.0, speculative=4.0)
    monkeypatch.setattr(acting, "read_step_costs", lambda path: costs)
    site.config = _config(gate={"profile": {"unquantized": "p.json"}, "load": {"requests_per_second": 2.0}})
    watch = site.watch()
    now = _look(watch, site, [0.8] * 2)
    costs = FlatCosts(plain=1.0, speculative=2.0)
    _look(watch, site, [0.8] * 9, now)
    said = [one.partition(" at this load")[0] for one in site.lines]
    assert ["warning: big-draft: speculation costs 37%", "big-draft: speculation pays again"] == said


def test_a_profile_that_cannot_be_read_loses_no_counts(site: Site) -> None:
    """The look fails before the counters are read."""
    site.config = _config(gate={"profile": {"unquantized": "/no/such.json"}, "load": {"requests_per_second": 2.0}})
    with pytest.raises(UsageError, match=r"/no/such\.json"):
        site.watch().look(BEGIN)
    assert None is site.before


def test_a_watch_needs_something_to_read(site: Site) -> None:
    """Endpoints, or a log."""
    site.config = _config(watch={"engine": "vllm", "log": "requests.jsonl"})
    assert 0 == site.watch().state.looks
    site.config = _config(watch={"engine": "vllm"})
    with pytest.raises(UsageError, match="watch: nothing to read"):
        site.watch()


class _Stopped(BaseException):
    """By the test."""


def _forever(
    site: Site, monkeypatch: pytest.MonkeyPatch, looks: list[Callable[[], None]], took: float = 0.0
) -> list[float]:
    """As many looks as there are steps before them; how long it slept after each. A look takes `took` seconds."""
    clock, slept = [BEGIN], list[float]()
    watch = site.watch()
    monkeypatch.setattr(forever.time, "time", lambda: clock[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds
        if len(slept) == len(looks):
            raise _Stopped
        looks[len(slept)]()

    def look(now: float) -> Observation:
        clock[0] += took
        return Watch.look(watch, now)

    monkeypatch.setattr(watch, "look", look)
    monkeypatch.setattr(forever.time, "sleep", sleep)
    looks[0]()
    with pytest.raises(_Stopped):
        forever.watch_forever(watch)
    return slept


def test_a_look_every_interval(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that it takes is not added; the first two are told in a line."""
    assert [260.0] * 3 == _forever(site, monkeypatch, [lambda: None] * 3, took=40.0)
    assert ["nothing was counted yet", "no drift"] == [
        said for one in site.lines for said in ("nothing was counted yet", "no drift") if said in one
    ]
    assert [0.0] == _forever(site, monkeypatch, [lambda: None], took=400.0)


def test_the_state_is_told_every_hour(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while nothing changes; and whoever came is named."""
    notes = {20: ("http://two:8000 came since the look before; it is counted from now on",)}
    read, looks = site.read, list[float]()

    def noted(now: float) -> tuple[Observation, ReaderState]:
        looks.append(now)
        found, state = read(now)
        return replace(found, notes=notes.get(len(looks), ())), state

    monkeypatch.setattr(site, "read", noted)
    _forever(site, monkeypatch, [lambda: None] * 40)
    told = [one for one in site.lines if "; last look: " in one]
    assert 1 + 3 == len(told)  # the second look, and three hours of 40 looks
    assert 1 == sum("http://two:8000 came since" in one for one in site.lines)


def test_a_look_that_fails_is_told_once_and_the_next_is_made(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged export, a full disk; when it is over the state is told."""

    def fail(error: Exception) -> Callable[[], None]:
        def served(config: object) -> Served:
            raise error

        return lambda: monkeypatch.setattr(acting, "served", served)

    well = lambda: monkeypatch.setattr(acting, "served", lambda config: site.served)  # noqa: E731
    full = OSError(28, "No space left on device")
    looks = [
        well,
        well,
        well,
        fail(full),
        fail(full),
        fail(UnderstudyError("expected.json: damaged")),
        well,
        well,
        fail(full),
    ]
    assert [300.0] * 9 == _forever(site, monkeypatch, looks)
    said = [one.partition(";")[0] for one in site.lines[2:]]
    assert [
        "warning: [Errno 28] No space left on device",
        "warning: expected.json: damaged",
        f"{NAME}: no drift",
        "warning: [Errno 28] No space left on device",
    ] == said


def test_forever_shows_its_figures(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each look that did not fail."""
    shown = list[int]()
    monkeypatch.setattr(forever.WatchMetrics, "show", lambda self, state, *rest: shown.append(state.looks))
    _forever(site, monkeypatch, [lambda: None] * 3)
    assert [1, 2, 3] == shown


def test_a_state_that_is_there_is_gone_on_from(site: Site) -> None:
    """With all that it knows."""
    state = replace(watched_state(), paying=Paying(speedup=0.9, pays=False, since=1.0))
    STATE.write(Store(site.root), state, NAME)
    assert state == site.watch().state


WITHOUT_PREDICTION = Served("vllm", None)
OTHER_DRAFT = Served("vllm", expected_at(first=0.8, accepted=1.92, gamma=3, digest="other"))


def _watching(**changes: Any) -> Config:
    known = _config().watch.model_dump(mode="json", exclude_defaults=True)
    return _config(watch=known | changes)


@pytest.mark.parametrize(
    ("config", "served"),
    [
        (_config(), WITHOUT_PREDICTION),
        (_config(), OTHER_DRAFT),  # an export by hand: the registry's champion is another one
        (_watching(endpoints=[], log="requests.jsonl"), None),
        (_watching(endpoints=["http://staging:8000"]), None),
        (_watching(model="adapter"), None),
        (_watching(rule="window"), None),
        (_watching(engine="sglang", draft_length=3), Served("sglang", None)),
    ],
    ids=["no prediction", "another export", "log", "other engines", "another model", "another rule", "another engine"],
)
def test_only_evidence_ends_a_drift(site: Site, config: Config, served: Served | None) -> None:
    """A look of the same name that compares something else has a state of its own. What the first found stays, is said, and its
    receiver is not told that it is over; the same comparison goes on where it was."""
    now = _look(site.watch(), site, [0.8, 0.8] + [0.4] * 4)
    found, (site.config, known), before = STATE.find(Store(site.root), NAME), (config, site.config), site.served
    site.served = served or before
    other = site.watch()
    now = _look(other, site, [0.8] * 20, now)
    elsewhere = other.found_elsewhere()

    assert found == STATE.find(Store(site.root), NAME)
    assert elsewhere is not None
    assert (NAME, "low") == (elsewhere[0], elsewhere[1].verdict)
    assert 1 == sum("is no evidence of it: look with the config that found it" in line for line in site.lines)
    assert ["low"] == [one.drift for one in site.told]
    site.config, site.served = known, before
    first = site.watch()
    now = _look(first, site, [0.4], now)
    assert ("low", NAME) == (first.state.verdict, first.key)
    _look(first, site, [0.8] * 12, now)
    assert ["low", "none"] == [one.drift for one in site.told]


def test_replicas_that_come_and_go_are_one_comparison(site: Site) -> None:
    """As long as one of them stays."""
    now = BEGIN
    for hosts, firsts in (("ab", [0.8] * 2 + [0.4] * 4), ("bc", [0.4]), ("cde", [0.8] * 12)):
        site.config = _watching(endpoints=[f"http://{host}:8000" for host in hosts])
        watch = site.watch()
        now = _look(watch, site, firsts, now)
        assert NAME == watch.key
    assert ["low", "none"] == [one.drift for one in site.told]


@pytest.mark.parametrize(("champion", "verdict"), [("other", "steady"), ("d", "low"), (None, "low")])
def test_a_change_of_the_champion_ends_a_drift(
    site: Site, monkeypatch: pytest.MonkeyPatch, champion: str | None, verdict: str
) -> None:
    """The registry's, where there is one: another export alone is no evidence."""
    held = None if champion is None else RegisteredDraft(name=NAME, version="2", digest=champion)
    monkeypatch.setattr(acting, "tracking_location", lambda *_: SimpleNamespace(exists=True))
    monkeypatch.setattr(acting, "registry_for", lambda *_: SimpleNamespace(champion=lambda: held))
    watch = site.watch()
    now = _look(watch, site, [0.8] * 2 + [0.4] * 4)
    site.served = replace(OTHER_DRAFT, by_link=True)
    _look(watch, site, [0.4], now)
    assert verdict == STATE.find(Store(site.root), NAME).verdict  # type: ignore[union-attr]
    assert (watch.found_elsewhere() is None) == (verdict == "steady")


def test_a_state_of_an_earlier_version_is_gone_on_from(site: Site) -> None:
    """What it compared is what its reader knows."""
    state = replace(watched_state(), looks=5, draft=site.served.digest, compared=None)
    replicas = {"http://one:8000": Replica(seen=1.0, engines={})}
    of_reader = ReaderState(time=1.0, watched="vllm", replicas=replicas)
    for reader, key in ((of_reader, NAME), (ReaderState(), NAME), (replace(of_reader, watched="sglang"), f"{NAME}@")):
        STATE.write(Store(site.root), replace(state, reader=reader, window=Window()), NAME)
        watch = site.watch()
        watch.look(BEGIN)
        assert watch.key.startswith(key)
        assert (key == NAME) == (watch.key == NAME)


def test_a_file_of_an_earlier_version_is_read(site: Site) -> None:
    """It does not say what it compared."""
    STATE.write(Store(site.root), watched_state(), NAME)
    path = STATE.path(Store(site.root), NAME)
    raw = json.loads(path.read_text())
    del raw["compared"]
    path.write_text(json.dumps(raw))
    assert replace(watched_state(), compared=None) == STATE.find(Store(site.root), NAME)
