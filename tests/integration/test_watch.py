"""`understudy watch` through the command line, on engines that count and decode nothing."""

import http.server
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.loading import load_config
from pipeline.export.schema import write_expected
from pipeline.registry.mlflow_client import client_for, experiment_id, tracking_location
from pipeline.registry.registry import champion_lock
from pipeline.store.artifacts import Store
from tests.integration.conftest import Place
from tests.integration.mlflow_fixtures import copy_migrated
from tests.standin_metrics import Answer, CountingEngine, showing
from tests.unit.watch.expectations import expected_at


class Site:
    """Two replicas, of which each can be down, and a config that watches them."""

    def __init__(self, place: Place, urls: list[str], engines: list[CountingEngine], down: set[int]) -> None:
        self.place, self.urls, self.engines, self.down = place, urls, engines, down
        self.export = place.root / "served"
        self.export.mkdir()
        write_expected(self.export, expected_at(first=0.8, accepted=1.6, gamma=3))

    def config(self, **watch: Any) -> Path:
        raw = {
            "name": "watched",
            "pair": {"target": {"source": "./big"}, "draft": {"source": "./small"}},
            "corpus": {"sources": [{"path": "prompts.jsonl"}]},
            "watch": {
                "endpoints": self.urls,
                "engine": "vllm",
                "expected": str(self.export),
                "burst_minutes": 1e-6,
                "timeout_seconds": 30.0,
                **watch,
            },
        }
        path = self.place.root / "watched.yaml"
        path.write_text(yaml.safe_dump(raw))
        return path

    def decode(self, first: float) -> None:
        """1,000 drafts on each replica."""
        for engine in self.engines:
            engine.decode(1000, (int(1000 * first), int(600 * first), int(400 * first)))


@pytest.fixture
def site(place: Place) -> Iterator[Site]:
    copy_migrated(place.store / "mlflow" / "mlflow.db", place.store / "mlflow" / "artifacts")  # for processes
    engines, down = [CountingEngine("vllm", running=4.0) for _ in range(2)], set[int]()

    def of(number: int) -> Any:
        def answer(path: str, asked: Mapping[str, str]) -> Answer:
            return (503, {}, b"") if number in down else (200, {}, engines[number].page().encode())

        return answer

    with showing(of(0)) as one, showing(of(1)) as other:
        yield Site(place, [one, other], engines, down)


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]], list[int]]]:
    """A webhook: its URL, what it got, and the status that it answers with."""
    told, status = list[dict[str, Any]](), [204]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status[0])
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook", told, status
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_drift_is_found_told_and_ends(site: Site, hook: tuple[str, list[dict[str, Any]], list[int]]) -> None:
    """Exit 0, then 3 while it lasts, then 0 again; the webhook is told once of each, and again what it did not accept."""
    url, told, status = hook
    config = site.config(notice={"url": url})
    first = site.place.understudy("watch", config, "--once")
    assert (0, True) == (first.code, "nothing was counted yet" in first.out), first.err
    site.decode(0.8)
    steady = site.place.understudy("watch", config, "--once")
    assert (0, True) == (
        steady.code,
        "no drift; last look: acceptance of the first draft token 0.800, predicted 0.800 (2,000 drafts), accepted share of the "
        "draft tokens (draft length 3) 0.533, predicted 0.533 (6,000 draft tokens); learning" in steady.out,
    )
    assert "learning the reference: 0.0 of 7 days" in steady.out
    site.decode(0.2)
    assert 0 == site.place.understudy("watch", config, "--once").code  # a look of less than a second is no evidence
    status[0] = 400
    site.decode(0.2)
    low = site.place.understudy("watch", config, "--once")
    assert (3, True) == (low.code, "first draft token is below what it should be since about 20" in low.complaint)
    assert "answered with HTTP 400; check watch.notice" in low.err
    status[0] = 204
    still = site.place.understudy("watch", config, "--once", "--json")
    assert (3, "low") == (still.code, json.loads(still.out)["drift"])
    site.decode(0.8)
    for other in ("watch.expected=null", "watch.rule=window"):  # no evidence of it
        bare = site.place.understudy("watch", config, "--once", "--json", "--set", other)
        assert (3, "low", True) == (
            bare.code,
            json.loads(bare.out)["drift"],
            "look with the config that" in bare.complaint,
        )
    assert ["low", "low"] == [one["drift"] for one in told]
    over = still
    for _ in range(20):  # one sound look is no end
        site.decode(0.8)
        over = site.place.understudy("watch", config, "--once") if over.code else over
    assert (0, True) == (over.code, "no drift" in over.out), over.err
    assert ["low", "low", "none"] == [one["drift"] for one in told]
    assert told[0]["since"] == json.loads(still.out)["since"] <= told[2]["since"]


