"""The result of `understudy check` as JUnit XML, Markdown and JSON."""

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from pipeline.acceptance.baseline import Conditions
from pipeline.acceptance.intervals import Interval
from pipeline.commands.tables.check import (
    SCHEMA,
    CheckResult,
    Verdict,
    check_json,
    check_markdown,
    compared,
    not_compared,
)
from pipeline.commands.tables.check_files import check_files
from pipeline.commands.tables.check_junit import check_junit
from pipeline.errors import Refused, UnderstudyError, UsageError
from pipeline.judgement.regression import Comparison, DomainComparison, SegmentComparison
from pipeline.judgement.rule_result import Power

CONDITIONS = Conditions(
    completions="key",
    completions_sha256="content",
    target="target",
    target_dtype="float32",
    sampling={"temperature": 1.0},
    evaluate={"convention": "user", "confidence": 0.95},
    dtype="float32",
)
COMPARISON = Comparison(
    draft=0.7012,
    baseline=0.7112,
    difference=Interval(-0.01, -0.012, -0.008, 300),
    margin=0.01,
    power=None,
    left_out_prompts=("p1", "p2"),
    domains=(
        DomainComparison(domain="chat", draft=0.6, baseline=0.5, difference=Interval(0.1, 0.09, 0.11, 299)),
        DomainComparison(
            domain="a|b <i>", draft=0.6, baseline=0.7, difference=Interval(-0.1, float("-inf"), float("inf"), 1)
        ),
    ),
    segments=(),
    conditions=CONDITIONS,
    digest="new",
    baseline_digest="old",
    hardware="cpu x86_64",
    baseline_hardware="cpu x86_64",
)
LINE = (
    "regression: acceptance rate 0.7012, baseline 0.7112: -1.00 points [-1.20, -0.80] over 300 prompts, margin 1 point; "
    "2 prompts left out, because a draft was trained on them"
)
REGRESSION = compared(COMPARISON, "draft", "baseline.json", 1.5)
PASSED = compared(replace(COMPARISON, margin=0.013), "draft", "baseline.json", 1.5)


def _power(equal_passes: float, needed: int | None) -> Power:
    return Power(
        prompts=90, passes={}, refused={}, equal_passes=equal_passes, prompts_needed={"0.8": needed, "0.95": needed}
    )


def _segment(name: str, share: float, change: float, margin: float | None = 0.02) -> SegmentComparison:
    """With an interval of one point on each side, of 90 prompts."""
    difference = Interval(change, change - 0.01, change + 0.01, 90)
    power = None if margin is None else _power(1 - share, 120)
    return SegmentComparison(
        segment=name,
        share=share,
        draft=0.5 + change,
        baseline=0.5,
        difference=difference,
        margin=margin,
        power=power,
    )


SEGMENTS = (_segment("answer", 0.72, 0.1), _segment("aside", 0.08, -0.3, None), _segment("tool_call", 0.2, -0.2))
GAIN = replace(COMPARISON, draft=0.7612, difference=Interval(0.05, 0.04, 0.06, 300), power=_power(0.975, 77))
IN_SEGMENT = compared(replace(GAIN, segments=SEGMENTS, domains=()), "draft", "baseline.json", 1.5)
LOST = (
    "segment 'tool_call' (20% of the tokens): acceptance rate 0.3000, baseline 0.5000: -20.00 points [-21.00, -19.00] over "
    "90 prompts, margin 2 points"
)
ALL = "acceptance rate 0.7612, baseline 0.7112: +5.00 points [+4.00, +6.00] over 300 prompts, margin 1 point"
LEFT_OUT = "2 prompts left out, because a draft was trained on them"


def _suite(result: CheckResult) -> ET.Element:
    found = ET.fromstring(check_junit(result).encode()).find("testsuite")
    assert found is not None
    return found


def test_a_regression_is_one_failure() -> None:
    """The line that is printed, in the test case of the verdict; those of the domains pass."""
    suite = _suite(REGRESSION)
    cases = suite.findall("testcase")

    assert ("3", "1", "0") == (suite.get("tests"), suite.get("failures"), suite.get("errors"))
    assert ["acceptance rate", "chat", "a|b <i>"] == [case.get("name") for case in cases]
    assert [(LINE, LINE)] == [(one.get("message"), one.text) for one in suite.iter("failure")]
    assert "failure" == cases[0][0].tag
    assert (
        "acceptance rate 0.6000, baseline 0.7000: -10.00 points [no interval: too few prompts] over 1 prompt, for information"
        == cases[2].findtext("system-out")
    )


