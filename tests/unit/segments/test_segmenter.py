"""Rules of a config, JSON answers, and what is not a marker."""

from itertools import groupby
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.config.segments import SegmentRule, SegmentsConfig
from pipeline.errors import UsageError
from pipeline.models.segmenter import Segmenter
from tests.unit.segments.texts import bpe_tokenizer

_CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"
_THINK = ["<think>", "</think>"]


def _found(
    tokenizer: Any, settings: SegmentsConfig, completion: str, prompt: str = "Hi", stopped: bool = True
) -> list[tuple[str, str]]:
    segmenter = Segmenter(tokenizer, settings)
    ids = tokenizer(completion, add_special_tokens=False)["input_ids"]
    labels = segmenter.labels(tokenizer(prompt, add_special_tokens=False)["input_ids"], ids, stopped)
    assert len(labels) == len(ids)
    return [
        (segmenter.names[label], tokenizer.decode([token for _, token in run]))
        for label, run in groupby(zip(labels.tolist(), ids, strict=True), key=lambda one: one[0])
    ]


def _rule(**fields: Any) -> SegmentsConfig:
    return SegmentsConfig(rules=(SegmentRule(name="code", **fields),))


def test_without_rules_all_is_the_answer() -> None:
    tokenizer = bpe_tokenizer()
    assert Segmenter(tokenizer, SegmentsConfig()).names == ("answer",)
    assert _found(tokenizer, SegmentsConfig(), "[1, 2]") == [("answer", "[1, 2]")]  # not a chat


def test_a_text_between_texts() -> None:
    found = _found(bpe_tokenizer(), _rule(begin="<<", end=">>"), "It <<a>><<b>> is <<c")
    assert found == [("answer", "It "), ("code", "<<a>><<b>>"), ("answer", " is "), ("code", "<<c")]


def test_a_pattern() -> None:
    settings = _rule(begin_pattern="```[a-z]*\n", end_pattern="```")
    found = _found(bpe_tokenizer(), settings, "See:\n```py\nx = 1\n```\nDone")
    assert found == [("answer", "See:\n"), ("code", "```py\nx = 1\n```"), ("answer", "\nDone")]


def test_token_ids() -> None:
    tokenizer = bpe_tokenizer(_THINK)
    begin, end = tokenizer.convert_tokens_to_ids(_THINK)
    found = _found(tokenizer, _rule(begin=(begin,), end=(end,)), "<think>a</think>b")
    assert found == [("code", "<think>a</think>"), ("answer", "b")]


def test_token_ids_are_not_their_text() -> None:
    tokenizer = bpe_tokenizer()
    one, other = tokenizer("<<", add_special_tokens=False)["input_ids"][0], tokenizer("IIt")["input_ids"][0]
    assert one != other
    assert _found(tokenizer, _rule(begin=(other,), end=(one,)), "It is")[0][0] == "answer"


def test_a_marker_that_is_a_token_is_not_its_characters() -> None:
    tokenizer = bpe_tokenizer(_THINK)
    segmenter = Segmenter(tokenizer, _rule(begin="<think>", end="</think>"))
    spelled = [id for part in ("Write <th", "ink>x</th", "ink> so") for id in tokenizer(part)["input_ids"]]
    assert not segmenter.labels([], spelled, stopped=True).any()
    assert segmenter.labels([], tokenizer("Write <think>x</think> so")["input_ids"], stopped=True).any()


def test_a_marker_is_the_longest_token_of_its_text() -> None:
    found = _found(bpe_tokenizer(["<think", *_THINK]), _rule(begin="<think>", end="</think>"), "<think>a</think>b")
    assert found == [("code", "<think>a</think>"), ("answer", "b")]


def test_a_segment_that_the_prompt_begins() -> None:
    tokenizer = bpe_tokenizer(_THINK)
    settings = _rule(begin="<think>", end="</think>")
    assert _found(tokenizer, settings, "a</think>b", "Hi<think>\n") == [("code", "a</think>"), ("answer", "b")]
    assert _found(tokenizer, settings, "a</think>b", "What is <think> for?") == [("answer", "a</think>b")]
    assert _found(tokenizer, settings, "a", "Look it up. " * 20 + "<think>") == [("code", "a")]


def test_a_marker_with_which_only_a_completion_begins() -> None:
    settings, call = SegmentsConfig(markers="llama3"), '{"name": "'
    assert _found(bpe_tokenizer(), settings, call + "Oslo") == [("tool_call", call + "Oslo")]
    assert _found(bpe_tokenizer(), settings, "Oslo", prompt=call) == [("answer", "Oslo")]


