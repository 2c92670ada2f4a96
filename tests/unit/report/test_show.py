"""The summary of a run as text."""

import shlex

import pytest

from pipeline.judgement.headline import headline
from pipeline.report.show import print_summary
from pipeline.report.summary import DraftLine, StageLine
from tests.decisions import make_decision, make_summary


def test_the_verdict_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Before tables, rules and the times of the jobs."""
    promotion = {"name": "big-draft", "version": "1", "result": "promoted"}
    print_summary(
        make_summary(
            decision=make_decision(warnings=["slower"]),
            promotion=promotion,
            stages=[StageLine("pair", "done", 1.0)],
            drafts=[DraftLine(name="base", megabytes=1.0, broken="reason")],
        )
    )
    out = capsys.readouterr().out
    order = [
        "run r: finished",
        "decision: passed, but slower",
        "promotion: promoted",
        "MB",
        "pass  min_gain",
        "completed",
    ]
    shown = [out.index(text) for text in order]
    assert sorted(shown) == shown


def test_reasons_of_a_refusal_stand_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to look for the rule that failed."""
    print_summary(make_summary(decision=make_decision(-5.0)))
    lines = capsys.readouterr().out.splitlines()
    assert ("decision: REFUSED", "  min_gain (fail): ") == (lines[2], lines[4][:19])


@pytest.mark.parametrize(("count", "last"), [(6, "domain_margin:5 (fail)"), (40, "35 more rules did not pass")])
def test_many_reasons_are_counted(capsys: pytest.CaptureFixture[str], count: int, last: str) -> None:
    """With 40 domains their rules would fill the screen before any figure; they are among the rules."""
    reasons = [f"domain_margin:{number} (fail)" for number in range(count)]
    decision = make_decision(-5.0, reasons=reasons)
    print_summary(make_summary(decision=decision))
    lines = capsys.readouterr().out.splitlines()
    assert [*(f"  {reason}" for reason in reasons[:5]), f"  {last}", ""] == lines[4:11]
    assert [*reasons[:5], last] == headline(decision)[2:8]
    assert headline(decision)[8].startswith("acceptance rate")


def test_the_base_draft_is_for_a_new_target_only_where_there_was_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Most pairs have one target."""
    base, before = (DraftLine(name=name, megabytes=1.0, broken="x") for name in ("base", "base-before"))
    print_summary(make_summary(drafts=[base]))
    alone = capsys.readouterr().out
    print_summary(make_summary(drafts=[before, base]))
    both = capsys.readouterr().out
    assert (False, True) == ("new target" in alone, "base draft, new target" in both)
    assert "│ base draft " in alone


def test_the_level_of_the_intervals_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """`evaluate.confidence` need not be 95%."""
    print_summary(make_summary(confidence=0.995, drafts=[DraftLine(name="base", megabytes=1.0, broken="x")]))
    assert "Temperature 1, 0 examination prompts, 99.5% intervals\n" in capsys.readouterr().out


def test_printed_commands_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """Names with spaces and other characters of the shell are quoted."""
    directories = {"target": "/my models/it's", "draft": "org/name@main", "completions": "/a/$b"}
    print_summary(make_summary(directories=directories, examination="/a b/(c)"))
    printed = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if "understudy " in line]
    options = [word for name, value in directories.items() for word in (f"--{name}", value)]

    assert ["understudy", "probe", *options] == shlex.split(printed[0])
    assert ["--acceptance", "/a b/(c)"] == shlex.split(printed[1])[-2:]