def test_what_is_undecided_is_no_regression() -> None:
    """A segment that rose in too few prompts to prove it: exit 3 under its own name, after a regression where there is one."""
    unknown = replace(_segment("thinking", 0.3, 0.062), difference=Interval(0.062, -math.inf, math.inf, 45), power=None)
    text = (
        "segment 'thinking' (30% of the tokens): acceptance rate 0.5620, baseline 0.5000: +6.20 points [no interval: too few "
        "prompts] over 45 prompts, margin 2 points"
    )
    alone, beside = (
        compared(replace(GAIN, segments=segments, domains=()), "draft", "baseline.json", 1.5)
        for segments in ((unknown,), (unknown, *SEGMENTS))
    )
    (failure,) = _suite(alone).iter("failure")

    assert ("undecided", 3, f"undecided: {text}; all tokens: {ALL}; {LEFT_OUT}") == (
        alone.verdict, alone.exit_code, alone.line
    )  # fmt: skip
    assert f"regression: {LOST}; undecided: {text}; all tokens: {ALL}; {LEFT_OUT}" == beside.line
    assert ("undecided", text) == (failure.get("type"), failure.get("message"))
    assert ("regression", "2") == (beside.verdict, _suite(beside).get("failures"))
    assert check_markdown(alone).startswith("### ❔ Draft model: undecided")
    assert "| segment `thinking`, 30% of the tokens ❔ |" in check_markdown(alone)


def test_a_segment_that_lost_is_named_first() -> None:
    """In the line, in a failed test case of its own beside one of all tokens that passes, and in the table."""
    suite, shown = _suite(IN_SEGMENT), check_markdown(IN_SEGMENT)

    assert ("regression", 3) == (IN_SEGMENT.verdict, IN_SEGMENT.exit_code)
    assert f"regression: {LOST}; all tokens: {ALL}; {LEFT_OUT}" == IN_SEGMENT.line
    assert ("4", "1", "0") == (suite.get("tests"), suite.get("failures"), suite.get("errors"))
    assert [LOST] == [one.get("message") for one in suite.iter("failure")]
    assert [
        ("acceptance rate", ALL),
        ("answer", IN_SEGMENT.segments[0]),
        ("aside", IN_SEGMENT.segments[1]),
        ("tool_call", None),
    ] == [(case.get("name"), case.findtext("system-out")) for case in suite.iter("testcase")]
    assert (
        "| segment `tool_call`, 20% of the tokens ❌ | 0.3000 | 0.5000 | -20.00 points [-21.00, -19.00] | 90 |" in shown
    )
    assert "| segment `aside`, 8% of the tokens | 0.2000 |" in shown
    assert (
        "for all prompts is above -1 point, and that of `answer`, `tool_call` above -2 points. The rows of other segments are "
        "for information.\n" in shown
    )


def test_a_loss_of_all_tokens_comes_before_those_of_segments() -> None:
    """Both are in the line, and each has a failed test case."""
    result = compared(replace(COMPARISON, segments=SEGMENTS, domains=()), "draft", "baseline.json", 1.5)

    assert LINE.replace(f"; {LEFT_OUT}", f"; {LOST}; {LEFT_OUT}") == result.line
    assert [result.line, LOST] == [one.get("message") for one in _suite(result).iter("failure")]
    assert "2" == _suite(result).get("failures")


def test_segments_that_are_only_shown_fail_nothing() -> None:
    """With a margin of 1; every line says so."""
    shown = tuple(replace(one, margin=None, power=None) for one in SEGMENTS)
    result = compared(replace(GAIN, segments=shown), "draft", "baseline.json", 1.5)

    assert f"no regression: {ALL}; {LEFT_OUT}" == result.line
    assert ["for information"] * 3 == [line.rpartition(", ")[2] for line in result.segments]
    assert "0" == _suite(result).get("failures")
    assert "The rows of segments are for information. The rows of domains are for information." in check_markdown(
        result
    )


