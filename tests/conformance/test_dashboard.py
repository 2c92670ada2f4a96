"""Every query of the Grafana dashboard, run by a real Prometheus that scrapes an engine and the watch.

PROMETHEUS names the program; `make test-dashboard` gets it. The engine counts and decodes nothing (`tests/standin_metrics.py`).
"""

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import start_http_server

from pipeline.config.watch import WatchConfig
from pipeline.watch.metrics import WatchMetrics
from pipeline.watch.reading import Look
from tests.benchmarks.figures import ROOT
from tests.conformance.servers import free_port
from tests.standin_metrics import Answer, CountingEngine, showing
from tests.unit.watch.expectations import found_in, watched_state

DASHBOARD = ROOT / "docs" / "examples" / "grafana_dashboard.json"
_VARIABLES = {"$__rate_interval": "5s", "$name": ".*"}


def _queries() -> list[str]:
    """As Grafana sends them."""
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    for variable, value in _VARIABLES.items():
        expressions = [one.replace(variable, value) for one in expressions]
    return expressions


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL, once it has scraped both a few times."""
    if "PROMETHEUS" not in os.environ:
        pytest.skip("PROMETHEUS is not set: it names the program; `make test-dashboard` sets it")
    place, engine = tmp_path_factory.mktemp("prometheus"), CountingEngine("vllm", running=2.0)

    def page(path: str, asked: Mapping[str, str]) -> Answer:
        engine.decode(10, (8, 5, 3))
        return 200, {}, engine.page().encode()

    metrics = WatchMetrics("big-draft")
    metrics.show(found_in(watched_state()), Look(time=time.time(), seconds=300.0, counts=None), WatchConfig())
    own, port = free_port(), free_port()
    server, _ = start_http_server(own, "127.0.0.1", metrics.registry)
    with showing(page) as url:
        targets = [url.removeprefix("http://"), f"127.0.0.1:{own}"]
        scrapes = [{"job_name": "all", "static_configs": [{"targets": targets}]}]
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}
        (place / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            os.environ["PROMETHEUS"],
            f"--config.file={place}/prometheus.yml",
            f"--storage.tsdb.path={place}/data",
        ]
        with (place / "log").open("w") as log:
            process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            _wait(f"http://127.0.0.1:{port}", process, place / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)
    server.shutdown()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            if _asked(url, "count_over_time(understudy_watch_drift[30s]) > 5"):
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"Prometheus did not scrape:\n{log.read_text(errors='replace')[-2000:]}")


def _asked(url: str, query: str) -> list[Any]:
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=10) as answer:
        found = json.loads(answer.read())
    assert "success" == found["status"], (query, found)
    return list(found["data"]["result"])


def test_every_query_gives_numbers(prometheus: str) -> None:
    """A metric that nobody exports, a label that does not match or an expression that does not parse gives none."""
    empty = [one for one in _queries() if not [row for row in _asked(prometheus, one) if row["value"][1] != "NaN"]]
    assert [] == empty


def test_the_first_position_is_what_the_engine_counted(prometheus: str) -> None:
    (query,) = [one for one in _queries() if 'position="0"' in one]
    (row,) = _asked(prometheus, query)
    assert 0.8 == pytest.approx(float(row["value"][1]))
