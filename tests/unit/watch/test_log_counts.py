"""Counts of a log's rows: by domain and mode, rows that cannot be, and damaged lines."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.corpus import PromptSource
from pipeline.engines.counts import Counts
from pipeline.watch.followed_files import follow
from pipeline.watch.log_counts import LogCounts, source_of

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
NOW = 1.7956e9


def _row(drafts: int = 10, accepted: int = 14, first: int = 7, **fields: Any) -> dict[str, Any]:
    """As vLLM and docs/examples/request_log.py write it, with 3 draft tokens."""
    found = {"num_spec_steps": drafts, "num_draft_tokens": 3 * drafts, "num_accepted_draft_tokens": accepted}
    found["acceptance_histogram"] = [drafts - first, first - (accepted - first), accepted - first, 0]
    response = {"usage": {"completion_tokens": drafts + accepted}, "metrics": {"speculative_decoding": found}}
    return {"messages": [], "response": response, **fields}


def _added(*rows: Any) -> LogCounts:
    found = LogCounts("`--some-option`")
    for row in rows:
        found.take(row)
    return found


ONE = Counts(drafts=10, draft_tokens=30, accepted=14, accepted_first=7, tokens=24)


def test_domains_are_those_of_a_corpus() -> None:
    """The row's own, in its template mode; `default` without one."""
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    found = _added(_row(), _row(domain="chat"), _row(domain="chat"), _row(domain="chat", **thinking), _row(domain=[1]))
    assert {
        "default": ONE,
        "chat": ONE + ONE,
        "chat (enable_thinking=true)": ONE,
        "other domains": ONE,
    } == found.by_domain()
    assert [] == found.problems()


def _lines_of(source: PromptSource, request: str, answer: str, domain: str) -> Any:
    """What a log says whose columns are called so."""
    row = _row()
    inner = {
        "messages": [{"role": "user", "content": "x"}],
        "domain": "a client's",
        "chat_template_kwargs": {"enable_thinking": True},
    }
    return {request: inner, answer: row["response"], domain: "chat"}


@pytest.mark.parametrize("text", [False, True])
def test_columns_are_those_of_the_source_that_reads_the_log(text: bool) -> None:
    """Request, answer and domain under other names, also as JSON text; a client's own label is none."""
    source = PromptSource(path="/l", request_field="call", answer_field="reply", domain_field="route")
    for columns, used in ((("call", "reply", "route"), source), (("request", "response", "domain"), None)):
        row = _lines_of(source, *columns)
        found = LogCounts("", used)
        found.take({name: json.dumps(value) if text and name != columns[2] else value for name, value in row.items()})
        assert {"chat (enable_thinking=true)": ONE} == found.by_domain()
    batch = LogCounts("")
    batch.take(
        {"body": {"messages": [{"role": "user", "content": "x"}], "domain": "no"}, "response": _row()["response"]}
    )
    assert {"default": ONE} == batch.by_domain()


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["/other.jsonl", "/log"], 1),
        (["/log/requests.jsonl", "/other"], 0),
        (["/other", "/log/*.jsonl.gz"], 1),
        (["/log/requests-2026.jsonl"], None),
        (["/other"], None),
        (["/answers", "/other"], 0),
        (["/answers", "/answers2"], None),
    ],
)
def test_the_source_of_a_log(paths: list[str], found: int | None) -> None:
    """By its files, else the only log; of `/log/requests.jsonl`."""
    sources = [PromptSource(path=path, use_answers="answers" in path) for path in paths]
    of_directory = source_of(Path("/log"), sources)
    of_file = source_of(Path("/log/requests.jsonl"), sources)
    assert (sources[found] if found is not None else PromptSource(path="log")) in (of_file, of_directory)
    if found is None:
        assert "log" == of_file.path