def test_the_power_is_also_that_of_the_segment_that_is_hardest_to_prove() -> None:
    """Of the judged ones."""
    assert (
        "power: a draft with equal acceptance passes with 98% over these prompts; 95% needs 77 prompts; in the segment "
        "'answer' with 28%, and 95% needs 120 prompts"
    ) == IN_SEGMENT.power


def test_a_pass_has_no_failure() -> None:
    """The line stands in the output of the test case."""
    suite = _suite(PASSED)

    assert ("0", "0") == (suite.get("failures"), suite.get("errors"))
    assert f"no {LINE.replace('1 point;', '1.3 points;')}" == suite.findtext("testcase/system-out")


@pytest.mark.parametrize(
    ("error", "verdict", "code"),
    [
        (Refused("regression: the draft returned NaN logits"), "refused", 3),
        (UsageError("--baseline b: no such file"), "error", 2),
        (UnderstudyError("shard was altered"), "error", 1),
    ],
)
def test_without_a_comparison_there_is_an_error(error: UnderstudyError, verdict: str, code: int) -> None:
    """The reason, the exit code and no figures, in all three."""
    result = not_compared(error, "draft", "baseline.json", 0.1)
    suite, found = _suite(result), check_json(result)

    assert ("1", "0", "1") == (suite.get("tests"), suite.get("failures"), suite.get("errors"))
    assert [(verdict, str(error))] == [(one.get("type"), one.get("message")) for one in suite.iter("error")]
    assert (verdict, code, str(error), None, None) == (
        found["verdict"],
        found["exit_code"],
        found["line"],
        found["difference"],
        found["draft"]["acceptance_rate"],
    )
    assert f"    {error}\n" in check_markdown(result)


def test_text_that_xml_forbids_is_escaped() -> None:
    """Control characters, a lone surrogate and markup in the name of a draft and of a domain."""
    bad = 'a\x00\x1b[31m\ud800\ufffe<&">'
    domains = (replace(COMPARISON.domains[0], domain=bad),)
    suite = _suite(compared(replace(COMPARISON, domains=domains), bad, "b.json", 1.0))

    shown = 'a\\x00\\x1b[31m\\ud800\\ufffe<&">'
    assert shown == suite.findall("testcase")[1].get("name")
    assert {"draft": shown, "baseline": "b.json"} == {
        one.get("name"): one.get("value") for one in suite.iter("property")
    }


def test_the_summary_is_markdown() -> None:
    """Verdict, line, table; text of other people is code, in which nothing is markup."""
    shown = check_markdown(REGRESSION).splitlines()

    assert "### ❌ Draft model: regression" == shown[0]
    assert f"    {LINE}" in shown
    assert "| **all prompts** | 0.7012 | 0.7112 | -1.00 points [-1.20, -0.80] | 300 |" in shown
    assert "| domain `a\\|b <i>` | 0.6000 | 0.7000 | -10.00 points [no interval: too few prompts] | 1 |" in shown
    assert "### ✅ Draft model: no regression" == check_markdown(PASSED).splitlines()[0]


def test_a_verdict_more_is_a_schema_more() -> None:
    """A reader of one schema knows all its verdicts."""
    assert {2: ("passed", "regression", "undecided", "refused", "error")} == {SCHEMA: get_args(Verdict)}


