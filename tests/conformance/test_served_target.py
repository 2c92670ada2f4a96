"""A target served by a real vLLM against the same target loaded in this process: the same tokens, log p, figures and decision.

Chance of a false alarm with fresh samples: the figures at temperature 1 are compared at 4 standard errors, so below 1 in 10,000.
"""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.generation.completion_store import read_completions
from pipeline.speculation.settings import GREEDY, Sampling
from tests.conformance.engines import Engine
from tests.conformance.served_runs import (
    PROMPTS,
    artifact,
    completions_of,
    config_of,
    greedy_near_ties,
    require_same_examinations,
    require_samples,
    run,
)
from tests.conformance.servers import Server
from tests.conformance.subject import Subject

FLAGS = ("--max-logprobs", "128", "--logprobs-mode", "processed_logprobs")


@pytest.fixture(scope="module")
def server(vllm: Engine, subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The target behind vLLM, which does not speculate, with the flags that docs/servers.md names."""
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    with Server(vllm.interpreter, subject.target, FLAGS, log) as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def both(subject: Subject, server: Server, place: Path) -> None:
    """One run by the server and one in the process, up to the examination."""
    for name, url in (("by-server", server.url), ("in-process", None)):
        ended = run(place, name, config_of(subject, url), "--until", "evaluate")
        assert 0 == ended.returncode, ended.stderr


def test_greedy_completions_are_the_same(subject: Subject, both: None, place: Path) -> None:
    """Token ids at temperature 0 are identical up to near-ties, which are listed."""
    here, there = (completions_of(place, name, GREEDY) for name in ("in-process", "by-server"))
    print(f"{len(here)} greedy completions, near-ties: {greedy_near_ties(subject, here, there)}")


def test_log_p_is_that_of_the_process(subject: Subject, both: None, place: Path) -> None:
    """log p of sampled completions is within 1e-4 of the target's own pass, and the completions are samples of the target."""
    require_samples(subject, completions_of(place, "by-server", Sampling()), 1e-4)


def test_examinations_agree(both: None, place: Path) -> None:
    """Both runs have the same figures, and their cross-checks agree."""
    require_same_examinations(place)


@pytest.mark.parametrize(
    ("flags", "sampling", "expected"),
    [
        ((), {"temperature": 1.0}, "start the server with --max-logprobs 128"),
        (("--max-logprobs", "128"), {"temperature": 0.7}, "start it with --logprobs-mode processed_logprobs"),
    ],
    ids=["max-logprobs", "logprobs-mode"],
)
def test_missing_flags_are_named(
    vllm: Engine, subject: Subject, tmp_path: Path, flags: tuple[str, ...], sampling: dict[str, float], expected: str
) -> None:
    """A server without the flags that a config needs is refused at the pair stage, in one line that names the flag."""
    with Server(vllm.interpreter, subject.target, flags, tmp_path / "vllm.log") as server:
        config = config_of(subject, server.url, sampling=sampling)
        config["pair"]["generation_config"] = "ignore"
        ended = run(tmp_path, "refused", config)
    assert 2 == ended.returncode, ended.stderr
    assert expected in ended.stderr.splitlines()[-1]


def test_whole_loop_with_two_endpoints_one_of_them_killed(
    vllm: Engine, subject: Subject, server: Server, place: Path, tmp_path: Path
) -> None:
    """One of two endpoints is killed while completions are generated and started again; the run goes on with the other one and
    ends with a champion, and every prompt has its completions once."""
    second = Server(vllm.interpreter, subject.target, FLAGS, tmp_path / "second.log")
    config = config_of(subject, server.url, name="two")
    config["generate"]["server"]["endpoints"] = [server.url, second.url]
    config["corpus"]["sources"][0]["limit"] = 2 * PROMPTS
    work = place / "two" / "work"
    seen = list[str]()

    def kill_and_restart() -> None:
        while not list(work.glob("generate-*/*.journal")):
            time.sleep(0.1)
        time.sleep(10)
        seen.append("killed")
        second.stop(signal.SIGKILL)
        second.start()
        seen.append("started again")

    thread = threading.Thread(target=kill_and_restart)
    with second:
        thread.start()
        ended = run(place, "two", config)
        thread.join()
    print(ended.stderr)
    assert ["killed", "started again"] == seen
    assert 0 == ended.returncode, ended.stderr
    assert "promoted, quickstart-draft version 1" in ended.stdout
    assert f"{second.url}: " in ended.stderr  # that it was lost was said
    items = list(read_completions(artifact(place, "two", "generate")))
    asked = [(item.id, item.sampling) for item in items]
    assert len(asked) == len(set(asked))
