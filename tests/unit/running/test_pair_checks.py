"""What is known once the pair is known: settings that cannot work are refused, and null settings are filled in."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.generation_config import sampling_defaults
from pipeline.quantization.block_sizes import impossible_variants
from pipeline.running import pair_checks
from pipeline.running.jobs import jobs_of
from pipeline.running.local_pair import check_local_pair
from pipeline.running.pair_checks import apply_pair
from tests.fakes import quantize_in_name, tiny_llama, tiny_tokenizer
from tests.heads import eagle3_draft, write_eagle3

SMOKE = Path(__file__).parents[3] / "configs" / "smoke.yaml"
NARROW = "gate_proj has 64 inputs and 172 outputs, but int4 needs multiples of 64 and 32"
FACTS: dict[str, Any] = {
    "vocabulary": 512,
    "context": 512,
    "chat_template": True,
    "generation_config": {},
    "impossible_variants": {},
}
QWEN = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "do_sample": True}


def _config(*overrides: str) -> Config:
    return load_config(SMOKE, overrides)


def _model(path: Path, **changes: Any) -> Path:
    """A saved Llama with a hidden size of 64 and its tokenizer."""
    model = tiny_llama(hidden=64, dtype=torch.bfloat16)
    model.config.update(changes)
    type(model)(model.config).to(torch.bfloat16).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("given", "context", "expected"), [("null", 512, 472), ("null", 9_999, 1024), ("100", 512, 100), ("472", 512, 472)]
)
def test_the_prompt_limit_follows_from_the_context(given: str, context: int, expected: int) -> None:
    """Prompt, completion (24) and lookahead (16) fit it; a limit in the config is kept."""
    config, notes = apply_pair(_config(f"corpus.max_prompt_tokens={given}"), FACTS | {"context": context})

    assert expected == config.corpus.max_prompt_tokens == config.corpus.prompt_limit
    assert (given == "null" and context == 512) == bool(notes)


@pytest.mark.parametrize(
    ("override", "facts", "complaint"),
    [
        (
            "corpus.max_prompt_tokens=473",
            {},
            r"corpus\.max_prompt_tokens = 473: the pair's context of 512 .* leaves 472",
        ),
        ("generate.max_new_tokens=500", {}, r"generate\.max_new_tokens = 500: .* leaves no room for a prompt"),
        (
            "corpus.min_prompt_tokens=2000",
            {"context": 4096},
            r"corpus\.min_prompt_tokens = 2000: above the longest prompt",
        ),
        (
            "generate.distribution_tokens=200",
            {"vocabulary": 200},
            r"generate\.distribution_tokens = 200: it must be lower than the pair's 200 tokens",
        ),
        ("corpus.chat_template=true", {"chat_template": False}, r"corpus\.chat_template = true: .* no chat template"),
        (
            "corpus.sources.0.every_turn=true",
            {"chat_template": False},
            r"corpus\.sources\.0\.every_turn = true: chats need",
        ),
        (
            "quantize.variants=[int4]",
            {"impossible_variants": {"int4": NARROW}},
            rf"{NARROW}; remove int4 from quantize",
        ),
        (
            "gate={load: {requests_per_second: 1}, profile: {int4: x.json}}",
            {"impossible_variants": {"int4": NARROW}},
            rf"gate\.profile\.int4: {NARROW}",
        ),
        (
            "promote.export={engine: sglang, out: ./e}",
            {"head": {"kind": "medusa", "longest": 5}},
            "a draft of kind medusa is not exported for SGLang; choose one of vllm",
        ),
        (
            "promote.export={engine: sglang, out: ./e}",
            {"head": {"kind": "eagle3", "longest": None, "traits": ["qk_norm"]}},
            r"SGLang computes no eagle3 head with layers of Qwen3 \(q_norm, k_norm\); choose vllm, or another head: .*, or leave",
        ),
        ("promote.export={engine: tgi, out: ./e}", {}, "a draft of kind plain is not exported for TGI"),
        (
            "evaluate.gamma=5",
            {"head": {"kind": "medusa", "longest": 3}},
            "evaluate.gamma is 5, and the heads propose at most 3 tokens; set",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_named(override: str, facts: dict[str, Any], complaint: str) -> None:
    """Key, value and remedy, before any prompt is read."""
    with pytest.raises(UsageError, match=complaint):
        apply_pair(_config(override), FACTS | facts)


def test_a_named_variant_that_the_engine_does_not_load_is_refused() -> None:
    """A default one is not made, as before."""
    with pytest.raises(UsageError, match=r"quantize\.variants: llama\.cpp does not load int8; remove it"):
        apply_pair(_config("quantize={engine: llama.cpp, variants: [int8]}"), FACTS)
    config, _ = apply_pair(_config("quantize.engine=llama.cpp"), FACTS)
    assert () == config.quantize.loadable


def test_lora_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the target generates anything."""
    monkeypatch.setattr(pair_checks, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"distill\.lora needs peft"):
        apply_pair(_config("distill.lora={rank: 2}"), FACTS)


