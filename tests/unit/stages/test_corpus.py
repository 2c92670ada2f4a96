"""The corpus stage from files to `prompts.arrow`, with a tokenizer of words."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config.loading import parse_config
from pipeline.corpus.prompt_store import PROMPTS, Prompt, open_prompts
from pipeline.corpus.same_text import text_id
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.stored_pair import PAIR_FILE
from pipeline.progress import Progress
from pipeline.running.context import Outcome
from stages import corpus
from tests.contexts import stage_context
from tests.pairs import pair_facts
from tests.unit.corpus.test_rows import ToolTokenizer, WordTokenizer

Run = Callable[..., tuple[Outcome, Path]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the stage on rows (one list a source); returns the outcome and the directory it wrote."""
    monkeypatch.setattr(corpus, "load_tokenizer", lambda directory, trust: WordTokenizer())

    def call(*sources: list[Any] | bytes, **settings: Any) -> tuple[Outcome, Path]:
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        out.mkdir()
        (tmp_path / PAIR_FILE).write_text(json.dumps(pair_facts(vocabulary=2**31)))
        inputs = {"tokenizer": tmp_path}
        for number, rows in enumerate(sources):
            path = tmp_path / f"prompts{number}.jsonl"
            lines = rows if isinstance(rows, bytes) else "".join(json.dumps(row) + "\n" for row in rows).encode()
            path.write_bytes(lines)
            inputs[f"prompts_{number}"] = path
        raw = {
            "name": "t",
            "pair": {"target": {"source": "reference"}, "draft": {"source": "reference"}},
            "corpus": {
                "sources": [{"path": f"prompts{n}.jsonl"} for n in range(len(sources))],
                "splits": {"train": 0.4, "dev": 0.3, "examination": 0.3},
                **settings,
            },
        }
        context = stage_context(
            parse_config(raw, "t"), "corpus", tmp_path, out, inputs=inputs, progress=Progress(terminal=False)
        )
        return corpus.run(context), out

    return call


def _texts(count: int, words: int = 60, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(f"{chance.randrange(10**9)}" for _ in range(words)) for _ in range(count)]


def _rows(count: int, **extra: Any) -> list[dict[str, Any]]:
    return [{"prompt": text, **extra} for text in _texts(count)]


def _splits(out: Path) -> dict[str, str]:
    return {prompt.id: prompt.split for prompt in open_prompts(out)}


def test_stage_writes_prompts_and_counts_them(run: Run) -> None:
    """Figures add up, domains are counted by split, and only the two files are left."""
    off_size = [{"prompt": "a"}, {"prompt": "b " * 300}]
    rows = [*_rows(40, domain="code"), {"turns": _texts(2, seed=9)}, *off_size]
    outcome, out = run([*rows, rows[0]], max_prompt_tokens=250, min_prompt_tokens=4)
    figures = outcome.figures
    prompts = list(open_prompts(out))

    assert {PROMPTS, "rejects.jsonl"} == {path.name for path in out.iterdir()}
    assert (44, 42, 0, 1) == tuple(figures[name] for name in ("rows", "accepted", "rejected", "too_long"))
    assert (1, 0) == (figures["exact_duplicates"], figures["near_duplicates"])
    assert (41, 41, 1) == (figures["prompts"], figures["clusters"], figures["largest_cluster"])
    assert 41 == sum(figures[split] for split in ("train", "dev", "examination")) == len(prompts)
    assert figures["tokens"] == sum(len(prompt.tokens) for prompt in prompts)
    assert {"code": 40, "default": 1} == {name: sum(by.values()) for name, by in outcome.notes["domains"].items()}
    assert {} == outcome.notes["conversations"]
    assert 1 == outcome.notes["dropped_turns"]
    assert 1 == figures["too_short"]


