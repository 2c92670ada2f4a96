"""`understudy champion verify`, on a stand-in engine that serves the smoke pair: reload, alarm, roll back."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from aiohttp import web
from numpy.typing import NDArray

from pipeline.acceptance.schema import Bounds, Figure
from pipeline.canary.verified import VERIFICATION
from pipeline.config.loading import load_config
from pipeline.export.schema import CounterFigures, ServedFigures, read_expected, write_expected
from pipeline.registry.registry import registry_for
from pipeline.store.artifacts import Store
from tests.exports import make_export
from tests.integration.conftest import SMOKE, Place, Smoke
from tests.integration.mlflow_fixtures import promote
from tests.integration.test_canary_command import NAME, engine, laws
from tests.standin_server import Law, Speculation, StandIn, running

__all__ = ["laws"]

ALIAS = "understudy.key.gate"


@dataclass
class Busy(StandIn):
    """Between two looks at its counters it serves 5,000 rounds of production, with `accepted` tokens each."""

    accepted: int = 3

    async def say_metrics(self, request: web.Request) -> web.StreamResponse:
        self.rounds += [self.accepted] * 5000
        return await super().say_metrics(request)


def config_for(place: Place, url: str, watch: dict[str, Any] | None = None, program: Path | None = None) -> Path:
    config = yaml.safe_load(SMOKE.read_text())
    config["watch"] = {"endpoints": [url], "engine": "vllm", "canary": {"prompts": 4}} | (watch or {})
    if program is not None:
        config["promote"] = {"notice": {"program": str(program)}}
    path = place.root / "verify.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def reloader(place: Place) -> tuple[Path, Path]:
    """A program that is told, and the file that it leaves its notices in."""
    told, program = place.root / "told.jsonl", place.root / "reload"
    program.write_text(f"#!/bin/sh\ncat >> '{told}'\necho >> '{told}'\n")
    program.chmod(0o755)
    return program, told


def first_once(path: Path, before: Law, after: Law) -> Law:
    """`before` until `path` is there."""

    def law(prefix: Sequence[int]) -> NDArray[np.float64]:
        return (after if path.exists() else before)(prefix)

    return law


def predict(place: Place, length: float) -> str:
    """An expected.json: `length` is the mean acceptance length, and its bound is close."""
    directory = place.root / "expected"
    champion = registry_for(load_config(SMOKE), Store(place.store)).champion()
    assert champion is not None
    make_export(directory, champion.digest)
    accepted = length - 1
    figures = CounterFigures(
        drafts=500.0,
        accepted=500.0 * accepted,
        accepted_per_position=[0.9, 0.5, 0.4, 0.2, 0.1],
        mean_acceptance_length=Figure(length, length, length, 50),
        fresh_prompts={100: Bounds(length - 0.1, length + 0.1)},
    )
    served = ServedFigures(50, 1000, 0.7, {5: figures})
    write_expected(directory, replace(read_expected(directory), deployed=served))
    return str(directory)


def second_version(place: Place, files: Path) -> None:
    """Version 2 of the smoke run's draft, promoted: these files, which differ from the artifact's in their digest at least."""
    copied = place.root / "again"
    shutil.copytree(files, copied)
    path = copied / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"note": "again"}))
    registry = registry_for(load_config(SMOKE), Store(place.store))
    first = registry.champion()
    assert first is not None
    promote(registry, copied, first, tags={ALIAS: "g"}, run_id=first.run)


def test_what_was_examined_is_verified(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """Production's first drafts are as predicted; it ends as soon as there are enough."""
    server = engine(smoke, laws("target"), laws("champion"), made_as=Busy)
    with running(server):
        config = config_for(loop, server.url, {"expected": predict(loop, 4.0)})
        ended = loop.understudy("champion", "verify", config, "--wait", "20")
    assert 0 == ended.code, ended.err
    assert "production: 5000 drafts of production: mean acceptance length 4.000" in ended.out
    assert "reference-draft version 1: verified" in ended.out


def test_without_production_it_is_the_canary_that_verifies(
    smoke: Smoke, loop: Place, laws: Callable[[str], Law]
) -> None:
    """When the time is over."""
    with running(engine(smoke, laws("target"), laws("champion"))) as server:
        config = config_for(loop, server.url, {"expected": predict(loop, 4.0)})
        ended = loop.understudy("champion", "verify", config, "--wait", "0", "--json")
    found = json.loads(ended.out)
    assert (0, "verified", "too_few") == (ended.code, found["action"], found["production"]["state"]), ended.err
    kept = VERIFICATION.find(Store(loop.store), NAME)
    assert kept is not None
    assert (found["time"], "verified") == (kept.time, kept.action)