def test_a_default_variant_that_cannot_be_made_is_left_out() -> None:
    """With a note; no job asks for it."""
    config, notes = apply_pair(_config(), FACTS | {"impossible_variants": {"int4": NARROW, "fp8": "x"}})

    assert ["quantize/int8"] == [job.id for job in jobs_of(config) if job.stage == "quantize"]
    assert f"quantize: int4 is left out: {NARROW}" in notes
    assert not any("fp8" in note for note in notes)


@pytest.mark.parametrize(
    ("sampling", "saved", "complaint"),
    [
        (
            {},
            {"temperature": 0.6, "top_p": 0.9},
            "temperature 0.6 (sampling.temperature is 1), top_p 0.9 (sampling.top_p is 1)",
        ),
        ({"temperature": 0.6}, {"temperature": 0.6, "top_p": 0.9}, "json: top_p 0.9 (sampling.top_p is 1);"),
        ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}, None),
        (
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
            QWEN,
            "json: repetition_penalty 1.05 (which `sampling` cannot express)",
        ),
        ({"temperature": 0}, {"top_k": 20, "top_p": 0.9}, None),
        ({"temperature": 0}, {"temperature": 0.6, "top_p": 0.9}, "json: temperature 0.6 (sampling.temperature is 0);"),
        (
            {"temperature": 0.7},
            {"temperature": 1.0, "top_p": 1, "top_k": 0, "repetition_penalty": 1.0, "min_p": None},
            None,
        ),
        ({}, {"max_new_tokens": 23}, "max_new_tokens 23 (generate.max_new_tokens is 24)"),
        ({}, {"max_new_tokens": 2048, "eos_token_id": [1], "transformers_version": "4.57"}, None),
    ],
    ids=str,
)
def test_servers_sample_as_the_config_says(
    tmp_path: Path, sampling: dict[str, Any], saved: dict[str, Any], complaint: str | None
) -> None:
    """Defaults of `generation_config.json` that `sampling` contradicts or cannot express, unless the file is not used."""
    (tmp_path / "generation_config.json").write_text(json.dumps(saved))
    facts = FACTS | {"generation_config": sampling_defaults(tmp_path)}
    overrides = [f"sampling.{key}={value}" for key, value in sampling.items()]
    apply_pair(_config("pair.generation_config=ignore", *overrides), facts)
    if complaint is None:
        apply_pair(_config(*overrides), facts)
        return
    with pytest.raises(UsageError) as caught:
        apply_pair(_config(*overrides), facts)
    assert complaint in str(caught.value)
    assert "vLLM: --generation-config vllm; SGLang: --sampling-defaults openai" in str(caught.value)
    assert "set pair.generation_config to ignore" in str(caught.value)


def test_a_generation_config_that_is_no_object_is_named(tmp_path: Path) -> None:
    """One line with the path."""
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(UnderstudyError, match=r"generation_config\.json: not a complete .* \(should be an object\)"):
        sampling_defaults(tmp_path)
    assert {} == sampling_defaults(tmp_path / "nowhere")