def test_tokenizers_that_drop_the_first_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of SentencePiece do: a token's text has its space."""
    tokenizer = bpe_tokenizer()
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **options: decode(ids, **options).removeprefix(" "))
    assert _found(tokenizer, _rule(begin=" there"), "rains there") == [("answer", "rains"), ("code", "there")]


def test_white_space_between_segments_is_of_the_one_before() -> None:
    settings = _rule(begin="<<", end=">>")
    assert _found(bpe_tokenizer(), settings, "\n <<a>> \n<<b>>\n") == [("code", "\n <<a>> \n<<b>>\n")]


def test_the_longer_of_two_markers_that_begin_together() -> None:
    rules = (SegmentRule(name="short", begin="<<", end=">>"), SegmentRule(name="long", begin="<<a", end=">>"))
    assert _found(bpe_tokenizer(), SegmentsConfig(rules=rules), "<<b>><<a>>") == [("short", "<<b>>"), ("long", "<<a>>")]


def test_rules_come_before_the_familys_markers() -> None:
    tokenizer = bpe_tokenizer(template="<tool_call>")
    rule = SegmentRule(name="call", begin="<tool_call>", end="</tool_call>")
    assert _found(tokenizer, SegmentsConfig(rules=(rule,)), "<tool_call>a</tool_call>")[0][0] == "call"
    assert _found(tokenizer, SegmentsConfig(), "<tool_call>a</tool_call>")[0][0] == "tool_call"
    assert _found(tokenizer, SegmentsConfig(markers="none"), "<tool_call>a</tool_call>")[0][0] == "answer"


def test_a_pattern_that_matches_no_character_ends() -> None:
    settings = _rule(begin_pattern="(?=a)", end_pattern="(?=a)")
    assert _found(bpe_tokenizer(), settings, "aabaa")


@pytest.mark.parametrize(
    ("completion", "stopped", "structured"),
    [
        ('{"a": [1, 2.5, null]}', True, True),
        (' [1, "b"] \n', True, True),
        ('{"a": 1} is it', True, False),
        ('{"a": tru', False, True),
        ('{"a": "an open te', False, True),
        ('{"a": [1, 2', False, True),
        ('{"a": 1', True, False),  # ended by itself, and is no JSON
        ("{a: 1, b: 2, c: 3, d: 4}", False, False),
        ('"text"', True, False),
        ("12", True, False),
        ("[" * 9000, False, False),
        ("[" + "1" * 4301, False, True),  # more digits than Python converts
        ("[" + "1" * 4301 + "]", True, True),
        ('{"a": ' + "7" * 5000 + "} is it", True, False),
        ("{", False, False),  # too little to tell
    ],
)
def test_an_answer_in_json(completion: str, stopped: bool, structured: bool) -> None:
    found = _found(
        bpe_tokenizer(["<|end|>"], _CHAT), SegmentsConfig(), completion + "<|end|>" * stopped, stopped=stopped
    )
    assert [segment for segment, _ in found] == ["structured" if structured else "answer"]


