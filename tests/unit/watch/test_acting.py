"""What follows from a look: lines, a notice, points in MLflow, the state that is kept; and looks without end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import UnderstudyError, UsageError
from pipeline.store.artifacts import Store
from pipeline.watch import acting
from pipeline.watch.acting import Watch
from pipeline.watch.prediction import ServedDraft
from pipeline.watch.reading import Look, ReaderState
from pipeline.watch.state import STATE
from pipeline.watch.thresholds import Paying
from tests.unit.watch.expectations import FlatCosts, expected_at, watched_state
from tests.unit.watch.site import BEGIN, HOUR, MINUTE, NAME, Site, look_at, put_in_place, watch_config


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    put_in_place(made, monkeypatch)
    return made


def test_the_state_is_kept_with_the_readers(site: Site) -> None:
    """Another process goes on from it, and its reader from where the other was."""
    watch = site.watch()
    look_at(watch, site, [0.8, 0.8])
    kept = STATE.find(Store(site.root), NAME)
    assert kept == watch.findings.own == site.watch().findings.own
    assert [True, False] == [f"its state is in {site.root}/watch/{NAME}.json" in "".join(lines) for lines in site.began]
    assert (2, BEGIN + 5 * MINUTE) == (watch.findings.own.looks, watch.findings.own.reader.time)
    site.watch().look(BEGIN + 10 * MINUTE)
    assert [None, BEGIN + 5 * MINUTE] == [one.time for one in site.began_with]


def test_a_change_is_a_line_and_a_drift_a_warning(site: Site) -> None:
    """Its end is a line."""
    watch = site.watch()
    now = look_at(watch, site, [0.8, 0.8])
    assert [] == site.lines
    now = look_at(watch, site, [0.4] * 4, now)
    look_at(watch, site, [0.8] * 10, now)
    assert [
        "big-draft: no drift yet, but acceptance of the first draft token is far below what it should be",
        "warning: big-draft: drift: acceptance of the first draft token is below what it should be",
        "big-draft: no drift",
    ] == [one.partition(" since")[0].partition(": an alarm")[0] for one in site.lines]


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
    now = look_at(watch, site, [0.8, 0.8])
    site.is_down = True
    now = look_at(watch, site, [0.4] * 4, now)
    assert "low" == watch.findings.own.verdict
    assert ({}, []) == (watch.findings.own.told, site.told)
    site.is_down = False
    now = look_at(watch, site, [0.4] * 3, now)
    look_at(watch, site, [0.8] * 10, now)
    assert ["low", "none"] == [one.drift for one in site.told]
    assert {"drift": "steady"} == STATE.find(Store(site.root), NAME).told  # type: ignore[union-attr]


def test_a_drift_that_follows_another_is_told(site: Site) -> None:
    """Each has its own key, by which a receiver drops what it knows."""
    watch, now = site.watch(), BEGIN
    for firsts in ([0.8] * 2, [0.4] * 4, [0.8] * 10, [0.4] * 4):
        now = look_at(watch, site, firsts, now)
    assert ["low", "none", "low"] == [one.drift for one in site.told]
    assert 3 == len({one.key for one in site.told})


def test_an_export_that_was_replaced_is_read_at_the_next_look(site: Site) -> None:
    """A retraining promotes another draft while the watch runs: the drift of the one before is over."""
    watch = site.watch()
    now = look_at(watch, site, [0.8] * 2 + [0.4] * 4)
    assert "low" == watch.findings.own.verdict
    site.served = ServedDraft("vllm", expected_at(first=0.4, accepted=1.2, gamma=3, digest="other"), by_link=True)
    look_at(watch, site, [0.4], now)
    assert ("steady", "other") == (watch.findings.own.verdict, watch.findings.own.draft)


def test_points_are_logged_each_hour_and_at_a_change(site: Site) -> None:
    """In minutes since 1970, so that a later point has a larger step; none of a look that counted nothing."""
    watch = site.watch()
    look_at(watch, site, [0.8] * 14)  # 70 minutes
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
    look_at(watch, site, [0.8, 0.3, 0.3, 0.3], BEGIN + 2 * HOUR + 20 * MINUTE)
    drifts = [(one["watch_drift"], step - 102 * 60) for one, step in site.points[2:]]
    assert [(0.0, 20), (0.0, 25), (1.0, 30)] == drifts  # at 25 a look that is far below
    assert -0.5 == pytest.approx(site.points[-1][0]["watch_deviation_first"])


def test_mlflow_that_does_not_answer_is_a_line(site: Site) -> None:
    """And the state is kept."""
    site.is_down = True
    watch = site.watch()
    look_at(watch, site, [0.8] * 2)
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
    site.config = watch_config(gate={"profile": profiles, "load": load})
    expected = site.served.expected
    assert expected is not None
    site.served = ServedDraft("vllm", replace(expected, draft=replace(expected.draft, variant="int8")))
    watch = site.watch()
    look_at(watch, site, [0.8] * 2)
    assert {"int8.json"} == set(seen)
    assert (1 + 1.92) / 2 == pytest.approx(watch.findings.own.paying.speedup)
    assert (1 + 1.92) / 2 == pytest.approx(site.points[-1][0]["watch_speedup"])
    assert {3000} == set(contexts)


def test_speculation_that_costs_is_a_warning(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it pays again it is a line."""
    costs = FlatCosts(plain=1.0, speculative=4.0)
    monkeypatch.setattr(acting, "read_step_costs", lambda path: costs)
    site.config = watch_config(gate={"profile": {"unquantized": "p.json"}, "load": {"requests_per_second": 2.0}})
    watch = site.watch()
    now = look_at(watch, site, [0.8] * 2)
    costs = FlatCosts(plain=1.0, speculative=2.0)
    look_at(watch, site, [0.8] * 9, now)
    said = [one.partition(" at this load")[0] for one in site.lines]
    assert [
        "warning: big-draft: speculation is 37% slower than plain decoding",
        "big-draft: speculation pays again",
    ] == said


