"""Multi-turn chats: the target's answer becomes part of the next prompt."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.corpus.prompt_store import Chat, Prompt, spooled
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_buffer import token_hash
from pipeline.corpus.rows import BadRow, ParsedPrompt
from pipeline.corpus.same_text import text_id
from pipeline.generation.completion_plan import CompletionPlan, CompletionRequest, sorted_plan
from pipeline.generation.completion_store import StoredCompletion
from pipeline.speculation.settings import Sampling


@dataclass
class StopReasons:
    """Number of chats that stopped before their last user message, by reason."""

    cut: int = 0  # the answer reached the length limit, so the chat is not continued
    too_long: int = 0  # chat and answer exceed the prompt limit
    refused: int = 0  # the chat template raised an error, or wrote a token that the models do not share


def next_turn(
    requests: Sequence[CompletionRequest],
    completions: Iterable[StoredCompletion],
    tokenizer: Any,
    renderer: Renderer,
    stop_tokens: Sequence[int],
    most_tokens: int,
    stop_reasons: StopReasons,
    directory: Path,
) -> CompletionPlan:
    """The requests of the next turn: each chat with the target's answer and the next user message appended.

    `completions` are the answers to `requests`, in the same order. A chat that was sampled with several settings continues
    separately with each of its answers. The chat template renders the whole history again, as a server does; a template may
    drop reasoning content of earlier answers. Chats without a further user message are left out. Chats that cannot continue
    are left out and counted in `stop_reasons`. `most_tokens`: the longest prompt, in tokens. The prompts lie in a file of
    `directory`.
    """
    kinds: dict[Sampling, int] = {}
    kind_N, number_N = array("h"), array("h")

    def prompts() -> Iterator[Prompt]:
        for item, completion in zip(requests, completions, strict=True):
            kind = kinds.setdefault(item.sampling, len(kinds))
            if item.prompt.chat is not None:
                answer = _text(completion, tokenizer, stop_tokens) if completion.stopped else None
                prompt = _continued(item.prompt, item.prompt.chat, answer, renderer, most_tokens, stop_reasons)
                if prompt is not None:
                    kind_N.append(kind)
                    number_N.append(item.number)
                    yield prompt

    stored = spooled(prompts(), directory)
    return sorted_plan(stored, list(kinds), np.arange(len(stored)), np.array(kind_N), np.array(number_N))


def _continued(
    before: Prompt, chat: Chat, answer: str | None, renderer: Renderer, most_tokens: int, stop_reasons: StopReasons
) -> Prompt | None:
    """The prompt after an answer (None: it was cut); None where the chat stops, which is counted."""
    if answer is None:
        stop_reasons.cut += 1
        return None
    chat = chat.with_answer(answer)
    parsed = ParsedPrompt(chat.messages, False, "", None, facts=chat.facts)
    try:
        (tokens,) = renderer.token_ids([renderer.text(parsed)])
        renderer.check_ids(tokens, chat.facts)
    except BadRow:
        stop_reasons.refused += 1
        return None
    if len(tokens) > most_tokens:
        stop_reasons.too_long += 1
        return None
    return _prompt(before, tokens, chat)


def _prompt(before: Prompt, tokens: Sequence[int], chat: Chat) -> Prompt:
    """The prompt of the next turn. It keeps the split of the chat's first question, so that no draft is examined on a chat it
    was trained on."""
    name = f"{token_hash(tokens):016x}"
    return Prompt(
        name,
        before.split,
        before.domain,
        before.cluster,
        tuple(tokens),
        chat if chat.follow_ups else None,
        text_id=text_id(chat.messages),
        conversation=before.conversation,
        mode=before.mode,
    )


def _text(completion: StoredCompletion, tokenizer: Any, stop_tokens: Sequence[int]) -> str:
    tokens = completion.tokens[: completion.length].tolist()
    while tokens and tokens[-1] in stop_tokens:
        tokens.pop()
    return str(tokenizer.decode(tokens, skip_special_tokens=True))
