"""The table of engine facts: complete, and the source of configs and of docs/engines.md."""

from pathlib import Path
from typing import get_args

import pytest

from pipeline.config.promote import ExportConfig
from pipeline.config.quantize import QuantizeConfig, QuantizedVariant, Variant
from pipeline.engines.facts import FACTS, Engine, ExportEngine, loads
from tests import engines_page

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="runs in a checkout")
def test_the_page_of_engines_is_current() -> None:
    """docs/engines.md is what `make docs` would write."""
    assert engines_page.page() == (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FACTS)
def test_an_engine_states_its_version_and_takes_a_draft_or_says_what_it_takes(name: str) -> None:
    """Two lines for an engine without an export; else how to serve a draft, in which variants, and how it drafts."""
    facts = FACTS[name]
    assert facts.checked
    assert set(facts.loads) <= set(get_args(Variant))
    assert set(facts.drafting) <= {"greedy", "probabilistic"}
    if name in get_args(ExportEngine):
        assert "" == facts.instead
        assert facts.serving
        assert "unquantized" in facts.loads
        assert facts.drafting
    else:
        assert 2 == len(facts.instead.splitlines())


@pytest.mark.parametrize("name", get_args(Engine))
def test_variants_of_a_config_are_those_that_the_engine_loads(name: Engine) -> None:
    """`quantize.engine` and export read one table."""
    every: tuple[QuantizedVariant, ...] = get_args(QuantizedVariant)
    config = QuantizeConfig(engine=name, variants=every)
    assert tuple(variant for variant in every if variant in FACTS[name].loads) == config.loadable
    assert (name == "transformers") == config.quantized_head


def test_what_an_engine_does_not_load() -> None:
    """TensorRT-LLM and llama.cpp load no bitsandbytes checkpoint."""
    assert [True, False, False] == [loads(name, "int4") for name in ("vllm", "tensorrt-llm", "llama.cpp")]


def test_every_engine_of_an_export_has_a_config() -> None:
    """`promote.export.engine` takes the engines that export writes for."""
    assert list(get_args(ExportEngine)) == [
        ExportConfig(engine=name, out="served").engine for name in get_args(ExportEngine)
    ]
