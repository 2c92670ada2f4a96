"""The prompt of a decode: a text, or a row of a file as every command reads it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.commands.decode import _source
from pipeline.config.corpus import named_source
from pipeline.errors import UsageError
from pipeline.examination.one_prompt import of_row, of_text
from tests.fakes import tiny_tokenizer

COLUMNS = dict.fromkeys(("format", "prompt_field", "messages_field"))


@pytest.fixture
def pair() -> Any:
    return SimpleNamespace(tokenizer=tiny_tokenizer(), vocabulary=32, context=12)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    found = [{"question": "a b"}, {"question": "b c a", "domain": "code", "temperature": 0.5}, {"question": 7}]
    found.append({"question": "a " * 11})
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def test_a_row_is_a_prompt_with_what_it_states(pair: Any, rows: Path) -> None:
    """Its tokens are those of its text; its domain, for drafts that read it, and its sampling settings go with it."""
    found = of_row(pair, named_source(rows, COLUMNS), 2, None, 2)
    assert of_text(pair, "b c a", None, 2).tokens == found.tokens
    assert ("b c a", "code", [{"temperature": 0.5}]) == (
        found.text,
        found.domain,
        [one.settings for one in found.sampling],
    )
    assert found.notes[0].startswith(f"line 2 of {rows}: ")
    assert [] == of_row(pair, named_source(rows, COLUMNS), 1, None, 2).sampling


def test_settings_of_another_models_answers_are_not_the_deployments(pair: Any, tmp_path: Path) -> None:
    """As for `probe` and a run: an instruction set says how its answers were made."""
    path = tmp_path / "alpaca.jsonl"
    path.write_text(json.dumps({"instruction": "b c a", "output": "c", "temperature": 0.5}) + "\n")

    assert [] == of_row(pair, named_source(path, COLUMNS), 1, None, 2).sampling


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (5, "^--row 5: .* has 4 rows; name one of them"),
        (3, r"^--prompts .*: line 3: .*; take another one \(--row\)"),
        (4, "^--prompts .*: line 4: the prompt's .* exceed the pair's context of 12"),
    ],
)
def test_a_row_that_cannot_be_decoded(pair: Any, rows: Path, row: int, said: str) -> None:
    """Not there, no prompt, too long: which row, and what to do."""
    with pytest.raises(UsageError, match=said):
        of_row(pair, named_source(rows, COLUMNS), row, None, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((None, None, None, COLUMNS), "give either PROMPT, a text, or --prompts"),
        (("a", "log.jsonl", None, COLUMNS), "give either PROMPT, a text, or --prompts"),
        (("a", None, 2, COLUMNS), "--row: works only with --prompts"),
        (("a", None, None, {**COLUMNS, "format": "csv"}), "--prompt-format: works only with --prompts"),
        ((None, "nowhere.jsonl", None, COLUMNS), "--prompts nowhere.jsonl: no such file"),
    ],
)
def test_what_is_decoded_is_said_once(given: Any, said: str) -> None:
    """Found before torch is imported."""
    with pytest.raises(UsageError, match=said):
        _source(*given)


def test_a_text_has_no_source() -> None:
    assert _source("a", None, None, COLUMNS) is None
