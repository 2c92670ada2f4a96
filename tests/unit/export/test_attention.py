"""What export does where the attention layers of target and draft are of several kinds."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from pipeline.drafts.kinds import PLAIN
from pipeline.engines.facts import FACTS, ExportEngine
from pipeline.errors import UsageError
from pipeline.export import for_vllm
from pipeline.export.attention import attention_options
from pipeline.export.lengths import DraftLengths
from pipeline.export.plan import ExportPlan

FLAG = "--disable-hybrid-kv-cache-manager"
_SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 64, "hidden_size": 128}
FULL = {"model_type": "llama", "num_hidden_layers": 2}
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 1024, "max_position_embeddings": 8192}
SLIDING = {"model_type": "olmo3", "num_hidden_layers": 2, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}
MISTRAL = {"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 4096}
STATES = {"model_type": "qwen3_next", "num_hidden_layers": 4}


def _draft(place: Path, target: dict[str, Any] | None, draft: dict[str, Any], dtype: str = "bfloat16") -> Any:
    for name, config in (("target", target), ("draft", draft)):
        (place / name).mkdir()
        if config is not None:
            (place / name / "config.json").write_text(json.dumps(_SIZES | config))
    served = SimpleNamespace(is_hub=False, is_served=False, source="t", revision=None)
    return SimpleNamespace(
        kind=PLAIN,
        directory=place / "draft",
        config=SimpleNamespace(
            pair=SimpleNamespace(target=served, trust_remote_code=False), gate=SimpleNamespace(load=None)
        ),
        pair=SimpleNamespace(path=lambda role: place / role, dtype=lambda role: dtype),
    )


@pytest.mark.parametrize(("target", "draft"), [(GEMMA, FULL), (FULL, GEMMA), (GEMMA, GEMMA), (FULL, SLIDING)])
def test_vllm_gets_one_cache_and_the_note_says_why(tmp_path: Path, target: Any, draft: Any) -> None:
    """Windows and full attention in either model: the start command has the option, with the version that it was seen on."""
    found = _draft(tmp_path, target, draft)
    options = attention_options(found, FACTS["vllm"])
    assert (FLAG,) == options.words
    (note,) = options.notes
    for said in ("the text is wrong", FLAG, "CPU build 0.32.0, runner V1", "of KV cache in place of"):
        assert said in note
    plan = ExportPlan(
        draft=cast(Any, found),
        engine="vllm",
        out=tmp_path / "out",
        tensor_parallel=1,
        lengths=DraftLengths(3),
        drafting="greedy",
        notes=(),
        options=options.words,
    )
    assert [FLAG] == [word for word in for_vllm.arguments(plan) if "hybrid" in word]


@pytest.mark.parametrize(("target", "draft"), [(FULL, FULL), (MISTRAL, MISTRAL), (None, GEMMA)])
@pytest.mark.parametrize("engine", get_args(ExportEngine))
def test_layers_of_one_kind_need_nothing(tmp_path: Path, engine: str, target: Any, draft: Any) -> None:
    """Nor does a target whose layers are not known, which engines that compare widths refuse."""
    options = attention_options(_draft(tmp_path, target, draft), FACTS[engine])
    assert ((), ()) == (options.words, options.notes)


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 256), ("float32", 512)])
def test_what_the_option_costs(tmp_path: Path, dtype: str, size: int) -> None:
    """Ten of the 12 layers of Gemma 3 keep 8,192 tokens in place of 1,024; its other two and the draft's two keep all anyway.
    `size`: bytes of a token's keys and values in a layer."""
    (note,) = attention_options(_draft(tmp_path, GEMMA, FULL, dtype), FACTS["vllm"]).notes
    every, kept = (f"{size * tokens / 1e6:.1f} MB" for tokens in (14 * 8192, 4 * 8192 + 10 * 1024))
    assert f"a request of 8,192 tokens takes {every} of KV cache in place of {kept} ({dtype})" in note


def test_a_pair_that_vllm_serves_wrong_is_refused(tmp_path: Path) -> None:
    """With windows of two sizes and no full attention there is no option that helps."""
    with pytest.raises(
        UsageError, match=r"window of 8 tokens; draft: 2 with a window of 4.* take a draft with full attention"
    ):
        attention_options(_draft(tmp_path, SLIDING, SLIDING | {"sliding_window": 4}), FACTS["vllm"])


@pytest.mark.parametrize(
    ("engine", "target", "said"),
    [
        ("vllm", MISTRAL, "computes the draft with the target's window"),
        (
            "vllm",
            STATES,
            "no pair with such attention layers (target: 1 of full attention, 3 with a recurrent state; draft:",
        ),
        ("sglang", GEMMA, "was run with SGLang: compare its answers at temperature 0"),
        ("llama.cpp", GEMMA, "was run with llama.cpp"),
        ("tensorrt-llm", GEMMA, "was run with TensorRT-LLM"),
    ],
)
def test_what_no_option_changes_is_said(tmp_path: Path, engine: str, target: Any, said: str) -> None:
    """Such as pairs that nobody ran with the engine."""
    options = attention_options(_draft(tmp_path, target, FULL), FACTS[engine])
    assert () == options.words
    assert said in options.notes[0]


def test_a_window_that_vllm_does_not_give_the_draft(tmp_path: Path) -> None:
    """One number for all layers is read of the target's config only."""
    options = attention_options(_draft(tmp_path, FULL, MISTRAL), FACTS["vllm"])
    assert () == options.words
    assert "computes the draft without its window" in options.notes[0]


def test_transformers_has_a_cache_for_each_model(tmp_path: Path) -> None:
    """So layers of several kinds change nothing."""
    assert () == attention_options(_draft(tmp_path, GEMMA, FULL), FACTS["transformers"]).notes
