"""Prompt sources that cannot make a corpus are found before a model is downloaded or trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.running import prompt_survey
from pipeline.running.prompt_survey import require_prompts, survey_prompts

SMOKE = Path(__file__).parents[3] / "configs" / "smoke.yaml"


class _Words:
    """A tokenizer with a token for each word."""

    chat_template = None
    eos_token_id = 0

    def __call__(self, text: list[str], **_: Any) -> dict[str, list[list[int]]]:
        self.seen = getattr(self, "seen", 0) + len(text)
        return {"input_ids": [[len(word) for word in one.split()] for one in text]}


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> _Words:
    tokenizer = _Words()
    monkeypatch.setattr(prompt_survey, "_local_tokenizer", lambda pair: Path("there"))
    monkeypatch.setattr("pipeline.models.loading.load_tokenizer", lambda *_: tokenizer)
    return tokenizer


def _config(tmp_path: Path, rows: list[Any], *overrides: str) -> Config:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = [f"pair.{role}={{source: org/{role}, revision: {'a' * 40}}}" for role in ("target", "draft")]
    return load_config(SMOKE, (*models, f"corpus.sources=[{{path: {path}}}]", *overrides))


def _rows(count: int, domain: str = "code") -> list[dict[str, str]]:
    return [{"prompt": f"prompt number {number}", "domain": domain} for number in range(count)]


def _survey(config: Config) -> dict[str, int]:
    return survey_prompts(config, Progress(False))


def test_a_label_of_six_requests_stops_no_retraining(tmp_path: Path) -> None:
    """Of a log; the corpus stage folds it too."""
    rows = [*_rows(300, "chat"), *[{"prompt": f"another {n}", "domain": "zzz"} for n in range(6)]]
    log = [row | {"created": "2026-11-26", "temperature": 1.0} for row in rows]
    assert {"chat", "zzz"} == set(_survey(_config(tmp_path, rows)))
    assert {"chat"} == set(_survey(_config(tmp_path, log)))
    assert {"chat", "zzz"} == set(_survey(_config(tmp_path, log, "corpus.min_domain_prompts=0")))


def test_different_prompts_are_counted_by_domain(tmp_path: Path) -> None:
    """A prompt a hundred times is one prompt, also in another case; more than enough for the gate need not be told apart."""
    rows = [*_rows(30), *_rows(100, "chat")[:1] * 100, *_rows(2_000, "big")]
    rows.append({"prompt": "  Prompt  NUMBER 0", "domain": "chat"})
    found = _survey(_config(tmp_path, rows))
    assert {"code": 30, "chat": 1} == {name: count for name, count in found.items() if name != "big"}
    assert 50 < found["big"] < 500


def test_the_turns_of_a_conversation_are_one_prompt(tmp_path: Path) -> None:
    """As the gate counts them, also in two settings of one domain; otherwise a run would be promised what the gate refuses."""
    texts = [f"say {number} of the talk" for number in range(9)]
    sessions = [
        [{"role": ("user", "assistant")[n % 2], "content": f"{text} {session}"} for n, text in enumerate(texts)]
        for session in range(3)
    ]
    rows = [{"messages": session[:end]} for session in sessions for end in range(1, 10, 2)]
    budgets = [row | {"chat_template_kwargs": {"budget": budget}} for row in _rows(1) for budget in (1, 2)]
    assert {"code": 1, "default": 3} == _survey(_config(tmp_path, [*rows, *budgets]))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "no prompts: the file is empty; add prompts, or name another in corpus.sources.0.path"),
        (
            [{"a": 1, "b": 2}],
            "line 1: no column that is known to hold prompts among a, b; write the prompts as rows",
        ),
        ([{"prompt": ""}] * 9, "9 of 9 rows rejected"),
    ],
    ids=["empty", "other column", "empty prompts"],
)
def test_a_source_without_a_prompt_is_an_error_without_a_tokenizer(tmp_path: Path, rows: Any, complaint: str) -> None:
    """As for a pair that is on a hub; one line names the file."""
    with pytest.raises(UsageError) as caught:
        _survey(_config(tmp_path, rows))
    assert complaint in str(caught.value)
    assert "prompts.jsonl" in str(caught.value)


def test_prompts_that_are_all_too_long_are_an_error_where_the_tokenizer_is_local(tmp_path: Path, words: _Words) -> None:
    """Without one nobody knows their length."""
    config = _config(tmp_path, _rows(30), "corpus.max_prompt_tokens=2")
    with pytest.raises(UsageError, match=r"no prompt was accepted of 30: 30 longer than corpus\.max_prompt_tokens = 2"):
        _survey(config)
    assert {"code": 30} == _survey(_config(tmp_path, _rows(30), "corpus.max_prompt_tokens=3"))


def test_only_the_first_rows_are_tokenised(tmp_path: Path, words: _Words, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage does it again for all: here one more batch than the bound, unless none of them fits."""
    monkeypatch.setattr(prompt_survey, "_TOKENISED", 10)
    _survey(_config(tmp_path, _rows(2_000)))
    assert 256 == words.seen
    long = [{"prompt": "far too many words here"}] * 600
    assert {"code": 20} == _survey(_config(tmp_path, [*long, *_rows(20)], "corpus.max_prompt_tokens=3"))


def test_a_source_of_a_pair_that_is_still_to_be_made_is_left_out(tmp_path: Path) -> None:
    """Its prompts are made with it, so no domain is counted; the other source is read all the same."""
    (tmp_path / "empty.jsonl").write_text("")
    good, bad = (
        load_config(SMOKE, (f"corpus.sources=[{{path: reference}}, {{path: {tmp_path / name}}}]",))
        for name in ("good.jsonl", "empty.jsonl")
    )
    (tmp_path / "good.jsonl").write_text('{"prompt": "a"}\n')
    assert {} == _survey(good)
    with pytest.raises(UsageError, match=r"empty\.jsonl: no prompts"):
        _survey(bad)


def test_too_few_prompts_for_the_gate_stop_the_run_unless_it_is_told_to_go_on(tmp_path: Path) -> None:
    """8 are needed in smoke.yaml, and a quarter is examined."""
    config = _config(tmp_path, _rows(12))
    with pytest.raises(
        UsageError, match=r"domain 'code' has 12 different prompts, about 3 of them .* --even-if-refused"
    ):
        require_prompts(config, Progress(False), even_if_refused=False)
    require_prompts(config, Progress(False), even_if_refused=True)
    require_prompts(_config(tmp_path, _rows(40)), Progress(False), even_if_refused=False)


def test_domains_that_have_no_rule_are_not_counted(tmp_path: Path) -> None:
    """By their share of the rows, as the gate has it of the examined prompts."""
    rows = [*_rows(95), *_rows(5, "chat")]
    assert {"code", "chat"} == set(_survey(_config(tmp_path, rows)))
    assert {"code"} == set(_survey(_config(tmp_path, rows, "gate.min_domain_share=0.1")))