def test_sizes_of_layers_are_known_without_weights(tmp_path: Path) -> None:
    """An MLP of 172 allows int8 only; without its weights the model says so too."""
    path = _model(tmp_path / "draft", intermediate_size=172)
    (path / "model.safetensors").unlink()
    found = impossible_variants(path)

    assert {"int4", "fp8"} == set(found)
    assert f"model.layers.0.mlp.{NARROW}" == found["int4"]
    assert {"fp8"} == set(impossible_variants(_model(tmp_path / "whole")))


def test_gpt2_layers_are_measured_too(tmp_path: Path) -> None:
    """Their weights are stored as inputs x outputs."""
    from transformers import GPT2Config

    GPT2Config(n_embd=48, n_head=2, n_layer=1, vocab_size=32).save_pretrained(tmp_path)
    assert "c_attn has 48 inputs and 144 outputs" in impossible_variants(tmp_path)["int4"]


def test_a_local_pair_is_checked_before_a_run(tmp_path: Path) -> None:
    """By `--dry-run` and `plan`: what the pair leaves out, and settings that cannot work; other pairs are left as they are."""
    target, draft = (
        _model(tmp_path / "target", intermediate_size=192),
        _model(tmp_path / "draft", intermediate_size=172),
    )
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    pair = (f"pair={{target: {{source: {target}}}, draft: {{source: {draft}}}}}", "generate.distribution_tokens=8")
    prompts = f"corpus.sources=[{{path: {tmp_path}/prompts.jsonl}}]"
    config, notes = check_local_pair(_config(*pair, prompts))

    assert (("int8",), 256 - 24 - 16) == (config.quantize.variants, config.corpus.max_prompt_tokens)
    assert any(NARROW in note for note in notes)
    with pytest.raises(UsageError, match=r"172 outputs.* remove int4 from quantize\.variants"):
        check_local_pair(_config(*pair, prompts, "quantize.variants=[int4]"))
    rules = "generate.segments.rules=[{name: code, begin: w5, end: «}]"
    with pytest.raises(UsageError, match=r"generate\.segments\.rules\.0\.end: '«' is never found"):
        check_local_pair(_config(*pair, prompts, rules))
    assert (_config(), []) == check_local_pair(_config())


def test_a_local_model_with_fewer_columns_than_tokens_is_found_before_a_run(tmp_path: Path) -> None:
    """As the pair stage finds it."""
    target, draft = _model(tmp_path / "target", vocab_size=320), _model(tmp_path / "draft", vocab_size=20)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    pair = (f"pair={{target: {{source: {target}}}, draft: {{source: {draft}}}}}", "generate.distribution_tokens=8")

    with pytest.raises(UsageError, match=r"pair\.draft: its logits have 20 columns and the tokenizer"):
        check_local_pair(_config(*pair, f"corpus.sources=[{{path: {tmp_path}/prompts.jsonl}}]"))


def test_a_local_head_is_held_against_its_target_before_a_run(tmp_path: Path) -> None:
    """Of another target, in its place, and larger than it."""
    target = _model(tmp_path / "target")
    model = tiny_llama(dtype=torch.float32)
    head = write_eagle3(
        tmp_path / "head", eagle3_draft(model, read=(0, 1, 2)), eagle_aux_hidden_state_layer_ids=[0, 1, 7]
    )
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')

    def check(target: Path | str, draft: Path | str) -> None:
        pair = f"pair={{target: {{source: {target}}}, draft: {{source: {draft}}}}}"
        prompts = f"corpus.sources=[{{path: {tmp_path}/prompts.jsonl}}]"
        check_local_pair(_config(pair, "generate.distribution_tokens=8", prompts))

    with pytest.raises(
        UsageError, match=r"pair\.draft: .*head: the head reads hidden states \[0, 1, 7\] of a target of 2"
    ):
        check(target, head)
    with pytest.raises(UsageError, match=r"pair\.target: this is a draft \(kind eagle3\), not a target"):
        check(head, target)
    served = (
        f"pair={{target: {{source: server, tokenizer: {target}, revision: r}}, draft: {{source: {head}}}}}",
        "generate={engine: server, server: {endpoints: ['http://127.0.0.1:1']}, max_new_tokens: 24}",
        f"corpus.sources=[{{path: {tmp_path}/prompts.jsonl}}]",
    )
    with pytest.raises(
        UsageError, match=r"pair\.draft: a head reads hidden states of its target, which servers do not"
    ):
        check_local_pair(_config(*served))
    with pytest.raises(UsageError, match="swap the two if they are in the wrong places"):
        check(target, _model(tmp_path / "larger", intermediate_size=172))


