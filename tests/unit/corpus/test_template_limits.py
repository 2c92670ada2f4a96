"""Chat templates of strangers: one that fails rejects the row, one that does not end or wants all memory stops the run."""

import signal
import threading
import time

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.corpus import template_limits
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import BadRow, ParsedPrompt
from pipeline.errors import UsageError

PROMPT = ParsedPrompt(({"role": "user", "content": "Why?"},), plain=False, domain="d", group=None)


def _renderer(template: str) -> Renderer:
    words = Tokenizer(models.WordLevel({"Why": 0, "?": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    tokenizer.chat_template = template
    return Renderer(tokenizer, True, {})


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1/0 }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ messages.nothing.at.all }}",
        "{{ 5 | tojson(3, 4, 5, 6, 7, 8, 9) }}",
        "{% for",
        "{{ '\\ud800' }}",
        "{{ raise_exception('no') }}",
        "{{ '%d' % 'a' }}",
        "{{ range(999999999) | list }}",
    ],
)
def test_a_template_that_fails_rejects_the_row(template: str) -> None:
    """Whatever Python raises, the reason is one line."""
    with pytest.raises(BadRow, match=r"^chat template failed: ") as caught:
        _renderer(template).text(PROMPT)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize("template", ["{{ 'a' * 3000000000 }}", "{{ 'a' | center(3000000000) }}"])
def test_a_template_that_wants_all_memory_stops_the_run(template: str) -> None:
    """One line that says what to do, and the process keeps its own limit."""
    before = template_limits.resource.getrlimit(template_limits.resource.RLIMIT_AS)
    with pytest.raises(UsageError, match=r"needs more than 1 GiB for one prompt; correct the template, or set"):
        _renderer(template).text(PROMPT)
    assert before == template_limits.resource.getrlimit(template_limits.resource.RLIMIT_AS)


def test_a_template_that_writes_too_much_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than the memory limit, and more than any prompt."""
    assert 2 * 1_000_000 < template_limits.CHARACTERS < template_limits.BYTES
    monkeypatch.setattr("pipeline.corpus.rendering.CHARACTERS", 4_000)
    with pytest.raises(UsageError, match="to more than 4,000 characters"):
        _renderer("{{ 'a' * 5000 }}").text(PROMPT)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set x = 7 ** 30000000 %}",
    ],
)
def test_a_template_that_does_not_end_stops_the_run(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time that the process computes, in a loop and within one operation on a large number."""
    monkeypatch.setattr(template_limits, "SECONDS", 0.3)
    with pytest.raises(UsageError, match=r"takes more than 0\.3 s for one prompt"):
        _renderer(template).text(PROMPT)
    assert (0.0, 0.0) == signal.getitimer(signal.ITIMER_VIRTUAL)


def test_waiting_is_not_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with something else stops no template."""
    monkeypatch.setattr(template_limits, "SECONDS", 0.05)
    assert "done" == template_limits.TemplateLimits().call(lambda: time.sleep(0.2) or "done")  # type: ignore[func-returns-value]


def test_a_thread_renders_without_the_time_limit() -> None:
    """Signals belong to the main thread; the memory limit is of the process."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_renderer("{{ messages[0].content }}").text(PROMPT)[0]))
    thread.start()
    thread.join()
    assert ["Why?"] == found
