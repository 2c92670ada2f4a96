"""The exported files against the source of TensorRT-LLM.

The package index has no source of it (the source package there downloads a wheel of some gigabytes), so its directory is named by
hand: TENSORRT_LLM_SOURCE=.../tensorrt_llm of a checkout.
"""

import ast
import shlex
from pathlib import Path
from typing import Any

import pytest

from pipeline.export import for_tensorrt
from pipeline.export.lengths import DraftLengths
from tests.conformance.sources import Declared, fields_of, source, strings_of
from tests.unit.export.test_export import example_plan

# Which Python types an annotation of a field takes.
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "NonNegativeInt": (int,),
    "PositiveInt": (int,),
    "str": (str,),
    "Path": (str,),
    "dict": (dict,),
}


@pytest.fixture(scope="module")
def tensorrt() -> Path:
    return source("TENSORRT_LLM_SOURCE")


@pytest.mark.parametrize("lengths", [DraftLengths(3), DraftLengths(3, (3, 2, 0))])
def test_every_key_exists_and_takes_our_value(tensorrt: Path, tmp_path: Path, lengths: DraftLengths) -> None:
    """Of the arguments of an LLM, and of its config for a draft model."""
    args = tensorrt / "llmapi" / "llm_args.py"
    written = for_tensorrt.llm_options(example_plan(tmp_path, lengths, engine="tensorrt-llm"))
    speculative = written.pop("speculative_config")
    general = fields_of(args, "BaseLlmArgs", "TorchLlmArgs")
    assert "speculative_config" in general
    for declared, values in (
        (general, written),
        (fields_of(args, "DecodingBaseConfig", "DraftTargetDecodingConfig"), speculative),
    ):
        assert [] == sorted(set(values) - set(declared))
        wrong = {name: declared[name].annotation for name, value in values.items() if not _takes(declared[name], value)}
        assert {} == wrong


def test_the_schedule_follows_its_validator(tensorrt: Path, tmp_path: Path) -> None:
    """It must contain batch size 1, with the longest draft."""
    text = (tensorrt / "llmapi" / "llm_args.py").read_text()
    assert "if 1 not in v:" in text
    assert "v[1] != max_draft_len" in text
    plan = example_plan(tmp_path, DraftLengths(3, (2, 3)), engine="tensorrt-llm")
    found = for_tensorrt.llm_options(plan)["speculative_config"]
    assert found["max_draft_len"] == found["draft_len_schedule"][1] == max(found["draft_len_schedule"].values())


def test_the_start_command_is_one_of_its_own(tensorrt: Path, tmp_path: Path) -> None:
    """Every option is one of trtllm-serve."""
    files = [
        tensorrt / "commands" / name for name in ("serve.py", "common_llm_options.py")
    ]  # releases differ in where they are
    options = {one for path in files if path.is_file() for one in strings_of(path)}
    plan = example_plan(tmp_path, DraftLengths(3), engine="tensorrt-llm", needs_code=True)
    script = for_tensorrt.files(plan, {})["launch.sh"]
    words = shlex.split(script[script.index("exec") :].replace("\\\n", " "))
    written = {word for word in words if word.startswith("--")}
    assert {"--tp_size", "--max_batch_size", "--trust_remote_code"} < written
    assert [] == sorted(written - options)


def _takes(field: Declared, value: Any) -> bool:
    """Whether the annotation names a type of the value, or the value itself (a Literal)."""
    names = {one.id for one in ast.walk(field.node.annotation) if isinstance(one, ast.Name)}
    literals = {one.value for one in ast.walk(field.node.annotation) if isinstance(one, ast.Constant)}
    if {"Literal", "ClassVar"} & names:
        return value in literals or repr(value) == field.default
    return any(type(value) in _TYPES.get(name, ()) for name in names)
