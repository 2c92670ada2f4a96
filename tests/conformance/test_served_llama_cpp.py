"""A target in GGUF served by llama-server against the same target loaded in this process: the same tokens, log p and figures.

Chance of a false alarm with fresh samples: as `test_served_target.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.speculation.settings import GREEDY, Sampling
from tests.conformance.served_llama_cpp import FP32, llama_server
from tests.conformance.served_runs import (
    completions_of,
    config_of,
    greedy_near_ties,
    require_same_examinations,
    require_samples,
    run,
)
from tests.conformance.servers import LocalServer
from tests.conformance.subject import Subject


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served-llama-cpp")


@pytest.fixture(scope="module")
def server(llama_cpp: Path, gguf_target: Path, place: Path) -> Iterator[LocalServer]:
    """The target behind llama-server, which does not speculate, with a context of 256 tokens for each of four slots."""
    command = [llama_cpp / "build" / "bin" / "llama-server", "--model", gguf_target, "--ctx-size", "1024", *FP32]
    with llama_server(command, place / "log") as running:
        yield running


@pytest.fixture(scope="module")
def both(subject: Subject, server: LocalServer, place: Path) -> None:
    """One run by the server and one in the process, up to the examination."""
    for name, url in (("by-server", server.url), ("in-process", None)):
        config = config_of(subject, url, api="llama.cpp")
        config["pair"]["generation_config"] = "ignore"  # llama-server samples with defaults of its own
        ended = run(place, name, config, "--until", "evaluate")
        assert 0 == ended.returncode, ended.stderr
        print(ended.stderr)


def test_greedy_completions_are_the_same(subject: Subject, both: None, place: Path) -> None:
    """Token ids at temperature 0 are identical up to near-ties, which are listed."""
    here, there = (completions_of(place, name, GREEDY) for name in ("in-process", "by-server"))
    print(f"{len(here)} greedy completions, near-ties: {greedy_near_ties(subject, here, there)}")


def test_log_p_is_that_of_the_process(subject: Subject, both: None, place: Path) -> None:
    """log p of sampled completions is within 1e-3 of the target's own pass, and the completions are samples of the target."""
    require_samples(subject, completions_of(place, "by-server", Sampling()), 1e-3)


def test_examinations_agree(both: None, place: Path) -> None:
    """Both runs have the same figures, and their cross-checks agree."""
    require_same_examinations(place)


@pytest.mark.parametrize(
    ("sampling", "generation_config", "expected"),
    [
        ({"temperature": 0.7}, "ignore", "use temperature 0 or 1 without cut-offs, or top_k up to 128"),
        ({"temperature": 1.0}, "check", "a request without sampling settings is not sampled with temperature 1"),
    ],
)
def test_what_the_server_cannot_give_is_refused(
    subject: Subject,
    server: LocalServer,
    tmp_path: Path,
    sampling: dict[str, float],
    generation_config: str,
    expected: str,
) -> None:
    """Settings whose log p it cannot give, and those that are not its own, are refused at the pair stage, in one line."""
    config = config_of(subject, server.url, api="llama.cpp", sampling=sampling)
    config["pair"]["generation_config"] = generation_config
    ended = run(tmp_path, "refused", config)
    assert 2 == ended.returncode, ended.stderr
    assert expected in ended.stderr.splitlines()[-1]
