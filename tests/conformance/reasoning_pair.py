"""A small pair that thinks and calls a tool, for servers with parsers: made here from a few sentences, in half a minute.

The target is asked for the weather, thinks, and calls a tool; with the tool's answer, or asked for something else, it replies.
"""

import json
import random
from pathlib import Path
from typing import Any

from tests.benchmarks.segments_pair import chat_tokenizer, save_models, small_model, train

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "day": {"type": "string"}}},
        },
    }
]
_CITIES = ("Oslo", "Lima", "Kyoto", "Zürich", "Cairo", "Quito", "Delhi", "Turin", "Perth", "Accra")
_DAYS = ("today", "tomorrow", "on Monday", "on Friday", "at the weekend")
_SKIES = ("sunny", "cloudy", "rainy", "windy", "cold", "hot")
_ASKED = (
    "What is the weather in {city} {day}?",
    "Will it be {sky} in {city} {day}?",
    "I travel to {city} {day}. Is it {sky}?",
)
_SAID = ("Thank you, {city} it is.", "I like {city}, it is so {sky}.", "Tell me about {city}.", "Where is {city}?")
_REPLIES = (
    "{city} is {sky} and well worth a visit.",
    "Many people like {city} when it is {sky}.",
    "Have a good time in {city}!",
)
_STEPS, _DIALOGUES = {"target": 320, "draft": 60}, 2000


def dialogue(number: int) -> tuple[list[dict[str, Any]], str]:
    """Messages, and what the target answers to them. Each number has its own; a third of them call the tool, and a third have
    its result."""
    rng = random.Random(number)
    words = {"city": rng.choice(_CITIES), "day": rng.choice(_DAYS), "sky": rng.choice(_SKIES)}
    thinking = f"The user is going to {words['city']}. It may be {words['sky']}."
    if number % 3 == 0:
        said = {"role": "user", "content": rng.choice(_SAID).format(**words)}
        return [said], _written(thinking, rng.choice(_REPLIES).format(**words))
    asked = {"role": "user", "content": rng.choice(_ASKED).format(**words)}
    call = {"name": "weather", "arguments": {"city": words["city"], "day": words["day"]}}
    if number % 3 == 1:
        return [asked], _written(thinking, f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>")
    calling: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": thinking}
    calling["tool_calls"] = [{"id": "c1", "type": "function", "function": call}]
    result = {
        "role": "tool",
        "tool_call_id": "c1",
        "content": json.dumps({"sky": words["sky"], "degrees": rng.randrange(40)}),
    }
    reply = f"It is {words['sky']} in {words['city']} {words['day']}."
    return [asked, calling, result], _written("The tool has answered.", reply)


def _written(thinking: str, rest: str) -> str:
    return f"<think>\n{thinking}\n</think>\n\n{rest}<|im_end|>"


def make(place: Path) -> None:
    """Write `target/` and `draft/` to `place`."""
    import torch

    torch.manual_seed(0)
    dialogues = [dialogue(number) for number in range(_DIALOGUES)]
    tokenizer = chat_tokenizer([json.dumps(TOOLS), *(f"{messages} {answer}" for messages, answer in dialogues)])
    texts = [
        tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False, add_generation_prompt=True) + answer
        for messages, answer in dialogues
    ]
    ids = torch.tensor([one for text in texts for one in tokenizer(text, add_special_tokens=False)["input_ids"]])
    for name, width, layers in (("target", 128, 3), ("draft", 64, 1)):
        model = small_model(tokenizer, width, layers)
        train(model, ids, _STEPS[name], 4e-3, 1)
        save_models(place, tokenizer, **{name: model})


def served_form(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a client sends them: arguments of tool calls are text."""
    sent: list[dict[str, Any]] = json.loads(json.dumps(messages))
    for message in sent:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return sent
