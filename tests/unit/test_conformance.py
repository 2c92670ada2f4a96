"""What runs with engines alone, and so in no fast test: its modules import, its configs are configs. mypy reads its calls."""

import importlib
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.config.root import Config
from tests.conformance import served_runs, test_heads_vllm
from tests.conformance.subject import Subject

_MODULES = {path.stem for path in Path(test_heads_vllm.__file__).parent.glob("*.py")}
_OF_LLAMA_CPP = {"convert_reference"}  # imports the module that it runs in


@pytest.mark.parametrize("module", sorted(_MODULES - _OF_LLAMA_CPP))
def test_every_module_imports(module: str) -> None:
    """Without an engine; one that needs a library which is not here says so."""
    importlib.import_module(f"tests.conformance.{module}")


def test_configs_are_configs(tmp_path: Path) -> None:
    """Of a server's runs, in the process and by each API, and of heads from nothing and from files."""
    subject = cast(Subject, type("Pair", (), {"target": tmp_path / "target", "tokenizer": tmp_path})())
    configs: list[dict[str, Any]] = [
        served_runs.config_of(subject, None),
        *(served_runs.config_of(subject, "http://127.0.0.1:1", api) for api in ("vllm", "llama.cpp")),
        test_heads_vllm.config_of(tmp_path / "target", {"source": str(tmp_path / "head")}, optimizer="muon"),
        test_heads_vllm.config_of(tmp_path / "target", {"source": "target", "head": {"kind": "medusa"}}),
    ]
    assert all(Config.model_validate(one).name for one in configs)
