"""Which rows of a log are used: the window, the sample, and what is redacted."""

import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.corpus import PromptSource
from pipeline.corpus.readers import SourceRow
from pipeline.corpus.redaction import redact, redact_text
from pipeline.corpus.rows import BadRow
from pipeline.corpus.traffic import Traffic, timestamp

TODAY = date(2026, 11, 20)


def _rows(*values: Any) -> list[SourceRow]:
    return [SourceRow("log.jsonl", number, value) for number, value in enumerate(values, 1)]


def _traffic(rows: list[SourceRow], **settings: Any) -> Traffic:
    return Traffic(rows, PromptSource(path="log.jsonl", **settings), TODAY)


def _used(rows: list[SourceRow], **settings: Any) -> list[int]:
    return [row.number for row in _traffic(rows, **settings)]


@pytest.mark.parametrize(
    ("created", "used"),
    [
        ("2026-11-20T23:00:00Z", True),
        ("2026-11-13T00:00:00Z", True),
        ("2026-11-12T23:59:59Z", False),
        ("2026-11-13", True),
        (datetime(2026, 11, 14, tzinfo=UTC).timestamp(), True),
        (datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000, False),
        (datetime(2026, 11, 14), True),  # as Parquet stores it
        ("2026-11-25T00:00:00Z", True),  # a clock that is ahead
    ],
)
def test_rows_outside_the_window_are_left_out(created: Any, used: bool) -> None:
    """The window begins 7 days before the day of the run; a time is a number, an ISO text or a timestamp."""
    traffic = _traffic(_rows({"prompt": "a", "created": created}), since="7d")
    assert ([1] if used else []) == [row.number for row in traffic]
    assert traffic.older == (0 if used else 1)


@pytest.mark.parametrize(("window", "used"), [(None, [3, 4]), ("3d", [3, 4]), ("1d", [4])])
def test_rows_before_a_moment_are_left_out(window: str | None, used: list[int]) -> None:
    """With a window too, the later of both begins."""
    rows = _rows(*({"prompt": str(n), "created": f"2026-11-{16 + n}T09:59:59.5Z"} for n in range(4)))
    rows[2].value["created"] = "2026-11-18T10:00:00+00:00"
    since = datetime(2026, 11, 18, 10, tzinfo=UTC).timestamp()
    traffic = Traffic(rows, PromptSource(path="log.jsonl", since=window), TODAY, since)
    assert used == [row.number for row in traffic]
    assert 4 - len(used) == traffic.older
    assert datetime(2026, 11, 19, 9, 59, 59, 500_000, UTC).timestamp() == traffic.newest


def test_a_sample_is_of_rows_since_the_moment() -> None:
    """Rows that are left out take no place in it."""
    rows = _rows(*({"prompt": str(n), "created": 1795000000 + n} for n in range(50)))
    traffic = Traffic(rows, PromptSource(path="log.jsonl", sample=10), TODAY, 1795000030.0)
    found = [row.number for row in traffic]
    assert (10, 30, 10) == (len(found), traffic.older, traffic.not_sampled)
    assert min(found) > 30


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a"}, "'created' is missing"),
        ({"prompt": "a", "created": "soon"}, "neither seconds since 1970 nor ISO 8601"),
        ({"prompt": "a", "created": True}, "neither"),
        ({"prompt": "a", "created": float("nan")}, "neither"),
    ],
)
def test_a_row_without_a_time_is_a_bad_row(row: Any, said: str) -> None:
    """It is rejected like other malformed rows, not guessed at."""
    (found,) = _traffic(_rows(row), since="7d")
    assert isinstance(found.value, BadRow)
    assert said in str(found.value)


def test_without_a_window_no_time_is_read() -> None:
    """Prompt files without times stay as they are."""
    assert [1, 2] == _used(_rows({"prompt": "a"}, {"prompt": "b"}))


def test_a_sample_takes_equally_many_of_each_domain() -> None:
    """What a small domain lacks goes to the others."""
    rows = _rows(*({"prompt": str(n), "domain": "chat" if n % 10 else "code"} for n in range(100)))
    used = _used(rows, sample=40)
    domains = Counter(rows[number - 1].value["domain"] for number in used)
    assert {"chat": 30, "code": 10} == domains
    assert sorted(used) == used


def test_a_sample_does_not_depend_on_the_order_of_the_file() -> None:
    """The same rows are sampled from a file that was sorted in another way."""
    values = [{"prompt": str(n)} for n in range(50)]
    forward = {rows["prompt"] for rows in (row.value for row in _traffic(_rows(*values), sample=10))}
    backward = {rows["prompt"] for rows in (row.value for row in _traffic(_rows(*values[::-1]), sample=10))}
    assert forward == backward
    assert 10 == len(forward)