def test_the_json_holds_what_was_compared() -> None:
    """Both rates, the difference with its interval, prompts, margin, conditions; an interval without bounds has nulls."""
    found = json.loads(json.dumps(check_json(REGRESSION), allow_nan=False))

    assert (2, "regression", 3, LINE, 0.01, 0.95) == tuple(
        found[name] for name in ("schema", "verdict", "exit_code", "line", "margin", "confidence")
    )
    assert {"value": -0.01, "low": -0.012, "high": -0.008, "prompts": 300, "conversations": None} == found["difference"]
    assert {"name": "draft", "acceptance_rate": 0.7012, "digest": "new", "hardware": "cpu x86_64"} == found["draft"]
    assert {"file": "baseline.json", "acceptance_rate": 0.7112, "digest": "old", "hardware": "cpu x86_64"} == found[
        "baseline"
    ]
    assert ["p1", "p2"] == found["left_out"]
    assert {"value": -0.1, "low": None, "high": None, "prompts": 1, "conversations": None} == found["domains"][1][
        "difference"
    ]
    assert "key" == found["conditions"]["completions"]
    segments = {one["segment"]: one for one in check_json(IN_SEGMENT)["segments"]}
    assert [0.2, 0.02, False, 120] == [
        *(segments["tool_call"][name] for name in ("share", "margin", "passed")),
        segments["tool_call"]["power"]["prompts_needed"]["0.95"],
    ]
    assert [None, None, None] == [segments["aside"][name] for name in ("margin", "passed", "power")]
    part = compared(replace(GAIN, segments=(_segment("a", 1 / 3, 0.0),)), "draft", "baseline.json", 1.5)
    (third,) = check_json(part)["segments"]
    assert 1 / 3 == third["share"]
    assert {
        "value": -0.2,
        "low": pytest.approx(-0.21),
        "high": pytest.approx(-0.19),
        "prompts": 90,
        "conversations": None,
    } == segments["tool_call"]["difference"]
    assert set(found) == set(check_json(not_compared(UsageError("x"), "d", "b", 0.0)))


def test_another_class_of_machine_is_noted() -> None:
    """In all three renderings."""
    result = compared(replace(COMPARISON, hardware="cuda H200"), "draft", "b.json", 1.0)

    assert result.note is not None
    assert "note: the baseline was measured on cpu x86_64, this machine is cuda H200" in result.note
    assert result.note == check_json(result)["note"] == _suite(result).findtext("testcase/system-err")
    assert result.note in check_markdown(result)


def test_a_summary_is_appended_to_the_one_of_github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other steps write to it too. With --summary, only the named file is written, and replaced."""
    shared, own = tmp_path / "steps.md", tmp_path / "own.md"
    shared.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shared))
    for summary in (None, own, own):
        files = check_files(None, summary, None)
        files.prepare(tmp_path / "baseline.json")
        files.write(REGRESSION)

    assert f"before\n{check_markdown(REGRESSION)}" == shared.read_text()
    assert check_markdown(REGRESSION) == own.read_text()


def _prepared(tmp_path: Path, **files: Any) -> None:
    named = {"junit": None, "summary": None, "json_file": None} | files
    check_files(**named).prepare(tmp_path / "baseline.json")


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is not there, a directory in its place, the baseline itself, one name twice."""
    (tmp_path / "baseline.json").touch()
    gone = tmp_path / "gone"
    with pytest.raises(UsageError, match=r"--junit .*gone/a\.xml: .*gone is not a directory; make it first"):
        _prepared(tmp_path, junit=gone / "a.xml")
    with pytest.raises(UsageError, match=r"--summary .*: is a directory; name a file"):
        _prepared(tmp_path, summary=tmp_path)
    with pytest.raises(UsageError, match=r"--json .*: the same file as --baseline"):
        _prepared(tmp_path, json_file=tmp_path / "x" / ".." / "baseline.json")
    with pytest.raises(UsageError, match=r"--json .*: the same file as --junit"):
        _prepared(tmp_path, junit=tmp_path / "a", json_file=tmp_path / "a")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(gone / "s.md"))
    with pytest.raises(UsageError, match=r"GITHUB_STEP_SUMMARY .* is not a directory"):
        _prepared(tmp_path)
    assert (tmp_path / "baseline.json").is_file()


def test_a_file_of_an_earlier_check_is_deleted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that is killed leaves no earlier pass behind; the shared summary stays."""
    for name in ("a.xml", "steps.md"):
        (tmp_path / name).write_text("earlier")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "steps.md"))
    _prepared(tmp_path, junit=tmp_path / "a.xml")

    assert ["steps.md"] == [path.name for path in tmp_path.iterdir()]


def test_a_disk_that_fails_later_does_not_hide_the_result(tmp_path: Path) -> None:
    """The line of the check is part of the error."""
    (tmp_path / "place").mkdir()
    files = check_files(tmp_path / "place" / "a.xml", None, None)
    files.prepare(tmp_path / "baseline.json")
    (tmp_path / "place").rmdir()

    with pytest.raises(
        UsageError, match=r"--junit .*: No such file or directory; the check itself ended with: regression: "
    ):
        files.write(REGRESSION)
