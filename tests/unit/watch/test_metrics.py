"""What the watch shows to Prometheus, and that the dashboard asks for nothing else."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from pipeline.config.watch import WatchConfig
from pipeline.engines.facts import FACTS
from pipeline.errors import UsageError
from pipeline.watch.counts import Observation
from pipeline.watch.metrics import WatchMetrics
from tests.unit.watch.expectations import watched_state

DASHBOARD = Path(__file__).parents[3] / "docs" / "examples" / "grafana_dashboard.json"
NAME = re.compile(r"(?:vllm:|understudy_)\w+")


def _shown() -> str:
    metrics = WatchMetrics("big-draft")
    observation = Observation(time=1.7e9, seconds=300.0, counts=None, problems=("a replica is down",))
    metrics.show(watched_state(), observation, WatchConfig())
    return generate_latest(metrics.registry).decode()


def test_figures_of_the_state_are_shown() -> None:
    lines = _shown().splitlines()
    for line in (
        'understudy_watch_acceptance{name="big-draft"} 0.8',
        'understudy_watch_predicted_acceptance{name="big-draft"} 0.7',
        'understudy_watch_drift{name="big-draft",side="low"} 1.0',
        'understudy_watch_drift{name="big-draft",side="high"} 0.0',
        'understudy_watch_problems{name="big-draft"} 1.0',
        'understudy_watch_speedup{name="big-draft"} 1.2',
        'understudy_watch_looks_total{name="big-draft"} 1.0',
    ):
        assert line in lines


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