def test_a_profile_that_cannot_be_read_loses_no_counts(site: Site) -> None:
    """The look fails before the counters are read."""
    site.config = watch_config(gate={"profile": {"unquantized": "/no/such.json"}, "load": {"requests_per_second": 2.0}})
    with pytest.raises(UsageError, match=r"/no/such\.json"):
        site.watch().look(BEGIN)
    assert None is site.before


def test_a_watch_needs_something_to_read(site: Site) -> None:
    """Endpoints, or a log."""
    site.config = watch_config(watch={"engine": "vllm", "log": "requests.jsonl"})
    assert 0 == site.watch().findings.own.looks
    site.config = watch_config(watch={"engine": "vllm"})
    with pytest.raises(UsageError, match="watch: nothing to read"):
        site.watch()


class _Stopped(BaseException):
    """By the test."""


def _forever(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    looks: list[Callable[[], None]],
    took: float = 0.0,
    put_back: float = 0.0,
) -> list[float]:
    """As many looks as there are steps before them; how long it slept after each. A look takes `took` seconds, in which the clock
    of the machine is put back by `put_back`."""
    clock, back, slept = [BEGIN], [0.0], list[float]()
    watch = site.watch()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds
        if len(slept) == len(looks):
            raise _Stopped
        looks[len(slept)]()

    def look(now: float) -> Look:
        clock[0] += took
        back[0] += put_back
        return Watch.look(watch, now)

    clocks = SimpleNamespace(time=lambda: clock[0] - back[0], monotonic=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(acting, "time", clocks)
    monkeypatch.setattr(watch, "look", look)
    looks[0]()
    with pytest.raises(_Stopped):
        acting.watch_forever(watch)
    return slept


def test_a_look_every_interval(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that it takes is not added; the first two are told in a line."""
    assert [260.0] * 3 == _forever(site, monkeypatch, [lambda: None] * 3, took=40.0)
    assert ["nothing was counted yet", "no drift"] == [
        said for one in site.lines for said in ("nothing was counted yet", "no drift") if said in one
    ]
    assert [0.0] == _forever(site, monkeypatch, [lambda: None], took=400.0)
    assert [260.0] == _forever(site, monkeypatch, [lambda: None], took=40.0, put_back=3600.0)


def test_the_state_is_told_every_hour(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while nothing changes; and whoever came is named."""
    notes = {20: ("http://two:8000 came since the look before; it is counted from now on",)}
    read, looks = site.read, list[float]()

    def noted(now: float) -> tuple[Look, ReaderState]:
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
        def served(config: object) -> ServedDraft:
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
    monkeypatch.setattr(acting.WatchMetrics, "show", lambda self, found, *rest: shown.append(found.own.looks))
    _forever(site, monkeypatch, [lambda: None] * 3)
    assert [1, 2, 3] == shown


def test_a_state_that_is_there_is_gone_on_from(site: Site) -> None:
    """With all that it knows."""
    state = replace(watched_state(), paying=Paying(speedup=0.9, pays=False, since=1.0))
    STATE.write(Store(site.root), state, NAME)
    assert state == site.watch().findings.own
