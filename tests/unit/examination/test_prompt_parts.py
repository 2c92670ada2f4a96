"""What of a prompt the chat template wrote, and by which words people recognise it."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.examination.prompt_parts import PromptPart, last_characters, prompt_parts, prompt_title


class Words:
    """A tokenizer whose tokens are whole pieces of text; those in angle brackets are special, `<|added|>` as an added token."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        special = [number for number, piece in enumerate(pieces) if piece.startswith("<")]
        self.all_special_ids = [number for number in special if pieces[number] != "<|added|>"]
        self.added_tokens_decoder = {
            number: SimpleNamespace(special=piece == "<|added|>") for number, piece in enumerate(pieces)
        }

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(self.pieces[token] for token in tokens)


CHATML = (
    "<|im_start|>",
    "system\nBe brief.",
    "<|im_end|>",
    "\n",
    "<|im_start|>",
    "user\nWhy is",
    " the sky blue?",
    "<|im_end|>",
)
LLAMA = ("<|start_header_id|>", "user", "<|end_header_id|>", "\n\nWhy is the sky blue?", "<|eot_id|>", "<|added|>")
OURS = ("<|user|>", "user\n is a word", "<|end|>", "<|assistant|>")
PLAIN = ("Why is the sky", " blue?")


def parts_of(*pieces: str) -> list[PromptPart]:
    return prompt_parts(Words(*pieces), range(len(pieces)))


@pytest.mark.parametrize(
    ("pieces", "title"),
    [
        (CHATML, "Why is the sky blue?"),
        (LLAMA, "Why is the sky blue?"),
        (OURS, "user is a word"),
        (PLAIN, "Why is the sky blue?"),
    ],
)
def test_title_is_what_the_user_wrote(pieces: tuple[str, ...], title: str) -> None:
    """Not the system prompt, which all prompts share, nor the name of a role."""
    assert title == prompt_title(parts_of(*pieces))


def test_template_is_told_from_text() -> None:
    """Special tokens, added ones too, and the names of roles behind the token that opens a turn."""
    found = parts_of(*CHATML, "<|added|>")
    assert "".join(CHATML) + "<|added|>" == "".join(part.text for part in found)
    assert ["Be brief.", "\n", "Why is the sky blue?"] == [part.text for part in found if not part.template]
    assert [" user\n", False] == [parts_of(" user\n", "text")[0].text[:6], parts_of(" user\n", "text")[0].template]
    assert "user\n is a word" in [part.text for part in parts_of(*OURS) if not part.template]


def test_long_titles_end_at_a_word() -> None:
    """A word that is too long by itself is cut."""
    assert "word " * 13 + "word …" == prompt_title([PromptPart("word\n" * 50, False)])
    assert "x" * 70 + " …" == prompt_title([PromptPart("x" * 200, False)])
    assert "" == prompt_title([])


def test_the_end_of_a_long_prompt_is_shown() -> None:
    """With a sign that there was more."""
    parts = [PromptPart("<a>", True), PromptPart("bcdef", False), PromptPart("<g>", True)]
    assert [PromptPart("…ef", False), PromptPart("<g>", True)] == last_characters(parts, 5)
    assert parts == last_characters(parts, 11)
    assert 0 == len(last_characters([], 5))
