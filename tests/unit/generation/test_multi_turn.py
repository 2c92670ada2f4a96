"""Multi-turn chats: the next prompt after an answer, and why a chat stops early."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.prompt_store import Chat, Prompt, spooled
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_buffer import token_hash
from pipeline.corpus.row_facts import RowFacts
from pipeline.corpus.rows import parse_row
from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.multi_turn import StopReasons, next_turn
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import stored_completion, tiny_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"
CHAT = Chat(
    ({"role": "user", "content": "w3"},), (({"role": "user", "content": "w4"},), ({"role": "user", "content": "w5"},))
)
HOT = Sampling()


def _tokenizer(template: str = TEMPLATE) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def _request(name: str, sampling: Sampling = HOT, chat: Chat | None = CHAT, number: int = 0) -> CompletionRequest:
    return CompletionRequest(
        Prompt(name, "train", "code", 7, (3, 9), chat, text_id="t", conversation="t"), sampling, number
    )


def _said(*tokens: int, stopped: bool = True) -> StoredCompletion:
    return replace(stored_completion([3, 9], [*tokens, 0] if stopped else tokens), stopped=stopped)


def _next(
    requests: list[CompletionRequest],
    said: list[StoredCompletion],
    most: int = 100,
    template: str = TEMPLATE,
    stop_tokens: Sequence[int] = (0,),
    renderer: Renderer | None = None,
) -> tuple[list[CompletionRequest], StopReasons]:
    stop_reasons, tokenizer = StopReasons(), _tokenizer(template)
    with TemporaryDirectory() as place:
        renderer = renderer or Renderer(tokenizer, True, {})
        found = next_turn(requests, said, tokenizer, renderer, stop_tokens, most, stop_reasons, Path(place))
        assert [] == list(Path(place).iterdir())
    return list(found), stop_reasons


def test_the_answer_stands_before_the_next_question() -> None:
    """The answer is included as text without its stop token, rendered by the template; split, domain and cluster are
    those of the chat."""
    (found,), stop_reasons = _next([_request("a", number=2)], [_said(6, 7)])

    assert (3, 6, 7, 4, 9) == found.prompt.tokens
    assert (f"{token_hash([3, 6, 7, 4, 9]):016x}", "train", "code", 7) == (
        found.prompt.id,
        found.prompt.split,
        found.prompt.domain,
        found.prompt.cluster,
    )
    assert (HOT, 2, StopReasons()) == (found.sampling, found.number, stop_reasons)
    assert "t" == found.prompt.conversation != found.prompt.text_id
    assert found.prompt.chat is not None
    assert CHAT.follow_ups[1:] == found.prompt.chat.follow_ups


def test_tokens_past_the_end_are_no_part_of_an_answer() -> None:
    """Of an examination prompt, whose chat stays one; nobody has seen them."""
    request = _request("a")
    request = replace(request, prompt=replace(request.prompt, split="examination"))
    (found,), _ = _next([request], [replace(_said(6, 7, 0, 11), length=3, stopped=True)])

    assert ((3, 6, 7, 4, 9), "examination") == (found.prompt.tokens, found.prompt.split)


def test_a_stop_token_that_is_an_ordinary_one_is_no_part_of_an_answer() -> None:
    """As the end of a turn is in some tokenizers: the template writes its own."""
    (found,), _ = _next(
        [_request("a")], [replace(stored_completion([3, 9], [6, 20, 20]), stopped=True)], stop_tokens=[0, 20]
    )

    assert (3, 6, 4, 9) == found.prompt.tokens


def test_a_prompt_may_be_as_long_as_the_limit() -> None:
    """As those of the first turn may be."""
    assert 1 == len(_next([_request("a")], [_said(6)], most=4)[0])
    assert ([], StopReasons(too_long=1)) == _next([_request("a")], [_said(6, 7)], most=4)


def test_a_chat_ends_with_its_last_question() -> None:
    """The prompt of the last question has no follow-ups, and prompts that are not chats have none."""
    (second,), _ = _next([_request("a"), _request("b", chat=None)], [_said(6), _said(7)])
    (third,), _ = _next([second], [_said(8)])
    nothing, _ = _next([third], [_said(8)])

    assert (3, 6, 4, 8, 5, 9) == third.prompt.tokens
    assert third.prompt.chat is None
    assert [] == nothing


def test_every_sampling_goes_on_with_its_own_answer() -> None:
    """The new requests are in the order of generation: by sampling, then length."""
    requests = [_request("a"), _request("b"), _request("a", GREEDY)]
    found, _ = _next(requests, [_said(6, 7), _said(8), _said(7)])

    assert [(HOT, (3, 8, 4, 9)), (HOT, (3, 6, 7, 4, 9)), (GREEDY, (3, 7, 4, 9))] == [
        (item.sampling, item.prompt.tokens) for item in found
    ]


@pytest.mark.parametrize(
    ("said", "most", "template", "expected"),
    [
        (_said(6, stopped=False), 100, TEMPLATE, StopReasons(cut=1)),
        (_said(6), 3, TEMPLATE, StopReasons(too_long=1)),
        (_said(6), 100, "{{ raise_exception('no') }}", StopReasons(refused=1)),
    ],
    ids=["cut", "too long", "refused"],
)
def test_why_a_chat_ends_early_is_counted(
    said: StoredCompletion, most: int, template: str, expected: StopReasons
) -> None:
    """An answer cut at the limit, a prompt too long, a template error: the chat stops and the reason is counted."""
    assert ([], expected) == _next([_request("a")], [said], most, template)


def test_later_turns_are_rendered_with_the_tools_of_the_chat() -> None:
    """The prompt of every turn holds them, as in a deployment."""
    template = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + TEMPLATE
    chat = replace(CHAT, facts=RowFacts(({"function": {"name": "w8"}},)))
    (found,), _ = _next([_request("a", chat=chat)], [_said(6, 7)], template=template)

    assert (8, 3, 6, 7, 4, 9) == found.prompt.tokens
    assert found.prompt.chat is not None
    assert chat.facts == found.prompt.chat.facts


def test_later_turns_are_in_the_mode_of_the_chat() -> None:
    """Rendered with its own arguments of the template, and named by their mode."""
    chat = replace(CHAT, facts=RowFacts(arguments={"short": True}))
    request = _request("a", chat=chat)
    request = replace(request, prompt=replace(request.prompt, mode="short=true"))
    (found,), _ = _next([request], [_said(6, 7)], template="{% if short %}w8 {% endif %}" + TEMPLATE)

    assert ((8, 3, 6, 7, 4, 9), "short=true") == (found.prompt.tokens, found.prompt.mode)
    assert found.prompt.chat is not None
    assert chat.facts == found.prompt.chat.facts


def test_later_turns_have_what_the_row_states(tmp_path: Path) -> None:
    """Its time and the parts of its contents, as the first turn has them, after they were stored."""
    template = (
        "{{ strftime_now('%d') }} {% for m in messages %}{% if m.content is string %}{{ m.content }} {% else %}"
        "{% for part in m.content %}w8 {{ part.text }} {% endfor %}{% endif %}{% endfor %}"
    )
    parts = [{"type": "text", "text": "w3"}, {"type": "text", "text": "w4"}]
    row = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": ""}] * 2}
    row["messages"].append({"role": "user", "content": parts})
    read = parse_row(row, PromptSource(path="p", every_turn=True))
    third = datetime(2026, 11, 3, tzinfo=UTC).timestamp()
    prompt = _request("a", chat=Chat(read.messages, read.follow_ups, replace(read.facts, time=third))).prompt
    renderer = Renderer(tokenizer := _tokenizer(template), True, {})
    tokenizer.add_tokens(["03"])
    for _ in range(2):
        (prompt,) = spooled([prompt], tmp_path)
        ((found,), stop_reasons) = _next([replace(_request("a"), prompt=prompt)], [_said(6)], renderer=renderer)
        prompt = found.prompt
    day, asked = tokenizer.convert_tokens_to_ids("03"), (8, 3, 8, 4)
    assert ((day, *asked, 6, *asked, 6, *asked), StopReasons()) == (prompt.tokens, stop_reasons)


def test_a_turn_that_the_server_would_have_cut_is_refused() -> None:
    chat = replace(CHAT, facts=RowFacts(longest=4))
    assert ([], StopReasons(refused=1)) == _next([_request("a", chat=chat)], [_said(6, 7)])