def test_nothing_is_tested_while_the_engines_are_told(site: Site) -> None:
    """Of replicas that load another draft one after another some serve the one before."""
    config, store = site.config(), Store(site.place.store)
    codes = [site.place.understudy("watch", config, "--once").code]
    with store.lock(champion_lock("big-draft")):
        for _ in range(4):
            site.decode(0.2)
            ended = site.place.understudy("watch", config, "--once")
            codes.append(ended.code)
            assert f"the champion is being changed (process {os.getpid()} on " in ended.complaint
            assert "): this look is not tested" in ended.complaint
    assert [0, 1, 1, 1, 1] == codes  # a look that tests nothing is no look without a drift


def test_replicas_that_are_down(site: Site) -> None:
    """One: a warning. All: exit 1, and what was known stays."""
    config = site.config()
    site.place.understudy("watch", config, "--once")
    site.down.add(1)
    site.decode(0.8)
    one = site.place.understudy("watch", config, "--once")
    assert (0, True, True) == (one.code, site.urls[1] in one.err, "(1,000 drafts)" in one.out)
    site.down.add(0)
    none = site.place.understudy("watch", config, "--once")
    assert (1, True, "") == (none.code, "nothing could be read" in none.complaint, none.out)
    site.down.clear()
    site.engines[0].restart(1.7957e9)
    site.decode(0.8)
    back = site.place.understudy("watch", config, "--once")
    assert (0, True) == (back.code, "(3,000 drafts)" in back.out), back.out


def test_points_are_in_mlflow(site: Site) -> None:
    """One run for the registered name, with a metric for each look that is logged."""
    config = site.config()
    uri = f"sqlite:///{site.place.root / 'mlflow.db'}"
    for first in (0.8, 0.8, 0.2):
        ended = site.place.understudy(
            "watch", config, "--once", "--set", f"tracking.uri={uri}", MLFLOW_TRACKING_URI=uri
        )
        assert "no point in MLflow" not in ended.err
        site.decode(first)
    read = load_config(config, [f"tracking.uri={uri}"])
    location = tracking_location(read, Store(site.place.root / "s"))
    client = client_for(location)
    (run,) = client.search_runs([experiment_id(client, location)])
    assert ("watch", "watch-big-draft") == (run.data.tags["understudy.kind"], run.info.run_name)
    assert 0.8 == pytest.approx(run.data.metrics["watch_acceptance_first"])


@pytest.mark.parametrize(
    ("watch", "said"),
    [
        ({"endpoints": []}, "watch: nothing to read; name the replicas in watch.endpoints"),
        ({"engine": None, "expected": None}, "watch.engine: the engine is unknown"),
        ({"engine": "sglang"}, "was exported for vllm: engines count differently"),
        ({"engine": "sglang", "expected": None}, "watch.draft_length: SGLang does not count draft tokens"),
        ({"notice": {"program": "/no/such"}}, "watch.notice.program: /no/such: no such program"),
        ({"key_variable": "NO_SUCH_TOKEN"}, "NO_SUCH_TOKEN"),
        ({"expected": "/no/such"}, "watch.expected: /no/such/expected.json: no such file"),
    ],
    ids=str,
)
def test_what_cannot_be_watched(site: Site, watch: dict[str, Any], said: str) -> None:
    """Exit 2 in one line that names the key."""
    ended = site.place.understudy("watch", site.config(**watch), "--once")
    assert (2, True) == (ended.code, said in ended.complaint), ended.err


def test_it_runs_until_it_is_stopped(site: Site) -> None:
    """A look every second here, its own /metrics, and a state that `--once` goes on from."""
    with showing(lambda path, asked: (200, {}, b"")) as free:
        address = free.removeprefix("http://")
    process = site.place.forked("watch", site.config(interval_seconds=1.0, metrics=address))
    text = ""
    while "understudy_watch_looks_total{" not in text or "understudy_watch_acceptance{" not in text:
        site.decode(0.8)
        assert process.poll() is None, process.communicate(60)
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            text = ""
        time.sleep(0.2)
    beside = site.place.understudy("watch", site.config(), "--once", "--json")
    assert (0, True) == (beside.code, "its last look, at " in beside.err), beside.err
    assert json.loads(beside.out)["looks"] > 1
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(60)
    assert (130, False) == (process.returncode, "Traceback" in said), said
    assert 'understudy_watch_drift{name="big-draft",side="low"} 0.0' in text
    once = site.place.understudy("watch", site.config(), "--once", "--json")
    assert json.loads(once.out)["looks"] > 2


