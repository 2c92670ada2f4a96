"""`understudy canary` on a stand-in engine that serves the smoke pair: what was provoked is told apart."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.canary.schema import CANARY
from pipeline.store.artifacts import Store
from pipeline.watch.share import FIRST
from pipeline.watch.state import STATE, Last, new_state
from tests.integration.conftest import SMOKE, Place, Smoke
from tests.standin_pair import law_of
from tests.standin_server import Law, Speculation, StandIn, running

VOCABULARY = 512
NAME = "reference-draft"


@pytest.fixture(scope="module")
def laws(smoke: Smoke) -> Callable[[str], Law]:
    """The models of the smoke run by name."""
    pair, candidate = smoke.place.artifact("pair"), smoke.place.artifact("distill") / "draft"
    places = {
        "target": pair / "target",
        "before": pair / "target_before",
        "base": pair / "draft",
        "champion": candidate,
    }
    made = dict[str, Law]()

    def law(name: str) -> Law:
        if name not in made:
            made[name] = law_of(places[name], VOCABULARY)
        return made[name]

    return law


def engine(smoke: Smoke, target: Law, draft: Law | None, made_as: type[StandIn] = StandIn, **changes: Any) -> StandIn:
    """It serves `target`, and speculates with `draft`."""
    facts = json.loads((smoke.place.artifact("pair") / "pair.json").read_text())
    speculation = None if draft is None else Speculation(draft)
    return made_as(**({"eos": facts["stop_tokens"][0], "law": target, "speculation": speculation} | changes))


def config_for(place: Place, *urls: str, **watch: Any) -> Path:
    config = yaml.safe_load(SMOKE.read_text())
    config["watch"] = {"endpoints": list(urls), "engine": "vllm", "canary": {"prompts": 8}} | watch
    path = place.root / "canary.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize(
    ("target", "draft", "code", "verdicts"),
    [
        ("target", "champion", 0, ("as_examined", "as_examined")),
        ("target", "base", 3, ("as_examined", "not_as_examined")),
        ("before", "champion", 3, ("changed", "as_examined")),
        ("before", "base", 3, ("changed", "not_as_examined")),
    ],
)
def test_what_is_served_is_told(
    smoke: Smoke,
    loop: Place,
    laws: Callable[[str], Law],
    target: str,
    draft: str,
    code: int,
    verdicts: tuple[str, str],
) -> None:
    """Other target weights and another draft, each alone and together; the result is in the store too."""
    with running(engine(smoke, laws(target), laws(draft))) as server:
        ended = loop.understudy("canary", config_for(loop, server.url), "--json")
    found = json.loads(ended.out)
    assert (code, verdicts) == (ended.code, (found["target"]["verdict"], found["draft"]["verdict"])), ended.err
    kept = CANARY.find(Store(loop.store), NAME)
    assert kept is not None
    assert (found["time"], found["version"]) == (kept.time, kept.version)


def test_the_lines_name_the_evidence(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """A line a question; the prompts are the same each time."""
    with running(engine(smoke, laws("target"), laws("champion"))) as server:
        config = config_for(loop, server.url)
        ended = loop.understudy("canary", config)
        first = [body["prompt"] for body in server.requests if body.get("prompt_logprobs") is None]
        server.requests.clear()
        loop.understudy("canary", config)
        again = [body["prompt"] for body in server.requests if body.get("prompt_logprobs") is None]
    lines = ended.out.splitlines()
    assert 0 == ended.code, ended.err
    assert "canary: reference-draft version 1 on 1 engine (vllm): 8 examination prompts, at most 24 tokens" in lines[0]
    assert ["target   as examined", "traffic  inconclusive", "draft    as examined"] == [
        line[:21].rstrip() for line in lines[1:4]
    ]
    assert "8 of 8 greedy completions are the stored ones" in lines[1]
    assert sorted(first) == sorted(again)


@pytest.mark.parametrize(
    ("low", "age", "code", "verdict"),
    [
        (False, 0.0, 0, "as_examined"),
        (True, 0.0, 3, "changed"),
        (True, 2 * 86_400.0, 0, "inconclusive"),  # the watch has stopped
    ],
)
def test_the_traffic_is_what_the_watch_says(
    smoke: Smoke, loop: Place, laws: Callable[[str], Law], low: bool, age: float, code: int, verdict: str
) -> None:
    """Its counters fell, and the canary finds no other reason."""
    state = new_state(0.0)
    last = {FIRST: Last(time=time.time() - age, share=0.5, predicted=0.5, trials=10.0)}
    state = replace(state, looks=1, last=last, window=replace(state.window, low=low))
    STATE.write(Store(loop.store), state, NAME)
    with running(engine(smoke, laws("target"), laws("champion"))) as server:
        ended = loop.understudy("canary", config_for(loop, server.url), "--json")
    assert (code, verdict) == (ended.code, json.loads(ended.out)["traffic"]["verdict"]), ended.err


def test_without_counts_it_says_what_to_switch_on(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """The target is judged all the same; the draft is not."""
    server = engine(smoke, laws("target"), laws("champion"))
    server.speculation = Speculation(laws("champion"), by_request=False)
    with running(server):
        ended = loop.understudy("canary", config_for(loop, server.url))
    assert (1, "canary: not answered: engine or draft") == (ended.code, ended.complaint)
    assert "--per-request-spec-decode-metrics summary" in ended.out
    assert "target   as examined" in ended.out


@pytest.mark.parametrize(("draft", "code"), [("champion", 0), ("base", 3)])
def test_counters_of_an_idle_engine_do_instead(
    smoke: Smoke, loop: Place, laws: Callable[[str], Law], draft: str, code: int
) -> None:
    """Their growth is compared, where the config says that nobody else is served."""
    server = engine(smoke, laws("target"), laws(draft))
    server.speculation = Speculation(laws(draft), by_request=False)
    server.rounds = [2, 0, 5]  # of requests before
    with running(server):
        ended = loop.understudy("canary", config_for(loop, server.url, canary={"prompts": 8, "idle": True}))
    assert code == ended.code, ended.err
    assert "the engine's counters" in ended.out


def test_one_engine_of_two_is_wrong_and_one_is_down(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """What is wrong decides, and each is named."""
    nobody = "http://127.0.0.1:1"
    with (
        running(engine(smoke, laws("target"), laws("champion"))) as right,
        running(engine(smoke, laws("target"), laws("base"))) as wrong,
    ):
        ended = loop.understudy("canary", config_for(loop, right.url, wrong.url, nobody))
        half = loop.understudy("canary", config_for(loop, right.url, nobody))
    (draft,) = [line for line in ended.out.splitlines() if line.startswith("draft")]
    assert (3, True, False) == (ended.code, f"{wrong.url}: the counts" in draft, right.url in draft)
    assert f"not asked: {nobody}: " in ended.out
    assert (1, "canary: not answered: 1 engines not asked") == (half.code, half.complaint)


@pytest.mark.parametrize(
    ("watch", "code", "said"),
    [
        ({"endpoints": []}, 2, "watch.endpoints: it names no engine"),
        ({"engine": None}, 2, "watch.engine: the engine is unknown"),
        ({"engine": "tensorrt-llm"}, 2, "watch.engine is tensorrt-llm, which the canary does not support"),
        ({"key_variable": "NOWHERE"}, 2, "watch.key_variable: the environment variable NOWHERE is not set"),
        ({"expected": "/nothing"}, 2, "watch.expected: /nothing/expected.json: no such file"),
        ({}, 1, "canary: no engine could be asked: http://127.0.0.1:1: cannot connect"),
    ],
)
def test_what_cannot_be_asked(loop: Place, watch: dict[str, Any], code: int, said: str) -> None:
    """A wrong config is told from an engine that is down."""
    ended = loop.understudy("canary", config_for(loop, "http://127.0.0.1:1", **watch))
    assert (code, True) == (ended.code, ended.complaint.startswith(said)), ended.complaint


def test_without_a_champion_there_is_nothing_to_compare_with(loop: Place) -> None:
    """It was rolled back; or nothing was ever promoted here."""
    config = config_for(loop, "http://127.0.0.1:1")
    assert 0 == loop.understudy("champion", "rollback", config, "--yes").code
    assert "reference-draft has no champion" in loop.understudy("canary", config).complaint


def test_a_served_model_must_be_named_where_there_are_several(smoke: Smoke, loop: Place) -> None:
    """The key of the watch is named, not that of the target's servers."""
    with running(StandIn()) as server:
        ended = loop.understudy("canary", config_for(loop, server.url, model="other"))
    assert (2, True) == (ended.code, "it does not serve other, but target" in ended.complaint)
