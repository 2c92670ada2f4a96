"""The clock of a chat template is an input: the row's time, or a stated day."""

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answers import UnusableAnswer, parse_answer
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_facts import RowFacts
from pipeline.corpus.rows import ParsedPrompt
from tests.unit.corpus.kept_rows import read_source
from tests.unit.segments.texts import bpe_tokenizer

_TEMPLATE = (
    "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}no date{% endif %}|"
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_THEN = datetime(2024, 3, 1, 23, 59, tzinfo=UTC).timestamp()


def _prompt(time: float | None = None) -> ParsedPrompt:
    return ParsedPrompt(
        ({"role": "user", "content": "a"},), plain=False, domain="d", group=None, facts=RowFacts(time=time)
    )


@pytest.mark.parametrize(("time", "written"), [(_THEN, "01 Mar 2024"), (None, "26 Nov 2026"), (1e18, "26 Nov 2026")])
def test_a_row_with_a_time_has_its_own_date(time: float | None, written: str) -> None:
    """In UTC; others have the stated day, whatever day it is."""
    renderer = Renderer(bpe_tokenizer((), _TEMPLATE), None, {}, day=date(2026, 11, 26))
    assert renderer.text(_prompt(time))[0].startswith(f"{written}|")


def test_without_a_day_the_date_is_that_of_the_machine() -> None:
    """As in `probe` and `decode`; a template without a date needs no clock."""
    before = datetime.now().strftime("%d %b %Y")
    text, _ = Renderer(bpe_tokenizer((), _TEMPLATE), None, {}).text(_prompt())
    assert text.partition("|")[0] in (before, datetime.now().strftime("%d %b %Y"))
    assert not Renderer(bpe_tokenizer((), _TEMPLATE.replace("strftime_now", "x")), None, {}).has_clock


def test_answers_of_another_day_belong_to_their_prompts() -> None:
    """A log's prompt with its answer is the text that the server had."""
    tokenizer = bpe_tokenizer((), _TEMPLATE)
    source = PromptSource(path="p", use_answers=True)
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "created": _THEN}
    asked = tokenizer("01 Mar 2024|user:a;assistant:", add_special_tokens=False)["input_ids"]
    renderer = Renderer(tokenizer, None, {}, day=date(2026, 11, 26))
    prompt = _prompt(_THEN)
    assert [asked] == renderer.token_ids([renderer.text(prompt)])
    answer = renderer.answer_ids(
        prompt, asked, parse_answer(row | {"prompt_token_ids": asked, "finish_reason": "stop"}, source)
    )
    assert "b;" == tokenizer.decode(answer.tokens)
    with pytest.raises(UnusableAnswer, match=r"without a time \(time_field\)"):  # perhaps of another prompt
        renderer.answer_ids(_prompt(), asked, parse_answer(row | {"finish_reason": "stop"}, source))


@pytest.mark.parametrize(
    ("asked", "dated"),
    [
        ("{% if dated %}{{ strftime_now('%d %b %Y') }}{% endif %}", False),
        ("{% set day = strftime_now('%d %b %Y') %}{% if tools %}{{ day }}{% endif %}", False),
        ("{# strftime_now #}", False),
        ("{{ strftime_now('%H') }}", True),
        ("{{ strftime_now('%A') }}", True),
        ("{% set day = strftime_now('%Y') if messages | length == 1 else '' %}{{ day }}", True),
    ],
)
def test_a_time_is_needed_only_where_it_is_written(asked: str, dated: bool) -> None:
    """Into this prompt: a template may name the clock where it is not asked, or ask and not write."""
    tokenizer = bpe_tokenizer((), asked + _TEMPLATE.partition("|")[2])
    renderer, prompt = Renderer(tokenizer, None, {}, day=date(2026, 11, 26)), _prompt()
    (asked_ids,) = renderer.token_ids([renderer.text(prompt)])
    answer = parse_answer({"answer": "b", "finish_reason": "stop"}, PromptSource(path="p", use_answers=True))
    if dated:
        with pytest.raises(UnusableAnswer, match="without a time"):
            renderer.answer_ids(prompt, asked_ids, answer)
        return
    assert "b;" == tokenizer.decode(renderer.answer_ids(prompt, asked_ids, answer).tokens)


def test_rows_of_a_source_keep_their_times(tmp_path: Path) -> None:
    """Also where no window of time is asked for."""
    path = tmp_path / "log.jsonl"
    rows = [{"prompt": "a", "created": _THEN}, {"prompt": "b", "created": "2024-03-02T00:00:00Z"}, {"prompt": "c"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    renderer = Renderer(bpe_tokenizer((), _TEMPLATE), None, {}, day=date(2026, 11, 26))
    source = PromptSource(path=str(path), domain="d")
    found, _ = read_source(source, renderer, tmp_path / "rejects", min_prompt_tokens=1)
    assert [_THEN, _THEN + 60, None] == [row.prompt.facts.time for row in found]
    assert ["01 Mar", "02 Mar", "26 Nov"] == [renderer.text(row.prompt)[0][:6] for row in found]
