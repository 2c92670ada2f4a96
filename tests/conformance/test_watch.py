"""`understudy watch` on the real vLLM: a stale draft that is swapped in is found, by counters alone."""

import itertools
import json
import random
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.watch import WatchConfig
from pipeline.export.schema import write_expected
from pipeline.progress import Progress
from pipeline.store.artifacts import Store
from pipeline.watch.acting import Watch
from pipeline.watch.state import new_state
from tests.conformance.engines import Engine
from tests.conformance.exported import Exported, export_champion
from tests.conformance.servers import Server, free_port

_MOST_DRAFT_TOKENS = 4000  # from the swap to the alarm
_LOOK = 300.0  # seconds of the clock that the watch is told
_REQUESTS, _TOKENS = 1, 48  # of a look
_LOOKS = 40  # at each draft, at the most
_NOW = 1.7956e9


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The champion of CONFORMANCE_STORE, with the deployment at temperature 0, at which vLLM's CPU build speculates rightly."""
    found = export_champion("vllm", tmp_path_factory.mktemp("export") / "out")
    assert found.expected.temperature_0 is not None
    at_zero = replace(found.expected, deployed=found.expected.temperature_0, temperature_0=None)
    write_expected(found.directory, at_zero)
    return replace(found, expected=at_zero)


@pytest.fixture(scope="module")
def requests(exported: Exported) -> list[list[int]]:
    """Prompts of the examination, in random order."""
    prompts = [item.prompt.tolist() for item in exported.completions]
    random.Random(1).shuffle(prompts)
    return prompts


def _serving(vllm: Engine, exported: Exported, draft: Path, port: int, log: Path) -> Server:
    settings = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": exported.gamma}
    arguments = ("--speculative-config", json.dumps(settings))
    return Server(vllm.interpreter, exported.target, arguments, log, port).start()


def _complete(url: str, prompt: list[int]) -> None:
    body = {"model": "target", "prompt": prompt, "temperature": 0, "max_tokens": _TOKENS}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def test_a_stale_draft_is_found(vllm: Engine, exported: Exported, requests: list[list[int]], tmp_path: Path) -> None:
    """Within 4,000 draft tokens of the swap, by the first position at gamma 5; no alarm before. The engine restarts between, so
    its counters begin again."""
    port, prompts = free_port(), itertools.cycle(requests)
    url = f"http://127.0.0.1:{port}"
    watch = WatchConfig.model_validate({"endpoints": [url], "engine": "vllm", "expected": str(exported.directory)})
    config = exported.config.model_copy(update={"watch": watch})
    watching = Watch(config, Store(tmp_path / "store"), "pair-draft", Progress(), new_state(_NOW), key="pair-draft")
    watching.store.create()
    drafts, looks = {"champion": exported.directory / "draft", "stale": exported.target.parent / "draft"}, 0
    found = dict[str, list[tuple[float, float]]]()  # by draft, of each look: drafts, accepted first tokens
    for name, draft in drafts.items():
        server = _serving(vllm, exported, draft, port, tmp_path / f"{name}.log")
        try:
            found[name] = []
            for _ in range(_LOOKS):
                for _ in range(_REQUESTS):
                    _complete(url, next(prompts))
                looks += 1
                observation = watching.look(_NOW + looks * _LOOK)
                if observation.counts is not None:
                    counts = observation.counts
                    found[name].append((counts.drafts or 0.0, counts.accepted_first or 0.0))
                if watching.state.has_drift:
                    break
        finally:
            server.stop()
    rates = {name: sum(one for _, one in rows) / sum(one for one, _ in rows) for name, rows in found.items()}
    tokens = sum(one for one, _ in found["stale"]) * exported.gamma
    print(f"predicted {watching.state.last}, counted {rates}, {tokens:.0f} draft tokens from the swap to the alarm")
    assert ("low", _LOOKS - 1) == (watching.state.verdict, len(found["champion"]))
    assert tokens <= _MOST_DRAFT_TOKENS