def test_a_local_draft_with_another_tokenizer_is_checked_before_a_run(tmp_path: Path) -> None:
    """As the pair stage does: refused with the key that makes it a draft, and with what its tokens are if they are not there."""
    target, draft = _model(tmp_path / "target"), _model(tmp_path / "draft")
    (draft / "tokenizer.json").write_text((draft / "tokenizer.json").read_text().replace('"w9"', '"x9"'))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "w5 w9 w7 w8"}\n')
    pair = (f"pair={{target: {{source: {target}}}, draft: {{source: {draft}}}}}", "generate.distribution_tokens=8")
    prompts, to_target = f"corpus.sources=[{{path: {tmp_path}/prompts.jsonl}}]", "pair.draft.vocabulary=target"

    with pytest.raises(
        UsageError, match=r"set pair\.draft\.vocabulary to target: 31 of 32 tokens are shared, 75.0% of your"
    ):
        check_local_pair(_config(*pair, prompts))
    with pytest.raises(
        UsageError, match=r"pair\.draft\.tokens\.<x>: the target has no such token; correct or remove it"
    ):
        check_local_pair(_config(*pair, prompts, to_target, "pair.draft.tokens={<x>: w5}"))
    given, warned = _config(*pair, prompts, to_target, "pair.draft.tokens={w30: w5 w6}"), list[str]()
    config, notes = check_local_pair(given)
    assert {"w30": "w5 w6"} == config.pair.draft.tokens
    said = "pair.draft.vocabulary = target: 31 of 32 tokens are shared, 75.0% of your prompts' text; it must be trained"
    assert any(note.startswith(said) for note in notes)
    assert any("cannot write 25.0% of your prompts' text" in note for note in notes)
    assert any("target: with rows for the 32 columns of the target's logits the draft has " in note for note in notes)
    assert notes[: len(notes) - 3] == check_local_pair(given, warned.append)[1]
    assert notes[-3:] == warned
    quantize_in_name(draft)
    with pytest.raises(UsageError, match="is quantized, so it cannot be trained"):
        check_local_pair(given)


LOAD = "gate.load={requests_per_second: 1, max_batch: 4, context: 64}"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), ""),
        ((LOAD,), "and it decides nothing; measure step times with `understudy profile`"),
        ((LOAD, "gate.max_memory_megabytes=9"), "and only gate.max_memory_megabytes uses it; measure"),
        ((LOAD, "gate.profile=p.json"), ""),
    ],
)
def test_a_load_that_predicts_nothing_is_said(overrides: tuple[str, ...], said: str) -> None:
    """Before anything is paid: who states a load expects the draft to be judged at it."""
    _, notes = apply_pair(_config("corpus.max_prompt_tokens=100", *overrides), FACTS)
    assert [bool(said)] == [any(said in note for note in notes)] if said else notes == []


def test_there_is_room_for_the_shortest_prompt() -> None:
    """A context that leaves exactly `min_prompt_tokens`."""
    least = _config().corpus.min_prompt_tokens
    config, _ = apply_pair(_config(), FACTS | {"context": 40 + least})
    assert least == config.corpus.max_prompt_tokens