def test_a_fall_at_later_positions_alone_is_a_drift(site: Site) -> None:
    """First tokens are accepted as before."""
    config = site.config()
    site.place.understudy("watch", config, "--once")
    for later in (600, 60, 60):
        for engine in site.engines:
            engine.decode(1000, (800, int(later * 0.8), int(later * 0.8)))
        ended = site.place.understudy("watch", config, "--once")
        if ended.code:
            break
    assert (3, True) == (
        ended.code,
        "drift: accepted share of the draft tokens (draft length 3) is below what" in ended.complaint,
    )
    assert "acceptance of the first draft token 0.800, predicted 0.800" in ended.out


def test_a_link_that_is_gone_ends_no_drift(site: Site) -> None:
    """Such as by a disk that is not mounted: exit 1, and the state stays."""
    out = site.place.root / "out"
    out.mkdir()
    site.export.rename(out / "version-1")
    (out / "champion").symlink_to("version-1")
    config = site.config(expected=None)
    raw = yaml.safe_load(config.read_text()) | {"promote": {"export": {"engine": "vllm", "out": str(out)}}}
    config.write_text(yaml.safe_dump(raw))
    for first in (0.8, 0.8, 0.2, 0.2):
        low = site.place.understudy("watch", config, "--once")
        site.decode(first)
    low = site.place.understudy("watch", config, "--once")
    assert 3 == low.code, low.err
    (out / "champion").unlink()
    gone = site.place.understudy("watch", config, "--once")
    assert (1, True) == (gone.code, f"the link {out}/champion is gone" in gone.complaint), gone.err
    (out / "champion").symlink_to("version-1")
    idle = site.place.understudy("watch", config, "--once", "--json")
    assert (3, "low") == (idle.code, json.loads(idle.out)["drift"])


def test_a_look_that_counts_nothing_says_when_something_was_counted(site: Site) -> None:
    """A figure of the day before is no figure of now."""
    config = site.config()
    for _ in range(2):
        site.place.understudy("watch", config, "--once")
        site.decode(0.8)
    assert (
        "; last look: acceptance of the first draft token 0.800, predicted 0.800 (2,000 drafts),"
        in site.place.understudy("watch", config, "--once").out
    )
    assert "Z, and nothing counted since: acceptance" in site.place.understudy("watch", config, "--once").out


def test_a_notice_that_nobody_takes_is_one_warning(
    site: Site, hook: tuple[str, list[dict[str, Any]], list[int]]
) -> None:
    """While `watch` runs; it is sent at each look all the same."""
    url, told, status = hook
    status[0] = 400
    process = site.place.forked("watch", site.config(interval_seconds=1.0, notice={"url": url}))
    while len(told) < 3:
        site.decode(0.2)
        assert process.poll() is None, process.communicate(60)
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(60)
    assert 1 == said.count("answered with HTTP 400"), said


def _logged(domain: str, first: float) -> str:
    """A request of 1,000 drafts, as vLLM writes its statistics into the answer."""
    accepted = int(1000 * first)
    counts = {
        "num_spec_steps": 1000,
        "num_draft_tokens": 3000,
        "num_accepted_draft_tokens": accepted,
        "acceptance_histogram": [1000 - accepted, accepted, 0, 0],
    }
    answer = {"choices": [], "metrics": {"speculative_decoding": counts}}
    return json.dumps({"prompt": "x", "domain": domain, "response": answer}) + "\n"


def test_a_log_alone_is_watched_and_names_the_domain(site: Site) -> None:
    """Rows of before the first look do not count. The domain that fell is named."""
    log = site.place.root / "requests.jsonl"
    log.write_text(_logged("chat", 0.1))
    config = site.config(endpoints=[], log=str(log))
    first = site.place.understudy("watch", config, "--once")
    assert (0, True) == (first.code, "nothing was counted yet" in first.out), first.err
    low = first
    for json_rate in (0.8, 0.8, 0.1, 0.1, 0.1):
        with log.open("a") as file:
            file.write(_logged("chat", 0.8) + _logged("json", json_rate))
        low = site.place.understudy("watch", config, "--once")
    assert (3, True) == (low.code, "; most in json (-" in low.complaint), low.err


def test_a_config_that_cannot_learn_from_a_drift(site: Site) -> None:
    """Refused where the watch is to start retrainings; exit 2."""
    (site.place.root / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    config = site.config()
    ended = site.place.understudy("watch", config, "--once", "--for-retraining")
    assert (2, True) == (ended.code, "a retraining that drift starts cannot learn from the drift" in ended.complaint)
    assert 0 == site.place.understudy("watch", config, "--once").code
