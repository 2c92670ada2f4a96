"""Prompts in a file that has no name."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from pipeline.corpus.as_served import JoinedText
from pipeline.corpus.prompt_store import Chat, Prompt, spooled
from pipeline.corpus.row_facts import NO_FACTS, RowFacts


def _prompt(number: int, chat: Chat | None = None) -> Prompt:
    name = f"{number:016x}"
    return Prompt(
        name,
        "examination" if number % 2 else "train",
        "chat",
        number,
        (3, 4 + number),
        chat,
        text_id=name,
        conversation=name,
        mode="thinking=true",
    )


def test_prompts_come_back_and_no_file_is_left(tmp_path: Path) -> None:
    """Every field, over several batches; later messages of a chat, contents of several parts, and what its row states."""
    first = {"role": "user", "content": "é 🙂"}
    facts = RowFacts(({"name": "f"},), {"a": 1}, 7.5, ("critic",), 9)
    assert all(getattr(facts, one.name) != getattr(NO_FACTS, one.name) for one in fields(RowFacts))
    parts = {"role": "user", "content": JoinedText(("a", "b"))}
    chat = Chat((first, {"role": "assistant", "content": None}), ((first,), (first, parts)), facts)
    prompts = [_prompt(number, chat if number == 1 else None) for number in range(600)]
    found = spooled(iter(prompts), tmp_path)

    assert [] == list(tmp_path.iterdir())
    assert prompts == list(found)
    assert found.has_chats
    assert found[1].chat is not None
    assert ("a", "b") == found[1].chat.follow_ups[1][1]["content"].parts


def test_none_are_a_sequence(tmp_path: Path) -> None:
    assert 0 == len(spooled([], tmp_path))


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    """Of what makes the prompts."""

    def broken() -> Iterator[Prompt]:
        yield from map(_prompt, range(300))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spooled(broken(), tmp_path)
    assert [] == list(tmp_path.iterdir())
