"""The engines' interpreters, the subject, and the rows that become `tests/benchmarks/results/conformance.json`.

`make conformance` sets the environment variables read here. Rows are written when a whole session has passed.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.export.gguf import convert
from tests.benchmarks.figures import write
from tests.conformance.engines import Engine
from tests.conformance.exported import CONVERTER
from tests.conformance.subject import Subject, read_subject

_ROWS = pytest.StashKey[list[dict[str, Any]]]()


def _named_by(variable: str, what: str) -> Path:
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: it names {what}; `make conformance` sets it")
    return Path(os.environ[variable])


@pytest.fixture(scope="session")
def subject() -> Subject:
    """The pair, the candidate and the prompts of the latest run in CONFORMANCE_STORE."""
    return read_subject(Path(os.environ.get("CONFORMANCE_STORE", ".understudy")))


@pytest.fixture(scope="session")
def vllm() -> Engine:
    """vLLM in its own environment."""
    return Engine("engine_vllm.py", _named_by("VLLM_PYTHON", "the engine's Python"))


@pytest.fixture(scope="session")
def openvino() -> Engine:
    """openvino-genai in its own environment."""
    return Engine("engine_openvino.py", _named_by("OPENVINO_PYTHON", "the engine's Python"))


@pytest.fixture(scope="session")
def llama_cpp() -> Path:
    """The directory that `make llama-server` builds in."""
    return _named_by("LLAMA_CPP", "the directory of `make llama-server`")


@pytest.fixture(scope="session")
def gguf_target(llama_cpp: Path, subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair's target as GGUF in fp32."""
    out = tmp_path_factory.mktemp("target") / "target.gguf"
    convert(CONVERTER, subject.target, out)
    return out


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """The rows that tests append."""
    return pytestconfig.stash.setdefault(_ROWS, [])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write results only if the whole session passed."""
    config, found = session.config, session.config.stash.get(_ROWS, [])
    whole = [Path(__file__).parent] == [Path(argument).resolve() for argument in config.args]
    if found and exitstatus == 0 and whole and not (config.option.keyword or config.option.markexpr):
        write("conformance", "make conformance", {"rows": found})