def test_newer_rows_are_sampled_more_often() -> None:
    """With a half-life of 1 day, of equally many rows of today and of 3 days ago the newer ones are about 8 times as many."""
    end = datetime(2026, 11, 20, 12, tzinfo=UTC)
    rows = _rows(*({"prompt": f"{n}", "created": (end - timedelta(days=3 * (n % 2))).timestamp()} for n in range(4000)))
    ages = Counter(number % 2 for number in _used(rows, sample=400, half_life="1d"))  # number 1 is the newest
    assert 5 < ages[1] / ages[0] < 13  # 8 is expected; at 400 rows the standard error is about 1.3


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ("write to jane.doe+x@mail.example.co.uk now", "write to <EMAIL> now", "e-mail"),
        ("key sk-proj-AbCdEf0123456789abcdef", "key <KEY>", "key"),
        ("ghp_0123456789abcdefABCDEF0123456789abcd", "<KEY>", "key"),
        ("AKIAIOSFODNN7EXAMPLE", "<KEY>", "key"),
        ("Authorization: Bearer abcdef0123456789ABCDEF", "Authorization: Bearer <TOKEN>", "token"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "<TOKEN>", "token"),
        ("password = hunter22", "password = <SECRET>", "secret"),
        ("DB_PASSWORD=hunter22 my_api_key: abcdefgh", "DB_PASSWORD=<SECRET> my_api_key: <SECRET>", "secret"),
        ('{"secret": "four words of mine"}', '{"secret": "<SECRET>"}', "secret"),
        ("token=abcdef123456789", "token=<SECRET>", "secret"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic <TOKEN>", "token"),
        ("npm_abcdefghijklmnopqrstuvwxyz0123456789", "<KEY>", "key"),
        ("hf_" + "a1" * 12, "<KEY>", "key"),
        ("glpat-" + "a1" * 10, "<KEY>", "key"),
        ("xoxb-" + "1a" * 8, "<KEY>", "key"),
        ("AIza" + "a1" * 16, "<KEY>", "key"),
        ("github_pat_" + "a1" * 12, "<KEY>", "key"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "<PRIVATE KEY>", "key"),
        ("call 1234567", "call 0000000", "number"),
        ("postgres://app:s3cr3t@db/x", "postgres://app:<SECRET>@db/x", "secret"),
        ("call +49 (0)30 1234567", "call +00 (0)00 0000000", "number"),
        ("card 4111 1111 1111 1111.", "card 0000 0000 0000 0000.", "number"),
        ("DE89 3704 0044 0532 0130 00", "DE00 0000 0000 0000 0000 00", "number"),
        ("from 192.168.10.7", "from 000.000.00.0", "address"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "<PRIVATE KEY>", "key"),
    ],
)
def test_secrets_and_personal_data_are_replaced(text: str, expected: str, kind: str) -> None:
    """Each rule, with what it leaves."""
    found = Counter[str]()
    assert expected == redact_text(text, found)
    assert kind in found


@pytest.mark.parametrize(
    "text",
    [
        "for i in range(100000):",
        "3.14159 and 2026-11-20",
        "a @ b",
        "see section 1.2.3",
        "token = next(it)",
        "x = 12345",
        "call 123456",
        "token: tokenizer.decode",
        "https://host:8000/path",
    ],
)
def test_ordinary_text_is_not_changed(text: str) -> None:
    """Short numbers, dates and code are training data."""
    assert text == redact_text(text, Counter())


def test_every_text_of_a_row_is_redacted() -> None:
    """Messages, tool calls and answers; labels and times stay."""
    row = {
        "messages": [
            {"role": "user", "content": "I am a@b.io", "tool_calls": [{"function": {"arguments": '{"to": "c@d.io"}'}}]},
            {"role": "assistant", "tool_calls": [{"function": {"arguments": {"to": 4915112345678, "count": 12}}}]},
        ],
        "domain": "x@y.io",
        "group": "x@z.io",
        "created": 1763600000,
        "answer": {"created": 1763600000},
    }
    (found,) = _traffic(_rows(row), redact=True)
    assert "I am <EMAIL>" == found.value["messages"][0]["content"]
    assert '{"to": "<EMAIL>"}' == found.value["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert {"to": 0, "count": 12} == found.value["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert ("x@y.io", "x@z.io", 1763600000) == tuple(found.value[name] for name in ("domain", "group", "created"))
    assert {"created": 1763600000} == found.value["answer"]


@pytest.mark.parametrize("part", ["a.", "%7B", "a-", "x://"])
def test_redaction_takes_time_in_proportion_to_the_text(part: str) -> None:
    """Were each character of a long word tried as the beginning of an address, these 300,000 would take minutes."""
    text = part * (300_000 // len(part))
    assert text == redact_text(text, Counter())


def test_redacted_rows_are_marked() -> None:
    """Their recorded answers are not used."""
    rows = _rows({"prompt": "a@b.io"}, {"prompt": "c"})
    assert [True, False] == [row.redacted for row in _traffic(rows, redact=True)]


@pytest.mark.parametrize(
    "value",
    [
        1763600000,
        1763600000.0,
        1763600000 * 10**3,
        1763600000 * 10**6,
        1763600000 * 10**9,
        "1763600000",
        "1763600000000",
        "2025-11-20T00:53:20Z",
        "2025-11-20T00:53:20",
        datetime(2025, 11, 20, 0, 53, 20),
    ],
)
def test_times_are_read_as_logs_write_them(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds to nanoseconds, also as text, and ISO 8601; without a zone they are UTC, wherever the program runs."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert 1763600000.0 == timestamp(value)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("value", [10**400, -1, float("nan"), float("inf"), True, None, [], "soon", ""])
def test_what_is_no_time_is_none(value: Any) -> None:
    """The row is then counted as one without a time."""
    assert timestamp(value) is None


def test_the_newer_of_a_domains_rows_is_sampled() -> None:
    """By age within a domain, also where two domains have rows of the same ages."""
    end = datetime(2026, 11, 20, 12, tzinfo=UTC)
    rows = _rows(
        *(
            {"prompt": f"{n}", "domain": "ab"[n // 2], "created": (end - timedelta(days=60 * (n % 2))).timestamp()}
            for n in range(4)
        )
    )
    ages = Counter(number % 2 for number in _used(rows, sample=2, half_life="1d"))
    assert {1: 2} == ages


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_redaction_is_done_once(value: Any) -> None:
    """What was redacted is not changed by doing it again."""
    once = redact(value, Counter())
    assert once == redact(once, Counter())
