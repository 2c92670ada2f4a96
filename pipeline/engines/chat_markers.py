"""By which markers model families separate thinking and tool calls from the answer: one table. Standard library only.

`read` is the published template or description in which the markers were read. A family that is not here is not guessed: its
tokens are all of the answer, and the run reports it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ANSWER, THINKING, TOOL_CALL, STRUCTURED = "answer", "thinking", "tool_call", "structured"
PROMPT = "prompt"  # in the log of a training: positions of prompts, beside the segments of completions

FamilyName = Literal[
    "gpt_oss", "command_r", "deepseek", "gemma4", "mistral", "llama3", "glm", "smollm3", "qwen3", "hermes"
]


@dataclass(frozen=True)
class Marked:
    """A segment from one of the target's texts to another. `first`: only where a completion begins with it. Without `ends` it
    lasts until the completion ends."""

    segment: str
    begin: str
    ends: tuple[str, ...] = ()
    first: bool = False


@dataclass(frozen=True)
class Family:
    """`known_by`: texts that are all in the chat template of the family, and in no template of the families after it."""

    name: FamilyName
    title: str
    read: str
    known_by: tuple[str, ...]
    marked: tuple[Marked, ...]


_THINK = Marked(THINKING, "<think>", ("</think>",))
_TOOL_CALL = Marked(TOOL_CALL, "<tool_call>", ("</tool_call>",))
_NEXT_MESSAGE = "<|end|><|start|>assistant"  # of gpt-oss, within one completion

FAMILIES = (
    Family(
        "gpt_oss",
        "gpt-oss (harmony)",
        "openai/gpt-oss-20b, harmony response format of 2025-08-05",
        ("<|channel|>", "<|message|>", "<|start|>"),
        (
            Marked(THINKING, "<|channel|>analysis", (_NEXT_MESSAGE, "<|end|>")),
            Marked(TOOL_CALL, "<|channel|>analysis to=", ("<|call|>",)),
            Marked(TOOL_CALL, "<|channel|>commentary to=", ("<|call|>",)),
            Marked(TOOL_CALL, " to=functions.", ("<|call|>",), first=True),
        ),
    ),
    Family(
        "command_r",
        "Command R7B",
        "CohereForAI/c4ai-command-r7b-12-2024, template tool_use",
        ("<|START_THINKING|>", "<|START_ACTION|>"),
        (
            Marked(THINKING, "<|START_THINKING|>", ("<|END_THINKING|>",)),
            Marked(TOOL_CALL, "<|START_ACTION|>", ("<|END_ACTION|>",)),
        ),
    ),
    Family(
        "deepseek",
        "DeepSeek R1 and V3",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        (_THINK, Marked(TOOL_CALL, "<｜tool▁calls▁begin｜>", ("<｜tool▁calls▁end｜>",))),
    ),
    Family(
        "gemma4",
        "Gemma 4",
        "google/gemma-4-31B-it",
        ("<|tool_call>", "<tool_call|>", "<|channel>"),
        (
            Marked(THINKING, "<|channel>thought", ("<channel|>",)),
            Marked(TOOL_CALL, "<|tool_call>", ("<tool_call|>",)),
        ),
    ),
    Family(
        "mistral",
        "Mistral and Magistral",
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        ("[TOOL_CALLS]",),
        (Marked(THINKING, "[THINK]", ("[/THINK]",)), Marked(TOOL_CALL, "[TOOL_CALLS]")),
    ),
    Family(
        "llama3",
        "Llama 3.1 to 3.3",
        "meta-llama/Llama-3.1-8B-Instruct",
        ("<|start_header_id|>", 'Respond in the format {"name": function name'),
        (
            Marked(TOOL_CALL, "<|python_tag|>", ("<|eom_id|>",)),
            Marked(TOOL_CALL, '{"name": "', first=True),
        ),
    ),
    Family("glm", "GLM 4.5 and 4.6", "zai-org/GLM-4.6", ("<tool_call>", "<arg_key>"), (_THINK, _TOOL_CALL)),
    Family(
        "smollm3",
        "SmolLM3",
        "HuggingFaceTB/SmolLM3-3B",
        ("<tool_call>", "/no_think", "<code>"),
        (_THINK, _TOOL_CALL, Marked(TOOL_CALL, "<code>", ("</code>",))),
    ),
    Family("qwen3", "Qwen3", "Qwen/Qwen3-8B", ("<tool_call>", "<think>"), (_THINK, _TOOL_CALL)),
    Family("hermes", "Hermes and Qwen2.5", "NousResearch/Hermes-2-Pro-Llama-3-8B", ("<tool_call>",), (_TOOL_CALL,)),
)
_BY_NAME = {family.name: family for family in FAMILIES}
# What a template that renders thinking or tool calls mentions, whatever its markers.
_HINTS = ("tool_calls", "reasoning_content", "thinking")


def family_named(name: str) -> Family:
    """KeyError for a name that is not in the table."""
    return _BY_NAME[name]  # type: ignore[index]


def family_of(templates: Sequence[str]) -> Family | None:
    """The family of a tokenizer's chat templates; None for one that is not in the table."""
    text = "\n".join(templates)
    return next((family for family in FAMILIES if all(mark in text for mark in family.known_by)), None)


def renders_segments(templates: Sequence[str]) -> bool:
    """Whether the templates seem to render thinking or tool calls."""
    text = "\n".join(templates)
    return any(hint in text for hint in _HINTS)
