"""Looks of one name that compare several things: each has a state, and every report knows the drifts of all."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from pipeline.config.root import Config
from pipeline.errors import UnderstudyError
from pipeline.registry.drafts import RegisteredDraft
from pipeline.store.artifacts import Store
from pipeline.watch import acting
from pipeline.watch.acting import Watch
from pipeline.watch.compared import compared
from pipeline.watch.drift import started
from pipeline.watch.increments import WatchedReplica
from pipeline.watch.lines import drift_lines, figures, status_line
from pipeline.watch.metrics import WatchMetrics
from pipeline.watch.prediction import ServedDraft
from pipeline.watch.reading import Look, ReaderState
from pipeline.watch.reference import SLOTS, Reference
from pipeline.watch.share import FIRST
from pipeline.watch.state import STATE, new_state
from pipeline.watch.thresholds import Window
from pipeline.watch.watched_counts import Watched, WatchedCounts
from tests.unit.watch.expectations import expected_at, watched_state
from tests.unit.watch.site import BEGIN, HOUR, NAME, Site, look_at, put_in_place, watch_config


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    put_in_place(made, monkeypatch)
    return made


def _status(watch: Watch) -> str:
    return status_line(watch.findings, watch.config.watch)


WITHOUT_PREDICTION = ServedDraft("vllm", None)
OTHER_DRAFT = ServedDraft("vllm", expected_at(first=0.8, accepted=1.92, gamma=3, digest="other"))


def _watching(**changes: Any) -> Config:
    known = watch_config().watch.model_dump(mode="json", exclude_defaults=True)
    return watch_config(watch=known | changes)


@pytest.mark.parametrize(
    ("config", "served"),
    [
        (_watching(endpoints=["http://staging:8000"]), OTHER_DRAFT),
        (_watching(model="adapter"), OTHER_DRAFT),
        (_watching(rule="window"), OTHER_DRAFT),
        (watch_config(), replace(OTHER_DRAFT, engine="sglang")),
        (watch_config(), WITHOUT_PREDICTION),
        (_watching(endpoints=[], log="requests.jsonl"), OTHER_DRAFT),
    ],
    ids=["other engines", "another model", "another rule", "another engine", "no prediction", "log"],
)
def test_what_is_another_comparison(config: Config, served: ServedDraft) -> None:
    """Another export alone is none."""
    assert not compared(config.watch, served).is_of(compared(watch_config().watch, OTHER_DRAFT))


@pytest.mark.parametrize(
    ("config", "served"),
    [
        (watch_config(), WITHOUT_PREDICTION),
        (watch_config(), OTHER_DRAFT),  # an export by hand: the registry's champion is another one
        (_watching(endpoints=[], log="requests.jsonl"), None),
    ],
    ids=["no prediction", "another export", "log"],
)
def test_only_evidence_ends_a_drift(site: Site, config: Config, served: ServedDraft | None) -> None:
    """A look of the same name that compares something else has a state of its own. What the first found stays, is said, and its
    receiver is not told that it is over; the same comparison goes on where it was."""
    now = look_at(site.watch(), site, [0.8, 0.8] + [0.4] * 4)
    found, (site.config, known), before = STATE.find(Store(site.root), NAME), (config, site.config), site.served
    site.served = served or before
    other = site.watch()
    now = look_at(other, site, [0.8] * 20, now)
    elsewhere = other.findings.elsewhere

    assert found == STATE.find(Store(site.root), NAME)
    assert {NAME: "low"} == {key: state.verdict for key, state in elsewhere.items()}
    assert (True, "low") == (
        "compares something else and cannot end it: look with the config that found" in _status(other),
        figures(other.findings)["drift"],
    )
    assert ["low"] == [one.drift for one in site.told]
    site.config, site.served = known, before
    first = site.watch()
    now = look_at(first, site, [0.4], now)
    assert ("low", NAME) == (first.findings.own.verdict, first.findings.key)
    look_at(first, site, [0.8] * 12, now)
    assert ["low", "none"] == [one.drift for one in site.told]


def test_replicas_that_come_and_go_are_one_comparison(site: Site) -> None:
    """As long as one of them stays."""
    now = BEGIN
    for hosts, firsts in (("ab", [0.8] * 2 + [0.4] * 4), ("bc", [0.4]), ("cde", [0.8] * 12)):
        site.config = _watching(endpoints=[f"http://{host}:8000" for host in hosts])
        watch = site.watch()
        now = look_at(watch, site, firsts, now)
        assert NAME == watch.findings.key
    assert ["low", "none"] == [one.drift for one in site.told]


@dataclass
class Registry:
    """With one champion after another; it may not answer."""

    digest: str | None = "d"
    is_down: bool = False

    def champion(self) -> RegisteredDraft | None:
        if self.is_down:
            raise UnderstudyError("MLflow does not answer")
        return None if self.digest is None else RegisteredDraft(name=NAME, version="2", digest=self.digest)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr(acting, "tracking_location", lambda *_: SimpleNamespace(exists=True))
    monkeypatch.setattr(acting, "registry_for", lambda *_: made)
    return made


@pytest.mark.parametrize(("champion", "verdict"), [("other", "steady"), ("d", "low"), (None, "low")])
def test_a_change_of_the_champion_ends_a_drift(
    site: Site, registry: Registry, champion: str | None, verdict: str
) -> None:
    """The registry's, where there is one: another export alone is no evidence."""
    registry.digest = champion
    watch = site.watch()
    now = look_at(watch, site, [0.8] * 2 + [0.4] * 4)
    site.served = replace(OTHER_DRAFT, by_link=True)
    look_at(watch, site, [0.4], now)
    assert verdict == STATE.find(Store(site.root), NAME).verdict  # type: ignore[union-attr]
    assert (not watch.findings.elsewhere) == (verdict == "steady")


