"""Chats turn by turn: the target's answer becomes part of what it is asked next."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.corpus.prompt_store import Chat, Prompt
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_buffer import token_hash
from pipeline.corpus.rows import BadRow, Request
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.generate import Wanted, in_order


@dataclass
class Ends:
    """Why chats ended before their last question."""

    cut: int = 0  # the answer came to the length limit: in a deployment nobody asks on after half an answer
    too_long: int = 0  # chat and answer would not fit
    refused: int = 0  # by the template


def next_turn(
    wanted: Sequence[Wanted],
    spoken: Iterable[StoredCompletion],
    tokenizer: Any,
    renderer: Renderer,
    stop_tokens: Sequence[int],
    most_tokens: int,
    ends: Ends,
) -> list[Wanted]:
    """What is asked after the answers `spoken`, which are in the order of `wanted`. Every sampling goes on with its own answers.

    The history is rendered anew by the template, as a deployment does: it may leave out what the target thought.
    """
    found = []
    for item, said in zip(wanted, spoken, strict=True):
        if item.prompt.chat is None:
            continue
        if not said.stopped:
            ends.cut += 1
            continue
        chat = item.prompt.chat.answered(_text(said, tokenizer, stop_tokens))
        try:
            (tokens,) = renderer.token_ids([renderer.text(Request(chat.messages, False, "", None))])
        except BadRow:
            ends.refused += 1
            continue
        if len(tokens) > most_tokens:
            ends.too_long += 1
            continue
        found.append(Wanted(_prompt(item.prompt, tokens, chat), item.sampling, item.number))
    kinds = list(dict.fromkeys(item.sampling for item in wanted))
    return in_order(found, kinds)


def _prompt(before: Prompt, tokens: Sequence[int], chat: Chat) -> Prompt:
    """In the split of the chat's first question, so that no draft is judged on a chat it learnt from."""
    name = f"{token_hash(tokens):016x}"
    return Prompt(name, before.split, before.domain, before.cluster, tuple(tokens), chat if chat.follow_ups else None)


def _text(said: StoredCompletion, tokenizer: Any, stop_tokens: Sequence[int]) -> str:
    tokens = said.tokens[: said.length].tolist()
    while tokens and tokens[-1] in stop_tokens:
        tokens.pop()
    return str(tokenizer.decode(tokens, skip_special_tokens=True))
