#!/usr/bin/env python3
"""The inputs of docs/tutorial.md for a reader who has none: `tutorial_inputs.py tutorial`, with Understudy's Python. Two small
models that are trained on the source of this Python's standard library, and the log of a deployment that serves the larger one.

    tutorial/target, tutorial/draft    checkpoints of one tokenizer with a chat template
    tutorial/log/requests.jsonl        the deployment's requests and answers: questions about code
    tutorial/other.jsonl               requests of another kind, for the step in which the traffic changes
"""

import json
import os
import random
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.config.pair import DraftShape, ReferenceRecipe, ReferenceShape, TargetShape
from pipeline.models.saving import save_model
from pipeline.progress import Progress
from pipeline.reference.recipe import ModelTraining, new_model, train_model, train_tokenizer
from pipeline.reference.text import Document, read_text

RECIPE = ReferenceRecipe(
    vocabulary=512,
    context=128,
    target=TargetShape(hidden=128, layers=3, heads=2, intermediate=256, steps=200),
    draft=DraftShape(hidden=64, layers=1, heads=1, intermediate=128, steps=100),
    text_megabytes=3.0,
)
REQUESTS, OTHERS, TOKENS, AT_ONCE = 900, 500, 40, 100
ASKED, LONGEST = 60, 300  # characters of a question, and of it and its answer


def main(place: Path) -> None:
    text = read_text(Path(os.__file__).parent, RECIPE.text_megabytes)
    documents = (*text.modules, *text.tests)
    shown = {held_out: [one for one in documents if one.held_out == held_out] for held_out in (False, True)}
    code = {held_out: [pair for one in found for pair in _code(one)] for held_out, found in shown.items()}
    prose = {held_out: [pair for one in found for pair in _prose(one)] for held_out, found in shown.items()}
    tokenizer = train_tokenizer((one.text for one in shown[False]), RECIPE.vocabulary)
    device, progress = torch.device("cpu"), Progress()

    def trained(name: str, shape: ReferenceShape, chats: list[tuple[str, str]], seed: int) -> Any:
        training = ModelTraining(name, _tokens(tokenizer, chats, seed), shape.steps, shape.learning_rate, seed)
        model = train_model(new_model(shape, RECIPE, tokenizer, seed), training, RECIPE, device, progress)
        save_model(model, place / name)
        tokenizer.save_pretrained(place / name)
        return model

    target = trained("target", RECIPE.target, code[False] + prose[False], 0)
    trained("draft", RECIPE.draft, code[False], 1)
    now = time.time()
    for path, chats, count in (
        (place / "log" / "requests.jsonl", code, REQUESTS),
        (place / "other.jsonl", prose, OTHERS),
    ):
        questions = sorted({question for question, _ in chats[True]})
        asked = random.Random(path.name).sample(
            questions, min(count, len(questions))
        )  # fewer where Python has no tests
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for number, row in enumerate(_answered(target, tokenizer, asked)):
                file.write(json.dumps(row | {"created": now - 86_400 + 80 * number}) + "\n")


def _code(document: Document) -> Iterator[tuple[str, str]]:
    """Question and answer: how a function or class begins, and how it goes on."""
    for piece in re.split(r"\n(?= *(?:def|class) )", document.text):
        if len(piece := textwrap.dedent(piece).strip()) > 1.5 * ASKED:
            yield piece[:ASKED], piece[ASKED:LONGEST]


def _prose(document: Document) -> Iterator[tuple[str, str]]:
    """The same of docstrings, in capitals: a draft that knows code knows nothing of these."""
    for words in re.findall(r'"""(.*?)"""', document.text, re.DOTALL):
        if len(words := re.sub(r"\s+", " ", words).strip().upper()) > 1.5 * ASKED:
            yield words[:ASKED], words[ASKED:LONGEST]


def _tokens(tokenizer: Any, chats: list[tuple[str, str]], seed: int) -> torch.Tensor:
    """All chats as the template writes them, in one row of ids."""
    chats = random.Random(seed).sample(chats, len(chats))
    texts = [f"<|user|>{asked}<|end|><|assistant|>{said}<|endoftext|>" for asked, said in chats]
    return torch.tensor([token for ids in tokenizer(texts)["input_ids"] for token in ids])


@torch.inference_mode()
def _answered(target: Any, tokenizer: Any, asked: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows as a gateway logs them: the request as it was sent, and the server's answer."""
    tokenizer.padding_side = "left"
    for begin in range(0, len(asked), AT_ONCE):
        chats = [[{"role": "user", "content": one}] for one in asked[begin : begin + AT_ONCE]]
        given = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        given = {name: given[name] for name in ("input_ids", "attention_mask")}
        found = target.generate(**given, max_new_tokens=TOKENS, do_sample=False)[:, given["input_ids"].shape[1] :]
        for messages, ids, prompt in zip(chats, found.tolist(), given["input_ids"].tolist(), strict=True):
            end = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
            ended = "stop" if end < len(ids) or ids[-1] == tokenizer.eos_token_id else "length"
            answer = {"role": "assistant", "content": tokenizer.decode(ids[:end], skip_special_tokens=True)}
            yield {
                "request": {"model": "target", "messages": messages, "temperature": 0, "max_tokens": TOKENS},
                "response": {
                    "object": "chat.completion",
                    "model": "target",
                    "choices": [{"index": 0, "message": answer, "finish_reason": ended, "token_ids": ids[:end]}],
                    "prompt_token_ids": [one for one in prompt if one != tokenizer.pad_token_id],
                    "usage": {"completion_tokens": end},
                },
            }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: tutorial_inputs.py DIRECTORY")
    main(Path(sys.argv[1]))