def test_json_may_follow_thinking() -> None:
    tokenizer = bpe_tokenizer(_THINK, _CHAT)
    settings = _rule(begin="<think>", end="</think>")
    assert _found(tokenizer, settings, '<think>[a</think>{"b": 1}') == [
        ("code", "<think>[a</think>"),
        ("structured", '{"b": 1}'),
    ]
    assert _found(tokenizer, settings.model_copy(update={"structured": False}), '{"b": 1}')[0][0] == "answer"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "answer", "begin": "a"}, "what no rule names"),
        ({"name": "A b", "begin": "a"}, "pattern"),
        ({"name": "code"}, "one of begin and begin_pattern"),
        ({"name": "code", "begin": "a", "begin_pattern": "b"}, "one of begin and begin_pattern"),
        ({"name": "code", "begin": "a", "end": "b", "end_pattern": "b"}, "one of end and end_pattern"),
        ({"name": "code", "begin_pattern": "("}, "no regular expression"),
        ({"name": "code", "begin_pattern": "a*"}, "matches the empty text"),
        ({"name": "code", "begin": []}, "begin"),
        ({"name": "code", "begin": [-1]}, "begin"),
    ],
)
def test_rules_that_cannot_be(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SegmentRule(**fields)


@pytest.mark.parametrize(
    ("fields", "key", "said"),
    [
        ({"begin": "«", "end": ">>"}, "rules.0.begin: '«' is never found", "give its token ids"),
        ({"begin": "<<", "end": "»"}, "rules.0.end: '»' is never found", "splits into bytes"),
        ({"begin_pattern": "[«<]a", "end": ">>"}, "rules.0.begin_pattern: '«' is never found", "another marker"),
        ({"begin_pattern": r"\u00ab", "end_pattern": "a"}, "rules.0.begin_pattern: '«' is never found", "token ids"),
        ({"begin": "<<", "end_pattern": r"\xbb+"}, "rules.0.end_pattern: '»' is never found", "token ids"),
        ({"begin": (9_999,), "end": ">>"}, "rules.0.begin = [9999]", "not all of these token ids have a text"),
    ],
)
def test_a_marker_that_is_never_found_is_an_error(fields: dict[str, Any], key: str, said: str) -> None:
    """By the search that labels: this tokenizer splits a character beyond ASCII into bytes, which have no text alone."""
    with pytest.raises(UsageError) as raised:
        Segmenter(bpe_tokenizer(), _rule(**fields))
    assert f"generate.segments.{key}" in str(raised.value)
    assert said in str(raised.value)


def test_a_marker_of_a_family_that_is_never_found_is_left_out() -> None:
    """As of a fine-tune whose tokenizer lacks the family's added tokens; its other markers stay."""
    template = "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"
    lacking = Segmenter(bpe_tokenizer(template=template), SegmentsConfig())
    whole = Segmenter(bpe_tokenizer(["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"], template), SegmentsConfig())

    assert [("<｜tool▁calls▁begin｜>",), ()] == [one.unwritten for one in (lacking, whole)]
    assert ["deepseek", "deepseek"] == [one.family.name for one in (lacking, whole) if one.family]
    assert [1, 2] == [len(one._rules) for one in (lacking, whole)]


def test_a_marker_that_only_some_tokens_before_it_hide_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a character that is whole alone, and in bytes after a space."""
    tokenizer = bpe_tokenizer()
    segmenter = Segmenter(tokenizer, SegmentsConfig())
    text = segmenter._text
    monkeypatch.setattr(Segmenter, "_text", lambda self, ids: text(ids[:-1] if ids[0] == space else ids))
    (space, *_) = tokenizer(" ", add_special_tokens=False)["input_ids"]
    with pytest.raises(UsageError, match=r"'@' is never found after ' '"):
        Segmenter(tokenizer, _rule(begin="@"))


def test_bytes_by_their_token_ids() -> None:
    """As the error advises."""
    tokenizer = bpe_tokenizer()
    ids = tokenizer("«", add_special_tokens=False)["input_ids"]
    assert 2 == len(ids)
    assert _found(tokenizer, _rule(begin=tuple(ids), end=">>"), "It «a>> is") == [
        ("answer", "It "),
        ("code", "«a>>"),
        ("answer", " is"),
    ]


def test_a_token_that_a_marker_begins_within_is_of_its_segment() -> None:
    """Merges go across: the token of the marker's first character holds the end of the text before."""
    tokenizer = bpe_tokenizer()
    text = 'x {"name": "Oslo"'
    first = next(piece for piece in tokenizer.tokenize(text) if '"' in piece)
    assert not first.startswith('"')
    labels = _found(tokenizer, _rule(begin='"name', end="Oslo"), text)
    assert ["answer", "code", "answer"] == [segment for segment, _ in labels]
    assert ' {"name": "Oslo' == labels[1][1]


def test_a_token_of_two_segments_is_of_the_first() -> None:
    """The end of one and the begin of the next within one token."""
    tokenizer = bpe_tokenizer()
    rules = (SegmentRule(name="one", begin="<<", end="{"), SegmentRule(name="two", begin='"name', end=">>"))
    assert any('{"' in piece for piece in tokenizer.tokenize('<<a{"name": b>>'))
    found = _found(tokenizer, SegmentsConfig(rules=rules), '<<a{"name": b>>')
    assert [("one", '<<a{"'), ("two", 'name": b>>')] == found


def test_a_first_marker_may_begin_with_white_space() -> None:
    """As gpt-oss continues `<|start|>assistant`."""
    tokenizer = bpe_tokenizer(["<|call|>"])
    call = " to=functions.weather<|call|>"
    assert [("tool_call", call)] == _found(tokenizer, SegmentsConfig(markers="gpt_oss"), call)
    assert [("answer", f"x{call}")] == _found(tokenizer, SegmentsConfig(markers="gpt_oss"), f"x{call}")
