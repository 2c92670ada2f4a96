"""Templates of eleven model families, written after the published ones: the segments of three dialogues each."""

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.segments import SegmentsConfig
from pipeline.engines.chat_markers import FAMILIES, family_of
from pipeline.models.segmenter import Segmenter
from tests.unit.segments.texts import QWEN3, bpe_tokenizer, template_of

# Tokens of their own in the published tokenizers, by family.
_ADDED = {
    "qwen3": [*QWEN3],
    "hermes": ["<|im_start|>", "<|im_end|>"],  # its tool calls are plain text
    "smollm3": [*QWEN3, "<code>", "</code>"],
    "deepseek": [
        *("<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>", "<think>", "</think>", "<｜tool▁calls▁begin｜>"),
        *("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
    ],
    "gpt_oss": ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"],
    "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"],
    "mistral": ["[INST]", "[/INST]", "[TOOL_CALLS]", "[THINK]", "[/THINK]", "[AVAILABLE_TOOLS]", "</s>"],
    "glm": [
        "<|user|>",
        "<|assistant|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
    ],
    "command_r": [
        *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_THINKING|>"),
        *("<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ],
    "gemma4": ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"],
}
_USER = {"role": "user", "content": "What is the weather in Oslo?"}
_WEATHER = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
_PYTHON = {"function": {"name": "python", "arguments": {"code": "print(2 + 3)"}}}
_TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
# Dialogues: the last message is the target's; what is thought, called and answered in it.
_ANSWER = [_USER, {"role": "assistant", "content": "It rains there."}]
_THOUGHT = [_USER, {"role": "assistant", "reasoning_content": "Look it up.", "content": "It rains there."}]
_CALLED = [_USER, {"role": "assistant", "reasoning_content": "Look it up.", "tool_calls": [_WEATHER]}]
_CALLED_ONLY = [_USER, {"role": "assistant", "tool_calls": [_WEATHER]}]
_TWO_CALLS = [_USER, {"role": "assistant", "content": "I ask twice.", "tool_calls": [_WEATHER, _WEATHER]}]
_RAN = [_USER, {"role": "assistant", "tool_calls": [_PYTHON]}]

_JSON_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
_GLM_CALL = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
_DEEPSEEK_CALL = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
)
_COMMAND_CALL = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}\n]'
    "<|END_ACTION|>"
)
_ASKED = ("answer", "I ask twice.\n")