def test_there_are_a_few_domains_at_most() -> None:
    """A column that is no domain, such as an id, makes no thousands of sums."""
    found = _added(*(_row(domain=str(number)) for number in range(1000))).by_domain()
    assert 257 == len(found)
    assert 744 * 10 == found["other domains"].drafts


def test_what_is_said_of_rows() -> None:
    """Impossible counts, rows that lack a count, and a log without counts."""
    lacking = _row()
    del lacking["response"]["metrics"]["speculative_decoding"]["acceptance_histogram"]
    found = _added(lacking, _row(), _row(), _row(drafts=2, accepted=99), {"messages": []}, 7)
    assert {"default": ONE + ONE} == found.by_domain()
    assert [
        "1 of 6 rows have impossible counts of draft tokens",
        "1 of 6 rows have other counts than most, and are left out",
    ] == found.problems()
    without = _added({"messages": []}, {"response": {"timings": {"draft_n": 0, "draft_n_accepted": 0}}})
    assert ["none of 2 rows has the counts of its request (`--some-option`)"] == without.problems()
    assert {} == without.by_domain()
    assert [] == _added().problems()
    printed = _added({"log": json.dumps(_row()), "stream": "stdout", "time": "t"})
    assert ["1 of 1 rows are what a container printed"] == [one.partition(" (")[0] for one in printed.problems()]


@pytest.mark.parametrize("name", ["vllm_speculating", "llama_cpp", "sglang"])
def test_logs_of_engines(name: str) -> None:
    """The samples of docs/logs.md: accepted tokens of proposed ones, in their domains."""
    found = _added(*(json.loads(line) for line in (LOGS / f"{name}.jsonl").read_text().splitlines()))
    total = sum(found.by_domain().values(), next(iter(found.by_domain().values())))
    assert total.draft_tokens is not None
    assert total.accepted is not None
    assert 0 < total.accepted <= total.draft_tokens
    assert (total.drafts is None) == (name == "llama_cpp")


def _damaged(line: bytes, rng: random.Random) -> bytes:
    found = bytearray(line)
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(len(found) + 1)
        end = at + rng.choice((0, 1, 30))
        piece = rng.choice(
            (b"", b"-", b"null", b"1e999", b"NaN", b"[", b"{", b'"', b"\xff", b"\n", b"9" * 30, found[at:end] * 2)
        )
        found[at:end] = piece
    return bytes(found)


def _numbers(line: bytes, rng: random.Random) -> bytes:
    """Other values in the counts of a row that stays JSON."""
    row = json.loads(line)
    for part in (row.get("response"), row):
        parts = [part] if isinstance(part, dict) else []
        while parts:
            one = parts.pop()
            parts += [value for value in one.values() if isinstance(value, dict)]
            parts += [
                value[0] for value in one.values() if isinstance(value, list) and value and isinstance(value[0], dict)
            ]
            for name in one:
                if rng.random() < 0.1:
                    one[name] = rng.choice((None, -1, 1.5, 10**30, "x", [], {}, True, [3, -1], float("nan")))
    return json.dumps(row).encode()


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_damaged_lines_are_read_or_counted(count: int, tmp_path: Path) -> None:
    """Nothing is raised, no sum is negative, and no domain accepts more than was proposed."""
    rng, log = random.Random(37), tmp_path / "requests.jsonl"
    real = [line for path in sorted(LOGS.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    log.write_bytes(b"")
    state, _ = follow(log, None, NOW, lambda row: None)
    rows = LogCounts("")
    for _ in range(count // 100):
        with log.open("ab") as file:
            for _ in range(100):
                line = rng.choice(real)
                file.write((_damaged(line, rng) if rng.random() < 0.5 else _numbers(line, rng)) + b"\n")
        state, _ = follow(log, state, NOW, rows.take)
    assert rows.by_domain()
    assert 1 <= len(rows.problems()) <= 2
    for counts in rows.by_domain().values():
        assert counts.accepted is not None
        assert counts.draft_tokens is not None
        assert 0 <= counts.accepted <= counts.draft_tokens