LOG = _watching(endpoints=[], log="requests.jsonl")


def _metrics(watch: Watch, now: float) -> str:
    metrics = WatchMetrics(NAME)
    metrics.show(watch.findings, Look(time=now, seconds=300.0, counts=None), watch.config.watch)
    return generate_latest(metrics.registry).decode()


@pytest.mark.parametrize("sides", [("low", "none"), ("high", "none")])
def test_every_report_knows_the_drift_of_another_state(site: Site, registry: Registry, sides: tuple[str, str]) -> None:
    """Metrics, MLflow, the line, `--json`; and the receiver hears of its end when the champion is another one, once."""
    first = 0.4 if sides[0] == "low" else 1.0
    now = look_at(site.watch(), site, [0.8, 0.8] + [first] * 6)
    site.config, site.points = LOG, []
    watch = site.watch()
    now = look_at(watch, site, [0.8] * 14, now)
    assert f'understudy_watch_drift{{name="{NAME}",side="{sides[0]}"}} 1.0' in _metrics(watch, now)
    assert {1.0} == {figures["watch_drift"] for figures, _ in site.points}
    assert "found in the counters of http://one:8000" in _status(watch)
    assert [sides[0]] == [one["drift"] for one in figures(watch.findings)["drifts"]]
    assert [sides[0]] == [one.drift for one in site.told]
    registry.digest = "other"
    site.first, site.points = None, []
    watch.look(now)
    assert list(sides) == [one.drift for one in site.told]
    assert [{"watch_drift": 0.0}] == [figures for figures, _ in site.points]  # nothing was counted
    assert ("steady", {"drift": "steady"}) == _kept(site, NAME)
    assert 1 == sum("the drift in the counters of" in line for line in site.lines)
    registry.digest = "d"  # it was over
    look_at(site.watch(), site, [0.8], now + HOUR)
    assert list(sides) == [one.drift for one in site.told]


def _kept(site: Site, key: str) -> tuple[str, Mapping[str, str]]:
    state = STATE.find(Store(site.root), key)
    assert state is not None
    return state.verdict, state.told


def test_the_end_is_told_when_the_last_drift_ends(site: Site) -> None:
    """Of two that overlap, whichever ends first; by the looks of whoever comes last."""
    endpoints, now = site.config, BEGIN
    for config, firsts in ((endpoints, [0.8] * 2 + [0.4] * 4), (LOG, [0.8] * 2 + [0.4] * 4), (endpoints, [0.8] * 12)):
        site.config, site.before = config, None
        now = look_at(site.watch(), site, firsts, now)
    assert ["low", "low"] == [one.drift for one in site.told]
    site.config, site.before = LOG, None
    last = site.watch()
    look_at(last, site, [0.8] * 12, now)
    assert ["low", "low", "none"] == [one.drift for one in site.told]
    assert {} == last.findings.open


