"""The exported files against the source of TensorRT-LLM.

The package index has no source of it (the source package there downloads a wheel of some gigabytes), so its directory is named by
hand: TENSORRT_LLM_SOURCE=.../tensorrt_llm of a checkout.
"""

import ast
import shlex
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.drafts.eagle3_model import unstated_layers
from pipeline.drafts.kinds import EAGLE3
from pipeline.export import for_tensorrt
from pipeline.export.lengths import DraftLengths
from pipeline.export.plan import ExportPlan
from tests.conformance.sources import Declared, fields_of, source, strings_of
from tests.heads import eagle3_draft, write_eagle3
from tests.unit.export.test_export import example_plan
from tests.unit.export.test_heads import READ, exported, head_plan, saved_target

# Which Python types an annotation of a field takes.
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "NonNegativeInt": (int,),
    "PositiveInt": (int,),
    "str": (str,),
    "Path": (str,),
    "dict": (dict,),
    "Set": (list,),  # in YAML
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
    _check_keys(general, written)
    _check_keys(fields_of(args, "DecodingBaseConfig", "DraftTargetDecodingConfig"), speculative)


def _check_keys(declared: dict[str, Declared], values: dict[str, Any]) -> None:
    assert [] == sorted(set(values) - set(declared))
    assert {} == {
        name: declared[name].annotation for name, value in values.items() if not _takes(declared[name], value)
    }


def test_every_key_of_a_head_exists(tensorrt: Path, tmp_path: Path) -> None:
    """As above, of its config for EAGLE-3."""
    args = tensorrt / "llmapi" / "llm_args.py"
    written = for_tensorrt.llm_options(_head(tmp_path))
    speculative = written.pop("speculative_config")
    _check_keys(fields_of(args, "BaseLlmArgs", "TorchLlmArgs"), written)
    _check_keys(fields_of(args, "DecodingBaseConfig", "EagleDecodingConfig", "Eagle3DecodingConfig"), speculative)


def test_its_model_has_the_tensors_of_the_head(tensorrt: Path, tmp_path: Path) -> None:
    """A part of its model of that name for each, and the class by the name in the config."""
    tensors, config = exported(_head(tmp_path, kept=12), tmp_path / "written")
    model = tensorrt / "_torch" / "models" / "modeling_speculative.py"
    of_model, of_layer = (_attributes(model, name) for name in ("Eagle3DraftModel", "Eagle3DecoderLayer"))
    for name in tensors:
        first, *rest = name.split(".")
        assert first in of_model or first == "lm_head", name
        assert first != "midlayer" or rest[0] in of_layer, name
    found = "EAGLE3" + config["architectures"][0].replace("Eagle3", "")
    chosen = (tensorrt / "_torch" / "models" / "modeling_auto.py").read_text()
    assert 'hasattr(pretrained_config, "draft_vocab_size")' in chosen
    assert f'@register_auto_model("{found}")' in model.read_text()


def test_the_states_of_a_head_are_counted_by_the_layer_that_they_leave(tensorrt: Path) -> None:
    """Where a head states none, it takes those that we take: 2, the middle one and the last but 3. States before the norm are in
    the residual stream, always."""
    default = (tensorrt / "_torch" / "speculative" / "eagle3.py").read_text().replace(" ", "").replace("\n", "")
    assert "self.layers_to_capture=(1,self.num_layers//2-1,self.num_layers-4)" in default
    assert unstated_layers(12) == (1 + 1, 12 // 2 - 1 + 1, 12 - 4 + 1)
    model = (tensorrt / "_torch" / "models" / "modeling_speculative.py").read_text()
    assert "norm_before_residual" not in model
    assert "self.model.embed_tokens = target_model.model.embed_tokens" in model


def _head(place: Path, **options: Any) -> ExportPlan:
    target = saved_target(place / "target")
    head = write_eagle3(place / "head", eagle3_draft(target, read=READ, **options))
    return head_plan(place, head, EAGLE3, "tensorrt-llm")


def _attributes(path: Path, name: str) -> set[str]:
    """Of `self`, that the methods of a class assign."""
    (found,) = (one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef) and one.name == name)
    return {one.attr for one in ast.walk(found) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}


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
    script = for_tensorrt.files(plan, cast(Any, {}))["launch.sh"]
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
