"""Multi-turn chats: the target's answer becomes part of the next prompt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.corpus.prompt_store import Chat, Prompt
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_buffer import token_hash
from pipeline.corpus.rows import BadRow, ParsedPrompt
from pipeline.corpus.same_text import text_id
from pipeline.generation.completion_plan import CompletionRequest, sort_requests
from pipeline.generation.completion_store import StoredCompletion


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
) -> list[CompletionRequest]:
    """The requests of the next turn: each chat with the target's answer and the next user message appended.

    `completions` are the answers to `requests`, in the same order. A chat that was sampled with several settings continues
    separately with each of its answers. The chat template renders the whole history again, as a server does; a template may
    drop reasoning content of earlier answers. Chats without a further user message are left out. Chats that cannot continue
    are left out and counted in `stop_reasons`. `most_tokens`: the longest prompt, in tokens.
    """
    found = []
    for item, completion in zip(requests, completions, strict=True):
        if item.prompt.chat is None:
            continue
        if not completion.stopped:
            stop_reasons.cut += 1
            continue
        chat = item.prompt.chat.with_answer(_text(completion, tokenizer, stop_tokens))
        try:
            (tokens,) = renderer.token_ids(
                [
                    renderer.text(
                        ParsedPrompt(chat.messages, False, "", None, tools=chat.tools, arguments=chat.arguments)
                    )
                ]
            )
            renderer.check_ids(tokens)
        except BadRow:
            stop_reasons.refused += 1
            continue
        if len(tokens) > most_tokens:
            stop_reasons.too_long += 1
            continue
        found.append(CompletionRequest(_prompt(item.prompt, tokens, chat), item.sampling, item.number))
    kinds = list(dict.fromkeys(item.sampling for item in requests))
    return sort_requests(found, kinds)


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