def test_a_drift_without_an_export_ends_with_the_champion(site: Site, registry: Registry) -> None:
    """Both where it is still looked at and where it is not, also in a state of an earlier version, once its champion is known."""
    site.served = WITHOUT_PREDICTION
    reference = Reference(level=(0.8,) * SLOTS, band=0.02, design_effect=3.0, typical=100.0, block=0.01)
    begun = replace(new_state(BEGIN), looks=2, compared=compared(site.config.watch, site.served))
    drift = replace(started(BEGIN), reference=reference, verdict="low")
    state = replace(
        begun, counts=WatchedCounts(began=BEGIN, by_name={FIRST: Watched(drift=drift)}), told={"drift": "low 1"}
    )
    for config in (site.config, LOG):
        STATE.write(Store(site.root), state, NAME)
        site.config, site.before, registry.digest = config, None, "d"
        watch = site.watch()
        now = look_at(watch, site, [0.4] * 2)
        assert ["low"] == [one.verdict for one in watch.findings.open.values()]
        registry.is_down, registry.digest = True, "other"
        now = look_at(watch, site, [0.4], now)
        assert ["low"] == [one.verdict for one in watch.findings.open.values()]  # not known, so not over
        assert any("it is unknown whether the champion changed: MLflow" in line for line in site.lines)
        registry.is_down = False
        look_at(watch, site, [0.4], now)
        kept = STATE.find(Store(site.root), NAME)
        assert kept is not None
        assert ("steady", reference) == (kept.verdict, kept.reference(FIRST))
        assert "none" == site.told[-1].drift


@pytest.mark.parametrize(
    ("running", "mine", "said"),
    [
        (LOG, LOG, "its last look, at 1970-01-05T04:20:00Z:"),
        (
            LOG,
            watch_config(),
            "compares the log of requests.jsonl with the prediction of its export; this config compares the counters",
        ),
        (watch_config(), LOG, "compares the counters of http://one:8000"),
    ],
)
def test_beside_a_running_watch(site: Site, running: Config, mine: Config, said: str) -> None:
    """What that has found is shown where it compares the same; the state of an earlier watch is not taken for it."""
    site.config = watch_config()
    now = look_at(site.watch(), site, [0.8] * 2)
    site.config, site.before = running, None
    now = look_at(site.watch(), site, [0.8] * 3, now)
    site.config = mine
    beside = site.watch()
    if running is mine:
        beside.beside()
        assert 3 == beside.findings.own.looks
        assert said in "".join(site.lines)
        return
    with pytest.raises(UnderstudyError, match=said):
        beside.beside()
    site.config, site.before = running, None
    look_at(site.watch(), site, [0.8] + [0.4] * 4, now)
    site.config, site.lines = mine, []
    beside = site.watch()
    beside.beside()
    assert (1, True) == (len(drift_lines(beside.findings)), said in "".join(site.lines))


def test_a_lost_link_names_the_files_that_know_of_it(site: Site) -> None:
    """The one of the name itself may be of another comparison."""
    site.served = WITHOUT_PREDICTION
    now = look_at(site.watch(), site, [0.8])
    site.served, site.before = ServedDraft("vllm", expected_at(first=0.8, accepted=1.92, gamma=3), by_link=True), None
    watch = site.watch()
    look_at(watch, site, [0.8], now)
    site.served, site.config = (
        WITHOUT_PREDICTION,
        watch_config(promote={"export": {"engine": "vllm", "out": "/srv/out"}}),
    )
    with pytest.raises(UnderstudyError, match=re.escape(f"move {site.root}/watch/{watch.findings.key}.json away")):
        site.watch().look(now + HOUR)


def test_a_state_of_an_earlier_version_is_gone_on_from(site: Site) -> None:
    """What it compared is what its reader knows."""
    state = replace(watched_state(), looks=5, draft=site.served.digest, compared=None)
    replicas = {"http://one:8000": WatchedReplica(seen=1.0, engines={})}
    of_reader = ReaderState(time=1.0, watched="vllm", replicas=replicas)
    for reader, key in ((of_reader, NAME), (ReaderState(), NAME), (replace(of_reader, watched="sglang"), f"{NAME}@")):
        STATE.write(Store(site.root), replace(state, reader=reader, window=Window()), NAME)
        watch = site.watch()
        watch.look(BEGIN)
        assert watch.findings.key.startswith(key)
        assert (key == NAME) == (watch.findings.key == NAME)


def test_a_file_of_an_earlier_version_is_read(site: Site) -> None:
    """It does not say what it compared."""
    STATE.write(Store(site.root), watched_state(), NAME)
    path = STATE.path(Store(site.root), NAME)
    raw = json.loads(path.read_text())
    del raw["compared"], raw["champion"]
    path.write_text(json.dumps(raw))
    assert replace(watched_state(), compared=None, champion="") == STATE.find(Store(site.root), NAME)
