"""A message that leaves no trace in the prompt is a rejected row, whatever the template; what it drops on purpose is not."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.corpus.template_names import TemplateNames
from tests.unit.segments.texts import bpe_tokenizer

_FAMILIES = sorted(Path(__file__).parents[1].glob("segments/templates/*.jinja"))
_ASKED, _SAID = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Sure."}
_SYSTEM = {"role": "system", "content": "Answer in one word."}
_CALL = {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
_CALLED = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "content": "4", "tool_call_id": "123456789", "name": "f"}
# Writes the first system message, questions and answers, and drops everything else without a word.
LEADING_SYSTEM = (
    "{% if messages[0].role == 'system' %}<s>{{ messages[0].content }}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}<u>{{ m.content }}{% elif m.role == 'assistant' %}<a>{{ m.content }}{% endif %}{% endfor %}"
)
ANY_ROLE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def _rendered(template: str, *messages: dict[str, Any], source: PromptSource | None = None, **row: Any) -> str:
    source = source or PromptSource(path="p")
    renderer = Renderer(bpe_tokenizer(template=template), None, {})
    return renderer.text(parse_row({"messages": list(messages), **row}, source, renderer.names))[0]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([_ASKED, _SAID, _SYSTEM, _ASKED], "system message that the chat template does not write: message 3 of 4"),
        ([_ASKED, _CALLED, _RESULT], "assistant message that the chat template does not write: message 2 of 3"),
        ([_ASKED, _SAID, _RESULT], "tool message that the chat template does not write: message 3 of 3"),
        ([_ASKED, _SAID, {"role": "function", "name": "f", "content": "4"}], "tool message that the chat template"),
        (
            [{"role": "developer", "content": "Be brief."}, _ASKED],
            "unknown role: 'developer' of message 1 is not in the",
        ),
    ],
)
def test_a_message_that_vanishes_is_a_rejected_row(messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        _rendered(LEADING_SYSTEM, *messages)
    assert str(caught.value).startswith(reason)


def test_what_a_template_drops_on_purpose_is_no_rejection() -> None:
    """Empty texts, and the thinking of earlier answers."""
    thought = _SAID | {"reasoning_content": "They ask."}
    assert "<u>Why?<a>Sure.<u>Why?" == _rendered(LEADING_SYSTEM, _ASKED, thought, _ASKED)
    assert "<u>Why?<a><u>Why?" == _rendered(LEADING_SYSTEM, _ASKED, _SAID | {"content": ""}, _ASKED)


def test_a_role_is_an_explicit_choice() -> None:
    """A template that writes any role shows nothing of what the target knows."""
    messages = ({"role": "developer", "content": "Be brief."}, _ASKED)
    with pytest.raises(BadRow, match="unknown role"):
        _rendered(ANY_ROLE, *messages)
    for role in ("system", "developer"):
        source = PromptSource(path="p", roles={"developer": role})
        assert f"<{role}>Be brief.<user>Why?" == _rendered(ANY_ROLE, *messages, source=source)


def test_a_role_that_the_template_names_is_known() -> None:
    assert "<u>Why?" in _rendered(LEADING_SYSTEM + "{# 'critic' #}{{ messages[0].content }}", _ASKED)
    named = "{% for m in messages %}{% if m.role in ['user', 'critic'] %}{{ m.content }}{% endif %}{% endfor %}"
    assert "No.Why?" == _rendered(named, {"role": "critic", "content": "No."}, _ASKED)


# As GLM's and Llama's, and templates of people who train on ShareGPT.
OWN_WORDS = (
    "{% for m in messages %}{% if m.role in ['observation', 'ipython'] %}<{{ m.role }}>{{ m.content }}{% elif m.role == 'bot' %}"
    "<b>{{ m.content }}{% elif m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("name", ["role", "from"])
@pytest.mark.parametrize(
    ("role", "written"), [("observation", "<observation>4"), ("IPython", "<ipython>4"), ("bot", "<b>4")]
)
def test_the_words_of_the_template_win(name: str, role: str, written: str) -> None:
    """A role that the template has a branch for stays, as servers hand it over. Others are what the table says."""
    source, names = PromptSource(path="p"), TemplateNames((OWN_WORDS,))
    text = {"role": "content", "from": "value"}[name]
    given = [{name: one, text: what} for one, what in (("human", "Why?"), (role, "4"), ("human", "And?"), ("gpt", "5"))]
    assert f"<user>Why?{written}<user>And?" == _rendered(OWN_WORDS, *given)
    found, mapped = (parse_row({"messages": given}, source, one) for one in (names, None))
    assert (1, mapped.text_id, mapped.conversation) == (found.dropped_answers, found.text_id, found.conversation)


def test_turns_end_at_results_of_tools_by_any_name() -> None:
    """And an answer is one by any name."""
    source = PromptSource(path="p", every_turn=True)
    said, result = _SAID | {"role": "bot"}, {"role": "observation", "content": "4"}
    found = parse_row(
        {"messages": [_ASKED, said, _ASKED, said, result, said, _ASKED]}, source, TemplateNames((OWN_WORDS,))
    )
    assert (1, 2, 3) == (len(found.follow_ups), found.dropped_turns, found.dropped_answers)


@pytest.mark.parametrize(("role", "read"), [("human", "user"), ("GPT", "assistant"), ("prompter", "user")])
def test_other_names_of_a_role_are_read(role: str, read: str) -> None:
    """As `from` has them too."""
    first = {"user": _ASKED, "assistant": _SAID}[read]
    given = [_ASKED, first | {"role": role}, _ASKED]
    assert f"<user>Why?<{read}>{first['content']}<user>Why?" == _rendered(ANY_ROLE, *given)


def test_follow_ups_leave_traces_too() -> None:
    """Of every turn, before the target has answered the first."""
    with pytest.raises(BadRow, match=r"system message .*: message 3 of 4"):
        _rendered(LEADING_SYSTEM, _ASKED, _SAID, _SYSTEM, _ASKED, source=PromptSource(path="p", every_turn=True))


def test_the_text_of_a_message_decides_nothing() -> None:
    """A text that another message has too does not stand for it, and each sequence is decided once."""
    rendered = list[Any]()
    tokenizer = bpe_tokenizer(template=LEADING_SYSTEM)
    inner = tokenizer.apply_chat_template

    def counted(*given: Any, **more: Any) -> Any:
        rendered.append(given)
        return inner(*given, **more)

    tokenizer.apply_chat_template = counted
    renderer, source = Renderer(tokenizer, None, {}), PromptSource(path="p")
    for text in ("Why?", "a", "b"):
        with pytest.raises(BadRow, match="system message"):
            renderer.text(parse_row({"messages": [_ASKED, _SAID, _SYSTEM | {"content": text}, _ASKED]}, source))
    assert len(rendered) == 1


def test_a_tool_that_the_template_cannot_write_is_refused() -> None:
    """One of a form that it does not know, beside others."""
    template = (
        "{% for t in tools or [] %}{% if t.function %}<{{ t.function.name }}>{% endif %}{% endfor %}" + LEADING_SYSTEM
    )
    openai, anthropic = {"type": "function", "function": {"name": "f"}}, {"name": "g", "input_schema": {}}
    assert "<f><u>Why?" == _rendered(template, _ASKED, tools=[openai])
    with pytest.raises(BadRow, match="chat template without tools: it ignores tool 2 of 2"):
        _rendered(template, _ASKED, tools=[openai, anthropic])


@pytest.mark.parametrize("path", _FAMILIES, ids=[path.stem for path in _FAMILIES])
def test_templates_of_families_lose_no_message(path: Path) -> None:
    """Ordinary chats are accepted; a call and its result are, or the template fails or is refused. No family keeps silent."""
    template = path.read_text(encoding="utf-8")
    assert "Why?" in _rendered(template, _ASKED, _SAID, _ASKED)
    for messages in ([_ASKED, _CALLED, _RESULT], [_ASKED, _SAID, _SYSTEM, _ASKED]):
        texts = [str(message["content"] or message["tool_calls"][0]["function"]["name"]) for message in messages]
        try:
            text = _rendered(template, *messages)
        except BadRow:
            continue
        assert all(one in text for one in texts)


_PARALLEL = [_CALL, _CALL | {"id": "987654321", "function": {"name": "g", "arguments": {}}}]


def test_each_of_parallel_calls_leaves_a_trace() -> None:
    """A template that writes the first call only drops the second; one call alone decides nothing about two."""
    one = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}{% endfor %}"
    every = one.replace(
        "m.tool_calls[0].function.name if m.tool_calls", "m.tool_calls | map(attribute='function.name') | join"
    )
    renderer, source = Renderer(bpe_tokenizer(template=one), None, {}), PromptSource(path="p")
    single, double = (
        parse_row({"messages": [_ASKED, _CALLED | {"tool_calls": calls}, _RESULT]}, source)
        for calls in ([_CALL], _PARALLEL)
    )
    assert "<assistant>f<tool>4" in renderer.text(single)[0]
    with pytest.raises(BadRow, match="assistant message that the chat template does not write: message 2 of 3"):
        renderer.text(double)
    assert "<assistant>fg<tool>4" in _rendered(every, *double.messages)


@pytest.mark.parametrize(
    ("message", "content"),
    [(_CALLED, None), (_SAID | {"reasoning_content": "They ask."}, []), (_RESULT, ""), (_RESULT, None), (_SYSTEM, [])],
)
def test_a_message_may_have_no_text(message: dict[str, Any], content: Any) -> None:
    """Such as a call alone, thinking that was cut off, or a tool that returned nothing: it is empty, as in servers."""
    found = parse_row({"messages": [_ASKED, message | {"content": content}, _ASKED]}, PromptSource(path="p"))
    assert "" == found.messages[1]["content"]
    with pytest.raises(BadRow, match=r"bad messages: 'messages.2.' has no content, and its text in `text`"):
        parse_row({"messages": [_ASKED, {"role": "assistant", "text": "Sure."}, _ASKED]}, PromptSource(path="p"))


@pytest.mark.parametrize("content", [None, []])
def test_a_question_needs_a_text(content: Any) -> None:
    with pytest.raises(BadRow, match=r"empty prompt: the content of 'messages.1.' is"):
        parse_row({"messages": [_ASKED | {"content": content}]}, PromptSource(path="p"))


def test_a_template_that_fails_is_told_from_one_that_drops() -> None:
    failing = "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages[0].content }}"
    with pytest.raises(BadRow, match="chat template failed: one only"):
        _rendered(failing, _ASKED, _SAID, _ASKED)


def test_a_template_that_goes_over_parts_gets_them() -> None:
    """As from servers; others get them joined by newlines, and a single part is a text."""
    loop = (
        "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = {"role": "user", "content": parts}
    assert "<user>[a][b]" == _rendered(loop, asked)
    assert "<user>a" == _rendered(loop, {"role": "user", "content": parts[:1]})
    assert "<user>a\nb" == _rendered(ANY_ROLE, asked)
    searched = "{% for m in messages %}{% if 'x' in m.content %}x{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert "a" in _rendered(searched, asked)
