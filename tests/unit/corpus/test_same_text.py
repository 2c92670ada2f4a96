"""Which prompts have the same text for a person."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.rows import ParsedPrompt
from pipeline.corpus.same_text import normalised, text_id

ASKED = "What is the capital of France?"


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "typed",
    [
        "what is the capital of france?",
        "WHAT IS THE CAPITAL OF FRANCE?",
        "  What is\tthe capital\n\nof  France ? ",
        "What is the capital of France",
        "What is the capital of France???",
        "“What is the capital of France?”",
        "Ｗｈａｔ　ｉｓ　ｔｈｅ　ｃａｐｉｔａｌ　ｏｆ　Ｆｒａｎｃｅ？",  # full-width letters and spaces
        "What\u00a0is the cap\u00adital of France\u200b?\ufeff",  # no-break space, soft hyphen, zero-width space, byte order mark
    ],
)
def test_what_is_typed_in_another_way_is_the_same_text(typed: str) -> None:
    """Case, whitespace, compatibility forms, invisible characters and punctuation around the whole."""
    assert normalised(ASKED) == normalised(typed)
    assert text_id([_user(ASKED)]) == text_id([_user(typed)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("e-mail: how, and why?", "email how and why"),
        ("don’t `stop` it", "don't stop it"),
        ("naïve — (a) test", "na\u0131\u0308ve a test".replace("\u0131", "i")),
        ("❤️ this", "❤ this"),
    ],
)
def test_punctuation_inside_shares_a_split_only(one: str, other: str) -> None:
    """Texts that differ in it have one id; near-duplicates are compared with it."""
    assert text_id([_user(one)]) == text_id([_user(other)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("is a < b", "is a > b"),
        ("3 + 4", "3 = 4"),
        ("add 12 and 3", "add 12 and 4"),
        ("की", "का"),  # vowel signs are marks, and part of the word
        ("?!", "..."),
        ("", "?"),
    ],
)
def test_other_words_are_another_text(one: str, other: str) -> None:
    """Letters, marks, digits and symbols count; of a text without any, the text itself."""
    assert text_id([_user(one)]) != text_id([_user(other)])


def test_punctuation_within_a_text_makes_no_duplicate() -> None:
    """A near-duplicate is dropped, so a product is not a quotient there, nor a question an exclamation that is nothing else."""
    assert normalised("3 * 4") != normalised("3 / 4")
    assert normalised("?") != normalised("!")


def test_messages_of_users_and_tools_are_compared_one_by_one() -> None:
    """System messages and answers do not count, roles and the limits of messages do."""
    chat = [
        {"role": "system", "content": "Be brief."},
        _user("Hello!"),
        {"role": "assistant", "content": "Hi."},
        _user("Go on"),
    ]
    other = [_user("hello"), {"role": "assistant", "content": "What is it?"}, _user("go  on.")]

    assert text_id(chat) == text_id(other)
    assert text_id(chat) != text_id([_user("hello go on")])
    assert text_id([_user("sunny")]) != text_id([{"role": "tool", "content": "sunny"}])


def test_turns_of_a_chat_are_one_conversation() -> None:
    """Rows that continue one chat share its opening, whatever was answered; a greeting is no answer, and another question is
    another conversation, also under one system message."""
    system, greeting = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "What is it?"}
    answer, result = {"role": "assistant", "content": "It is"}, {"role": "tool", "content": "sunny"}
    first, greeted = (system, _user("Hello!")), (system, greeting, _user("hello"))
    later = [(*first, answer, _user("Go on")), (*first, answer, result, answer, _user("Stop")), greeted]
    other = [
        (system, _user("Goodbye")),
        (system, greeting, _user("Goodbye")),
        (_user("Go on"),),
        (*first, _user("Go on")),
    ]
    conversations = [ParsedPrompt(messages, False, "d", None).conversation for messages in (first, *later, *other)]

    assert {text_id(first)} == set(conversations[:4])
    assert text_id(first) not in conversations[4:]
    assert conversations[4] == conversations[5]
    assert conversations[6] == text_id([_user("Go on")])


def test_where_nobody_says_anything_the_messages_count() -> None:
    """Calls of tools without a text are not all the same prompt, also as near-duplicates."""
    calls = [[{"role": "assistant", "tool_calls": [{"id": name}]}] for name in "ab"]

    assert 2 == len({text_id(messages) for messages in calls})
    assert 2 == len({ParsedPrompt(tuple(messages), False, "d", None).comparison_text for messages in calls})


@given(st.text(max_size=40))
def test_the_normal_form_is_one(text: str) -> None:
    """It is its own normal form, and that of the upper-case, decomposed and spaced-out text, as far as case folding goes."""
    form = normalised(text)

    assert form == normalised(form)
    assert form == normalised(unicodedata.normalize("NFD", text)) == normalised(f"\t{text} ")
    assert form == normalised(text.casefold())