_CASES: list[tuple[str, list[Any], list[tuple[str, str]]]] = [
    ("qwen3", _ANSWER, [("answer", "It rains there.<|im_end|>")]),
    (
        "qwen3",
        _THOUGHT,
        [("thinking", "<think>\nLook it up.\n</think>"), ("answer", "\n\nIt rains there.<|im_end|>")],
    ),
    (
        "qwen3",
        _CALLED,
        [("thinking", "<think>\nLook it up.\n</think>\n\n"), ("tool_call", f"{_JSON_CALL}<|im_end|>")],
    ),
    ("qwen3", _TWO_CALLS, [_ASKED, ("tool_call", f"{_JSON_CALL}\n{_JSON_CALL}<|im_end|>")]),
    ("hermes", _ANSWER, [("answer", "It rains there.<|im_end|>")]),
    ("hermes", _CALLED_ONLY, [("tool_call", f"{_JSON_CALL}<|im_end|>")]),
    ("hermes", _TWO_CALLS, [_ASKED, ("tool_call", f"{_JSON_CALL}\n{_JSON_CALL}<|im_end|>")]),
    (
        "smollm3",
        _THOUGHT,
        [("thinking", "<think>\nLook it up.\n</think>"), ("answer", "\nIt rains there.<|im_end|>")],
    ),
    (
        "smollm3",
        _CALLED,
        [
            ("thinking", "<think>\nLook it up.\n</think>\n"),
            ("tool_call", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call><|im_end|>'),
        ],
    ),
    ("smollm3", _RAN, [("tool_call", "<code>\nprint(2 + 3)\n</code><|im_end|>")]),
    (
        "deepseek",
        _THOUGHT,
        [("thinking", "Look it up.\n</think>"), ("answer", "\n\nIt rains there.<｜end▁of▁sentence｜>")],
    ),
    ("deepseek", _CALLED, [("thinking", "Look it up.\n</think>\n\n"), ("tool_call", _DEEPSEEK_CALL)]),
    ("deepseek", _ANSWER, [("thinking", "\n</think>"), ("answer", "\n\nIt rains there.<｜end▁of▁sentence｜>")]),
    ("gpt_oss", _ANSWER, [("answer", "<|channel|>final<|message|>It rains there.<|return|>")]),
    (
        "gpt_oss",
        _THOUGHT,
        [
            ("thinking", "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant"),
            ("answer", "<|channel|>final<|message|>It rains there.<|return|>"),
        ],
    ),
    (
        "gpt_oss",
        _CALLED,
        [
            ("thinking", "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant"),
            (
                "tool_call",
                '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
            ),
        ],
    ),
    ("llama3", _ANSWER, [("answer", "It rains there.<|eot_id|>")]),
    ("llama3", _CALLED_ONLY, [("tool_call", '{"name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>')]),
    ("llama3", _RAN, [("tool_call", "<|python_tag|>print(2 + 3)<|eom_id|>")]),
    ("mistral", _ANSWER, [("answer", "It rains there.</s>")]),
    ("mistral", _THOUGHT, [("thinking", "[THINK]Look it up.[/THINK]"), ("answer", "It rains there.</s>")]),
    (
        "mistral",
        _CALLED_ONLY,
        [("tool_call", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]</s>')],
    ),
    ("glm", _THOUGHT, [("thinking", "\n<think>Look it up.</think>"), ("answer", "\nIt rains there.")]),
    ("glm", _CALLED, [("thinking", "\n<think>Look it up.</think>\n"), ("tool_call", _GLM_CALL)]),
    (
        "glm",
        _TWO_CALLS,
        [
            ("thinking", "\n<think></think>"),
            ("answer", "\nI ask twice.\n"),
            ("tool_call", f"{_GLM_CALL}\n{_GLM_CALL}"),
        ],
    ),
    ("command_r", _ANSWER, [("answer", "<|START_RESPONSE|>It rains there.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>")]),
    (
        "command_r",
        _THOUGHT,
        [
            ("thinking", "<|START_THINKING|>Look it up.<|END_THINKING|>"),
            ("answer", "<|START_RESPONSE|>It rains there.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
        ],
    ),
    (
        "command_r",
        _CALLED,
        [
            ("thinking", "<|START_THINKING|>Look it up.<|END_THINKING|>"),
            ("tool_call", f"{_COMMAND_CALL}<|END_OF_TURN_TOKEN|>"),
        ],
    ),
    ("gemma4", _ANSWER, [("answer", "It rains there.<turn|>\n")]),
    (
        "gemma4",
        _THOUGHT,
        [("thinking", "<|channel>thought\nLook it up.<channel|>"), ("answer", "It rains there.<turn|>\n")],
    ),
    (
        "gemma4",
        _CALLED,
        [
            ("thinking", "<|channel>thought\nLook it up.<channel|>"),
            ("tool_call", '<|tool_call>call:weather{"city": "Oslo"}<tool_call|><turn|>\n'),
        ],
    ),
]


@pytest.mark.parametrize(("name", "dialogue", "expected"), _CASES)
def test_segments_of_a_family(name: str, dialogue: list[Any], expected: list[tuple[str, str]]) -> None:
    tokenizer = bpe_tokenizer(_ADDED[name], template_of(name))
    with_tools = {"tools": _TOOLS} if any("tool_calls" in message for message in dialogue) else {}
    prompt = tokenizer.apply_chat_template(dialogue[:-1], tokenize=False, add_generation_prompt=True, **with_tools)
    whole = tokenizer.apply_chat_template(dialogue, tokenize=False, **with_tools)
    assert whole.startswith(prompt)
    completion = whole.removeprefix(prompt).rstrip("\n") if name != "gemma4" else whole.removeprefix(prompt)

    segmenter = Segmenter(tokenizer, SegmentsConfig())
    ids = tokenizer(completion, add_special_tokens=False)["input_ids"]
    labels = segmenter.labels(tokenizer(prompt, add_special_tokens=False)["input_ids"], ids, stopped=True)

    found = [
        (segmenter.names[label], tokenizer.decode([token for _, token in run]))
        for label, run in groupby(zip(labels.tolist(), ids, strict=True), key=lambda one: one[0])
    ]
    assert segmenter.family is not None
    assert segmenter.family.name == name
    assert found == expected


def test_every_family_has_three_dialogues() -> None:
    counts = {family.name: sum(name == family.name for name, _, _ in _CASES) for family in FAMILIES}
    assert min(counts.values()) >= 3


def test_a_family_without_markers_is_not_guessed() -> None:
    assert family_of([template_of("gemma3")]) is None


def test_thinking_that_is_turned_off_in_the_prompt_is_over() -> None:
    tokenizer = bpe_tokenizer(_ADDED["qwen3"], template_of("qwen3"))
    prompt = tokenizer.apply_chat_template([_USER], tokenize=False, add_generation_prompt=True, enable_thinking=False)
    ids = tokenizer("It rains.<|im_end|>", add_special_tokens=False)["input_ids"]
    labels = Segmenter(tokenizer, SegmentsConfig()).labels(tokenizer(prompt)["input_ids"], ids, stopped=True)
    assert not labels.any()


def test_the_docs_have_every_family() -> None:
    text = (Path(__file__).parents[3] / "docs/examination.md").read_text()
    for family in FAMILIES:
        assert f"| {family.title} | {family.read} |" in text
        for one in family.marked:
            assert f"`{one.begin.strip()}`".replace("|", "\\|") in text
