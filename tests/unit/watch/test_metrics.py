"""What the watch shows to Prometheus, and that the dashboard asks for nothing else."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from pipeline.config.watch import WatchConfig
from pipeline.engines.facts import FACTS
from pipeline.errors import UsageError
from pipeline.watch.metrics import WatchMetrics
from pipeline.watch.reading import Look
from pipeline.watch.thresholds import Paying
from tests.unit.watch.expectations import found_in, watched_state, with_reference

DASHBOARD = Path(__file__).parents[3] / "docs" / "examples" / "grafana_dashboard.json"
NAME = re.compile(r"(?:vllm:|understudy_)\w+")


def _shown() -> str:
    metrics = WatchMetrics("big-draft")
    observation = Look(time=1.7e9, seconds=300.0, counts=None, problems=("a replica is down",))
    metrics.show(found_in(watched_state()), observation, WatchConfig())
    return generate_latest(metrics.registry).decode()


def test_figures_of_the_state_are_shown() -> None:
    lines = _shown().splitlines()
    for line in (
        'understudy_watch_acceptance{count="first",name="big-draft"} 0.8',
        'understudy_watch_predicted_acceptance{count="first",name="big-draft"} 0.7',
        'understudy_watch_drift{name="big-draft",side="low"} 1.0',
        'understudy_watch_drift{name="big-draft",side="high"} 0.0',
        'understudy_watch_problems{name="big-draft"} 1.0',
        'understudy_watch_speedup{name="big-draft"} 1.2',
        'understudy_watch_looks_total{name="big-draft"} 1.0',
    ):
        assert line in lines


def test_figures_of_the_reference_and_the_evidence() -> None:
    """A level beside the prediction, a band, evidence by side and chart; and the times of Prometheus are seconds."""
    lines = _shown().splitlines()
    for line in (
        'understudy_watch_level{count="first",name="big-draft"} 0.01',
        'understudy_watch_band{count="first",name="big-draft"} 0.02',
        'understudy_watch_reference{count="first",name="big-draft"} 1.0',
        'understudy_watch_last_look_timestamp_seconds{name="big-draft"} 1.7e+09',
        'understudy_watch_pays{name="big-draft"} 1.0',
        'understudy_watch_evidence{chart="blocks",count="first",name="big-draft",side="low"} 0.0',
    ):
        assert line in lines


def test_what_is_not_known_is_not_shown() -> None:
    """No prediction without an export; before there is a reference, no level; and speculation that costs is 0."""
    metrics, state = WatchMetrics("big-draft"), watched_state()
    state = with_reference(replace(state, draft="", paying=Paying(speedup=0.9, pays=False)), None)
    metrics.show(found_in(state), Look(time=1.7e9, seconds=300.0, counts=None), WatchConfig())
    text = generate_latest(metrics.registry).decode()
    for part in ("predicted_acceptance{", "level{", "band{"):
        assert f"understudy_watch_{part}" not in text
    for part in ('reference{count="first",', "pays{"):
        assert f'understudy_watch_{part}name="big-draft"}} 0.0' in text


@pytest.mark.skipif(not DASHBOARD.exists(), reason="runs in a checkout")
def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    """`make test-dashboard` runs its queries."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = {name for panel in panels for target in panel["targets"] for name in NAME.findall(target["expr"])}
    facts = FACTS["vllm"].counters
    known = {one.partition("{")[0] for one in vars(facts).values() if isinstance(one, str)}
    assert set() == {name for name in asked if name not in known and name not in _shown()}
    assert len(asked) > 10


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "256.0.0.1:80", "nohost.invalid:80"])
def test_an_address_that_cannot_be(address: str) -> None:
    with pytest.raises(UsageError, match=r"watch\.metrics: .*; name another host:port"):
        WatchMetrics("x").serve(address)
