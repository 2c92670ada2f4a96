"""Modes of a chat template: arguments of a source and of a row, and the domains that they name."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.config.corpus import CorpusConfig, PromptSource
from pipeline.corpus.answers import LoggedAnswer
from pipeline.corpus.modes import mode_of
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.errors import UsageError
from tests.unit.segments.texts import bpe_tokenizer

_TEMPLATE = (Path(__file__).parents[1] / "segments/templates/qwen3.jinja").read_text()
_ASKED = {"messages": [{"role": "user", "content": "Why?"}]}
_OFF = {"enable_thinking": False}


def _source(**fields: Any) -> PromptSource:
    return PromptSource(path="log.jsonl", **fields)


def test_a_mode_is_named_by_what_is_true_false_or_a_word() -> None:
    """A date, a number or a text is no mode: each of them would be a domain."""
    arguments = {"enable_thinking": False, "reasoning_effort": "high", "date": "2026-11-25", "budget": 3, "x": None}
    assert "enable_thinking=false, reasoning_effort=high" == mode_of(arguments)
    assert mode_of(arguments) == mode_of(dict(reversed(arguments.items())))
    assert "" == mode_of({})
    assert 'enable_thinking="false"' == mode_of({"enable_thinking": "false"})  # true for a template


def test_a_row_goes_before_its_source() -> None:
    """And both are in the domain; null and the empty object state nothing."""
    source = _source(chat_template_arguments=_OFF, domain="chat")
    found = [
        parse_row({**_ASKED, "chat_template_kwargs": stated}, source)
        for stated in (
            None,
            {},
            {"enable_thinking": None},
            {"enable_thinking": True},
            json.dumps({"enable_thinking": True}),
        )
    ]
    off, on = "chat (enable_thinking=false)", "chat (enable_thinking=true)"
    assert [off, off, off, on, on] == [prompt.domain for prompt in found]
    ignoring = _source(arguments_field=None)
    assert "default" == parse_row({**_ASKED, "chat_template_kwargs": _OFF}, ignoring).domain


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ("{", "is text, but not JSON"),
        ([1], "is not an object"),
        (3, "is not an object"),
        ({"tokenize": True}, "sets tokenize, which Understudy sets"),
        ({"a": {1}}, "holds a value that JSON does not support"),
    ],
)
def test_arguments_of_a_row_that_cannot_be(stated: Any, why: str) -> None:
    with pytest.raises(BadRow, match=f"bad template arguments: 'chat_template_kwargs' {why}"):
        parse_row({**_ASKED, "chat_template_kwargs": stated}, _source())


def test_arguments_of_a_source_that_cannot_be() -> None:
    with pytest.raises(ValidationError, match="add_generation_prompt: Understudy sets this argument"):
        _source(chat_template_arguments={"add_generation_prompt": True})
    with pytest.raises(ValidationError, match="enable_thinking: the text 'False' is true for a template; write false"):
        _source(chat_template_arguments={"enable_thinking": "False"})
    with pytest.raises(ValidationError, match="tokenize: Understudy sets this argument"):
        CorpusConfig(sources=(_source(),), chat_template_arguments={"tokenize": True})


def test_arguments_reach_the_template_and_the_answer() -> None:
    """Over those of the corpus."""
    renderer = Renderer(bpe_tokenizer((), _TEMPLATE), None, {"enable_thinking": True})
    (off, _), (on, _) = (
        renderer.text(parse_row(_ASKED, _source(chat_template_arguments=arguments))) for arguments in (_OFF, {})
    )
    assert "<think>" in off
    assert "<think>" not in on


def test_an_answer_is_written_in_the_mode_of_its_prompt() -> None:
    template = "{% if short %}Be short. {% endif %}{% for message in messages %}{{ message.content }}\n{% endfor %}"
    tokenizer = bpe_tokenizer((), template)
    renderer = Renderer(tokenizer, None, {"short": False})
    prompt = parse_row({**_ASKED, "chat_template_kwargs": {"short": True}}, _source())
    (ids,) = renderer.token_ids([renderer.text(prompt)])
    found = renderer.answer_ids(prompt, ids, LoggedAnswer("Yes", cut=False))
    assert tokenizer.decode(found.tokens) == "Yes\n"


@pytest.mark.parametrize("name", ["enable_think", "nable_thinking", "effort"])
def test_an_argument_that_the_template_does_not_read_stops_the_run(name: str) -> None:
    """Also one whose name is a part of another's."""
    with pytest.raises(UsageError, match=rf"corpus\.chat_template_arguments\.{name}: .* does not read this argument"):
        Renderer(bpe_tokenizer((), _TEMPLATE), None, {name: True})


def test_one_question_in_two_modes_is_asked_twice_in_one_split() -> None:
    """Other places, so none is a duplicate; one text, so one split."""
    on, off = (
        parse_row(_ASKED, _source(chat_template_arguments={"enable_thinking": value})) for value in (True, False)
    )
    assert on.place != off.place
    assert on.text_id == off.text_id
    assert on.conversation == off.conversation


def test_another_template_may_be_an_argument() -> None:
    """transformers takes it in place of the tokenizer's; arguments of a source may be those that it reads."""
    other = {"chat_template": "{{ messages[0].content }} {{ mood }}", "mood": "brief"}
    renderer = Renderer(bpe_tokenizer((), _TEMPLATE), None, other)
    assert "Why? brief" == renderer.text(parse_row(_ASKED, _source()))[0]
    renderer.check_arguments({"mood": "long"}, "corpus.sources.0.chat_template_arguments")
    with pytest.raises(UsageError, match=r"arguments\.moods: the target's chat template does not read"):
        renderer.check_arguments({"moods": "long"}, "corpus.sources.0.chat_template_arguments")