def test_rows_that_are_asked_to_be_left_out_are_counted(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """By the window, the sample, the limit, and what was redacted: in the figures and in the log."""
    letters = str.maketrans("0123456789", "abcdefghij")
    texts = [text.translate(letters) for text in _texts(60)]
    rows = [{"prompt": text, "created": 1.0e9 if place < 5 else 4.0e9} for place, text in enumerate(texts)]
    for row in rows:
        row["prompt"] += " ask a@example.com"
    source = {"path": "prompts0.jsonl", "since": "14d", "sample": 30, "limit": 50, "redact": True}
    figures = run(rows, sources=[source], min_prompt_tokens=1)[0].figures
    names = ("rows", "older", "not_sampled", "over_limit")
    assert (30, 5, 15, 10) == tuple(figures[name] for name in names)
    assert 30 == figures["redacted"]
    said = capsys.readouterr().err
    for part in ("5 older than the window", "15 not in the sample", "10 beyond the limit (corpus.sources.N.limit)"):
        assert part in said


def test_a_label_that_few_requests_of_a_log_have_is_no_domain(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """A client made it up, and no rule could be proved on it. The domain of a data set stays, however small."""
    texts = _texts(54)
    log = [
        {"prompt": text, "created": 4e9, "temperature": 1, "domain": "zzz" if n < 6 else "chat"}
        for n, text in enumerate(texts[:50])
    ]
    chosen = [{"prompt": text, "domain": "mine"} for text in texts[50:]]
    outcome, _ = run(log, chosen, min_domain_prompts=10)
    assert {"chat": 50, "mine": 4} == {name: sum(by.values()) for name, by in outcome.notes["domains"].items()}
    assert "fewer than 10 prompts (corpus.min_domain_prompts) is now part of chat: zzz (6)" in capsys.readouterr().err


def test_prompts_are_read_back(run: Run) -> None:
    """A prompt has its documented id, keeps the order of the file, and can be asked for by split."""
    import hashlib

    _, out = run(_rows(30))
    prompts = list(open_prompts(out))
    words = [
        *WordTokenizer()(["<user> " + _texts(1)[0] + " <assistant>"], add_special_tokens=False, verbose=False)[
            "input_ids"
        ][0]
    ]
    digest = hashlib.sha256(pa.array(words, pa.int32()).buffers()[1].to_pybytes()[: 4 * len(words)]).hexdigest()[:16]

    assert (
        Prompt(
            digest,
            prompts[0].split,
            "default",
            0,
            tuple(words),
            text_id=(words_id := text_id([{"role": "user", "content": _texts(1)[0]}])),
            conversation=words_id,
        )
        == prompts[0]
    )
    assert list(range(30)) == [prompt.cluster for prompt in prompts]
    assert [p for p in prompts if p.split == "dev"] == list(open_prompts(out, ["dev"]))
    with pytest.raises(ValueError, match="no such split: test"):
        list(open_prompts(out, ["test"]))


def test_missing_and_damaged_prompts_are_named(tmp_path: Path) -> None:
    """The error names the missing or damaged file."""
    with pytest.raises(UnderstudyError, match=r"prompts\.arrow: no such file"):
        list(open_prompts(tmp_path))
    (tmp_path / PROMPTS).write_bytes(b"nothing like Arrow")
    with pytest.raises(UnderstudyError, match=r"prompts\.arrow: damaged"):
        list(open_prompts(tmp_path))


def test_same_input_same_bytes(run: Run) -> None:
    """Two runs over the same rows write the same bytes, rejects included."""
    rows = [*_rows(30), {"prompt": 3}]
    first, second = run(rows)[1], run(rows)[1]

    assert [(first / name).read_bytes() for name in (PROMPTS, "rejects.jsonl")] == [
        (second / name).read_bytes() for name in (PROMPTS, "rejects.jsonl")
    ]


def test_splits_are_stable_when_rows_are_added(run: Run) -> None:
    """Other prompts, put before and between, move no prompt to another split."""
    before = _splits(run(_rows(40))[1])
    added = [{"prompt": text} for text in _texts(40, seed=2)]
    mixed = [row for pair in zip(added, _rows(40), strict=True) for row in pair]
    after = _splits(run(mixed)[1])

    assert before == {name: after[name] for name in before}


def test_splits_do_not_follow_the_chat_template(run: Run) -> None:
    """The same prompts fall into the same splits whether they are rendered or not."""
    rendered, plain = (list(open_prompts(run(_rows(40), chat_template=wanted)[1])) for wanted in (True, False))

    assert [prompt.split for prompt in rendered] == [prompt.split for prompt in plain]
    assert rendered[0].tokens != plain[0].tokens


def test_near_duplicates_never_straddle_splits(run: Run) -> None:
    """Of a text and its variants one prompt is left, linked with what the variants' groups bring along."""
    rows = []
    for number, text in enumerate(_texts(20, words=120)):
        variant = text.rsplit(" ", 2)[0]
        rows += [{"prompt": text}, {"prompt": variant + " x", "group": number}]
    followers = [{"prompt": text, "group": number} for number, text in enumerate(_texts(20, seed=3))]
    outcome, out = run([*rows, *followers])
    prompts = list(open_prompts(out))
    splits = [prompt.split for prompt in prompts]

    assert (20, 20) == (outcome.figures["near_duplicates"], outcome.figures["clusters"])
    assert splits[:20] == splits[20:]


def _typed_otherwise(text: str) -> list[str]:
    return [text.upper(), text.replace(" ", "  ") + "\n", f"{text}!", text.replace(" ", ", ")]


def test_what_is_typed_otherwise_never_straddles_splits(run: Run) -> None:
    """Of short prompts that differ in case, whitespace and punctuation: those without content of their own are dropped as
    near-duplicates, and the others are in the first one's split."""
    texts = [f"explain {words}" for words in _texts(40, words=3)]
    outcome, out = run([{"prompt": typed} for text in texts for typed in (text, *_typed_otherwise(text))])
    splits = [prompt.split for prompt in open_prompts(out)]

    counts = tuple(outcome.figures[name] for name in ("clusters", "exact_duplicates", "near_duplicates"))
    assert (40, 40, 80) == counts  # the tokenizer of these tests does not see whitespace
    assert splits[::2] == splits[1::2]


@pytest.mark.parametrize("way", range(4))
def test_what_is_typed_otherwise_next_week_is_in_the_same_split(run: Run, way: int) -> None:
    """Also where the two are never in one corpus."""
    texts = [f"explain {words}" for words in _texts(40, words=3)]
    before, after = (
        [prompt.split for prompt in open_prompts(run([{"prompt": typed} for typed in rows])[1])]
        for rows in (texts, [_typed_otherwise(text)[way] for text in texts])
    )

    assert before == after


def test_chats_that_open_with_the_same_words_share_a_split(run: Run) -> None:
    """Whatever follows, because the opening is a prompt of its own; so does a plain prompt with these words."""
    texts, later = _texts(30, words=3), _texts(60)
    chats = [{"turns": [text, later[number]]} for number, text in enumerate(texts)]
    others = [{"turns": [f"{text.upper()}?", later[30 + number]]} for number, text in enumerate(texts)]
    _, out = run(chats, others, [{"prompt": f"({text})"} for text in texts], sources=_every_turn(2) + _plain(2))
    splits = [prompt.split for prompt in open_prompts(out)]

    assert splits[:30] == splits[30:60] == splits[60:]


def test_the_turns_of_a_session_are_in_one_split(run: Run) -> None:
    """With `every_answer`, and where each request is a row; next week, when the session goes on, it is the same split."""

    def session(number: int, turns: int) -> list[dict[str, str]]:
        texts = _texts(2 * turns, seed=number)
        return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]

    begun, longer = ([{"messages": session(number, turns)} for number in range(30)] for turns in (2, 3))
    requests = [{"messages": row["messages"][:end]} for row in longer for end in (1, 3, 5)]
    found = []
    for rows, fields in ((begun, {"every_answer": True}), (longer, {"every_answer": True}), (requests, {})):
        outcome, out = run(rows, sources=[{"path": "prompts0.jsonl", **fields}])
        splits: dict[str, list[str]] = {}
        for prompt in open_prompts(out):
            splits.setdefault(prompt.conversation, []).append(prompt.split)
        found.append(splits)

        examined = {name for name, of_turns in splits.items() if "examination" in of_turns}
        assert {"default": len(examined)} == outcome.notes["conversations"]

    assert [2, 3, 3] == [len(next(iter(splits.values()))) for splits in found]
    first, *others = ({name: set(splits) for name, splits in by_name.items()} for by_name in found)
    assert all(len(splits) == 1 for splits in first.values())
    assert [first, first] == others


def test_sources_in_two_modes_of_the_template(run: Run) -> None:
    """Each is a domain of its own, with the same prompts in the same splits; unread arguments stop the run."""
    rows = _rows(40, domain="chat")
    sources = [{"path": f"prompts{n}.jsonl", "chat_template_arguments": {"mood": mood}} for n, mood in enumerate("ab")]
    outcome, out = run(rows, rows, sources=sources)
    prompts = list(open_prompts(out))

    by_domain = {name: {p.text_id: p.split for p in prompts if p.domain == name} for name in outcome.notes["domains"]}
    assert ["chat (mood=a)", "chat (mood=b)"] == list(by_domain)
    assert by_domain["chat (mood=a)"] == by_domain["chat (mood=b)"]
    assert 40 == len(by_domain["chat (mood=a)"])
    assert 0 == outcome.figures["near_duplicates"]
    with pytest.raises(
        UsageError, match=r"corpus\.sources\.0\.chat_template_arguments\.moods: the target's chat template"
    ):
        run(rows, sources=[{"path": "prompts0.jsonl", "chat_template_arguments": {"moods": "a"}}])


def test_a_mode_is_also_that_of_the_corpus(run: Run) -> None:
    """Where a source states none; it names no domain."""
    sources = [{"path": "prompts0.jsonl"}, {"path": "prompts1.jsonl", "chat_template_arguments": {"mood": "b"}}]
    rows = _rows(40, domain="chat")
    _, out = run(rows, rows, sources=sources, chat_template_arguments={"mood": "a"})
    found = {(prompt.domain, prompt.mode) for prompt in open_prompts(out)}
    assert found == {("chat", "mood=a"), ("chat (mood=b)", "mood=b")}


def _every_turn(count: int) -> list[dict[str, Any]]:
    return [{"path": f"prompts{number}.jsonl", "every_turn": True} for number in range(count)]


def _plain(number: int) -> list[dict[str, Any]]:
    return [{"path": f"prompts{number}.jsonl"}]


def test_groups_never_straddle_splits(run: Run) -> None:
    """Every row of a group is kept, in one split; equal names in two sources are two groups."""
    rows = [{"prompt": text, "group": number // 10} for number, text in enumerate(_texts(200))]
    others = [{"prompt": text, "group": number // 10} for number, text in enumerate(_texts(200, seed=2))]
    outcome, out = run(rows, others)
    prompts = list(open_prompts(out))

    assert 400 == len(prompts)
    assert (40, 10) == (outcome.figures["clusters"], outcome.figures["largest_cluster"])
    assert all(1 == len({prompt.split for prompt in prompts[start : start + 10]}) for start in range(0, 400, 10))


def test_rejects_are_written_down_in_order(run: Run) -> None:
    """Each reject has source, file, line and reason; sizes are listed with them but not counted as mistakes."""
    rows = [*_rows(30), {"prompt": "a " * 99}, {"prompt": None}]
    outcome, out = run(_rows(1), rows, max_prompt_tokens=80)
    entries = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]

    assert [
        {"source": 1, "file": "prompts1.jsonl", "row": 31, "reason": "too long: 101 tokens, at most 80"},
        {"source": 1, "file": "prompts1.jsonl", "row": 32, "reason": "null prompt: 'prompt' is null"},
    ] == entries
    assert {"null prompt": 1} == outcome.notes["rejected"]
    assert (1, 1) == (outcome.figures["rejected"], outcome.figures["too_long"])


def test_too_many_rejects_stop_the_run(run: Run) -> None:
    """One line names the file, the first bad line, its reason, the share and the key; too long rows do not count."""
    with pytest.raises(UsageError) as caught:
        run(_rows(50), [*_rows(8), {"prompt": ""}, {"prompt": 1}], max_rejected_share=0.1)

    assert str(caught.value).endswith(
        "prompts1.jsonl: line 9: empty prompt: 'prompt' is empty; 2 of 10 rows rejected "
        "(20.0%), more than corpus.max_rejected_share = 0.1; fix the rows, or raise that share"
    )
    outcome, _ = run([*_rows(30), *[{"prompt": "a " * 99}] * 20], max_prompt_tokens=80)
    assert (20, 0) == (outcome.figures["too_long"], outcome.figures["rejected"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (b"", "no prompts: the file is empty"),
        (b"\n\n", "no prompts: the file is empty"),
        ([{"prompt": "a " * 99}], "no prompt was accepted of 1: 1 longer than corpus.max_prompt_tokens = 80"),
        ([{"prompt": 1}], "no prompt was accepted of 1: .* 1 rejected, the first: line 1: not text"),
    ],
)
def test_nothing_to_work_with(run: Run, rows: Any, message: str) -> None:
    """An empty file and a file without usable prompts are named; an empty examination split is an error."""
    with pytest.raises(UsageError, match=rf"prompts1\.jsonl: {message}"):
        run(_rows(30), rows, max_prompt_tokens=80, max_rejected_share=1)


def test_chat_without_template_names_the_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat for a target without a chat template stops at its line."""
    monkeypatch.setattr(corpus, "load_tokenizer", lambda directory, trust: WordTokenizer(None))
    with pytest.raises(UsageError, match=r"prompts0\.jsonl: line 2: chats and turns need a chat template"):
        run([{"prompt": "x"}, {"turns": ["x"]}])


def test_what_became_of_the_rows_is_printed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of counts; a warning for each reason that leaves out more than a tenth, and for malformed rows by number."""
    long = [{"prompt": "a " * 99}] * 12
    lines = [json.dumps(row).encode() for row in [*_rows(30), *_rows(1), *long]]
    broken = [b"{broken", '{"prompt": "gr\u00fc\u00dfe"}'.encode("latin-1"), b"[]", b"3"]
    run(b"\n".join([*lines, *broken]), max_prompt_tokens=80, max_rejected_share=0.1)
    printed = capsys.readouterr().err
    path = printed.split("warning: ")[1].partition(": ")[0]

    assert (
        "corpus: 30 prompts of 47 rows, 12 longer than 80 tokens (corpus.max_prompt_tokens), 1 exact duplicates, "
        "1 rejected (broken JSON), 1 rejected (invalid unicode), 2 rejected (not an object)\n"
    ) in printed
    assert (
        "warning: corpus: 12 of 47 rows (26%) are not used: longer than 80 tokens (corpus.max_prompt_tokens)\n"
        in printed
    )
    assert (
        f"warning: {path}: line 45: invalid unicode: not UTF-8 at byte 15 (convert Latin-1 text to UTF-8); the row"
        in printed
    )
    assert f"warning: {path}: 1 more rows are not used; rejects.jsonl of the corpus names them\n" in printed
    assert 5 == printed.count("warning: ")


def test_few_unused_rows_are_no_warning(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The counts are printed all the same."""
    run([*_rows(30), _rows(1)[0]])

    printed = capsys.readouterr().err
    assert "corpus: 30 prompts of 31 rows, 1 exact duplicates" == printed.splitlines()[1]
    assert "are not used" not in printed


def test_a_chat_keeps_its_tools(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored for the prompts of its later turns."""
    monkeypatch.setattr(corpus, "load_tokenizer", lambda directory, trust: ToolTokenizer())
    tools = [{"type": "function", "function": {"name": "weather"}}]
    chat = {"turns": ["a b", "c d"], "tools": tools}
    source = {"path": "prompts0.jsonl", "every_turn": True}
    _, out = run([chat, *_rows(30)], sources=[source])
    first = open_prompts(out)[0].chat

    assert first is not None
    assert tools == list(first.facts.tools) == list(first.with_answer("x").facts.tools)