def test_other_weights_are_reloaded(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """The receiver of notices is told once more, marked so, and then the engine serves the champion."""
    program, told = reloader(loop)
    draft = first_once(told, laws("base"), laws("champion"))
    with running(engine(smoke, laws("target"), draft)) as server:
        ended = loop.understudy("champion", "verify", config_for(loop, server.url, program=program), "--wait", "0.1")
    assert 0 == ended.code, ended.err
    assert "promote.notice asked the engines to reload again" in ended.out
    (notice,) = [json.loads(line) for line in told.read_text().splitlines()]
    assert ("1", "promote", True) == (notice["champion"]["version"], notice["action"], bool(notice["repeated"]))


def test_other_weights_after_a_reload_are_an_alarm(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """The draft is not banned for it; the line names the version that the engine serves: the one before."""
    second_version(loop, smoke.place.artifact("pair") / "draft")
    program, told = reloader(loop)
    watch = {"rollback": True, "expected": predict(loop, 4.0)}
    server = engine(smoke, laws("target"), laws("champion"), made_as=Busy, accepted=0)
    with running(server):
        config = config_for(loop, server.url, watch, program)
        ended = loop.understudy("champion", "verify", config, "--wait", "0.1")
    assert 3 == ended.code, ended.err
    assert (
        "not verified: an engine does not serve the champion as it was exported, after promote.notice asked it"
        in ended.complaint
    )
    assert ended.complaint.endswith("; its counts are those of version 1")
    assert (1, "2") == (len(told.read_text().splitlines()), loop.champion())
    assert "rolled_back" not in json.dumps(loop.registry()[NAME]["versions"]["2"])


def test_nobody_to_tell_is_an_alarm_at_once(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """promote.notice names who reloads."""
    with running(engine(smoke, laws("target"), laws("base"))) as server:
        ended = loop.understudy("champion", "verify", config_for(loop, server.url), "--wait", "60")
    assert (3, True) == (ended.code, "without promote.notice nothing reloads it" in ended.complaint)


def test_another_draft_length_than_exported_is_an_alarm(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """The weights are the champion's; the line says what the engine drafts, what its export has, and what to start it with."""
    speculation = Speculation(laws("champion"), gamma=3)
    with running(engine(smoke, laws("target"), None, speculation=speculation)) as server:
        config = config_for(loop, server.url, {"expected": predict(loop, 4.0)})
        ended = loop.understudy("champion", "verify", config, "--wait", "0")
    said = "drafts 3 tokens at a time, and its export has 5; at that length its counts are those of the examined draft"
    assert (3, True) == (ended.code, said in " ".join(ended.out.split())), ended.err


@pytest.mark.parametrize(("rollback", "champion"), [(True, "1"), (False, "2")])
def test_a_draft_that_falls_short(
    smoke: Smoke, loop: Place, laws: Callable[[str], Law], rollback: bool, champion: str
) -> None:
    """The engine serves what was examined, and production accepts less: rolled back where the config says so, and the engines are
    told."""
    second_version(loop, smoke.place.artifact("distill") / "draft")
    program, told = reloader(loop)
    server = engine(smoke, laws("target"), laws("champion"), made_as=Busy, accepted=0)
    with running(server):
        config = config_for(loop, server.url, {"rollback": rollback, "expected": predict(loop, 4.0)}, program)
        ended = loop.understudy("champion", "verify", config, "--wait", "20")
    assert (3, champion) == (ended.code, loop.champion()), ended.err
    assert ended.complaint.startswith("rolled back: " if rollback else "not verified: ")
    assert "falls short of its examination" in ended.complaint
    if rollback:
        (notice,) = [json.loads(line) for line in told.read_text().splitlines()]
        assert ("rollback", "verify: ", "") == (notice["action"], notice["why"][:8], notice["repeated"])


def test_the_only_version_is_not_rolled_back(smoke: Smoke, loop: Place, laws: Callable[[str], Law]) -> None:
    """Servers that restart would find no draft."""
    server = engine(smoke, laws("target"), laws("champion"), made_as=Busy, accepted=0)
    with running(server):
        config = config_for(loop, server.url, {"rollback": True, "expected": predict(loop, 4.0)})
        ended = loop.understudy("champion", "verify", config, "--wait", "20")
    assert (3, "1") == (ended.code, loop.champion())
    assert "it was not rolled back" in ended.complaint


def test_an_engine_that_does_not_come_back(loop: Place) -> None:
    """It could not be told: exit 1. Without engines in the config there is nothing to tell."""
    ended = loop.understudy("champion", "verify", config_for(loop, "http://127.0.0.1:1"), "--wait", "0.1")
    assert (1, "not verified: an engine does not answer") == (ended.code, ended.complaint)
    none = loop.understudy("champion", "verify", SMOKE)
    assert 0 == none.code
    assert none.out.startswith(
        "nothing to verify: watch.endpoints names no engine; to verify a reload, name every replica"
    )
    silent = loop.understudy("champion", "verify", SMOKE, "--json")
    assert "nothing" == json.loads(silent.out)["action"]
