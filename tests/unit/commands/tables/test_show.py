"""The summary of a run as text."""

import shlex

import pytest

from pipeline.acceptance.schema import Figure, SegmentFigures
from pipeline.commands.tables.console import NO_BREAK
from pipeline.commands.tables.show import print_summary
from pipeline.commands.tables.summary import DraftLine, StageLine
from pipeline.judgement.headline import headline
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


def test_what_a_run_shares_with_itself_is_not_reused_from_earlier_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """In a first run nothing is."""
    stages = [
        StageLine("speed/base", "done", 9.0),
        StageLine("speed/candidate", "skipped", 0.0, shared_with="speed/base"),
    ]
    print_summary(make_summary(stages=stages))
    out = capsys.readouterr().out.replace(NO_BREAK, " ")
    assert "shared within this run: speed/candidate (of speed/base)" in out
    assert "already in the store" not in out
    print_summary(make_summary(stages=[StageLine("speed/candidate", "skipped", 0.0)]))
    assert "already in the store: speed/candidate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("directories", "models"),
    [({"target": "/t t", "draft": "/d"}, "--target '/t t' --draft /d"), ({}, "--target TARGET --draft DRAFT")],
)
def test_how_to_get_step_times_is_said_where_they_are_needed(
    directories: dict[str, str], models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line with PROFILE in it is no command without the one that makes it."""
    print_summary(make_summary(examination="/e", directories=directories))
    out = capsys.readouterr().out
    assert "understudy latency predict --costs PROFILE --acceptance /e\n" in out
    assert f"to make PROFILE: understudy profile {models} --out PROFILE on the machine that serves" in out


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


def test_times_that_leave_something_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a job of which tasks of a scheduler have made the shards, the seconds are those of adding them up."""
    stages = [StageLine("corpus", "done", 4.0), StageLine("generate", "done", 5.0, resumed=True)]
    print_summary(make_summary(stages=stages))
    said = " ".join(capsys.readouterr().out.split())
    print_summary(make_summary(stages=stages[:1]))

    assert "not in these times: what tasks of a scheduler or a killed run had made before (generate)" in said
    assert "not in these times" not in capsys.readouterr().out


def test_printed_commands_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """Names with spaces and other characters of the shell are quoted."""
    directories = {"target": "/my models/it's", "draft": "org/name@main", "completions": "/a/$b"}
    print_summary(make_summary(directories=directories, examination="/a b/(c)"))
    printed = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if "understudy " in line]
    options = [word for name, value in directories.items() for word in (f"--{name}", value)]

    assert ["understudy", "probe", *options] == shlex.split(printed[0])
    assert ["--acceptance", "/a b/(c)"] == shlex.split(printed[1])[-2:]


def test_segments_stand_in_a_table_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The candidate beside what it is compared with; the base draft only where there is no champion."""

    def line(name: str, rate: float) -> DraftLine:
        parts = {
            segment: SegmentFigures(
                prompts=9,
                tokens=tokens,
                share=tokens / 100,
                acceptance_rate=Figure(rate, rate - 0.01, rate + 0.01, 9),
                tokens_per_target_call={5: Figure(4 * rate, 4 * rate - 0.1, 4 * rate + 0.1, 9)},
                begins=3 * (segment == "thinking"),
                acceptance_of_begins=Figure(0.25, None, None, 9) if segment == "thinking" else None,
            )
            for segment, tokens in (("answer", 70), ("thinking", 30))
        }
        return DraftLine(name=name, megabytes=1.0, broken="x", segments=parts)

    print_summary(make_summary(drafts=[line("base", 0.3), line("champion", 0.4), line("candidate", 0.6)]))
    table = capsys.readouterr().out.partition("By segment of the completion")[2]
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in table.splitlines() if row.startswith("│")]
    assert [
        ["answer", "70%", "champion", "0.400 [0.390, 0.410]", "1.60 [1.50, 1.70]", "-"],
        ["", "", "candidate", "0.600 [0.590, 0.610]", "2.40 [2.30, 2.50]", "-"],
        ["thinking", "30%", "champion", "0.400 [0.390, 0.410]", "1.60 [1.50, 1.70]", "0.250"],
        ["", "", "candidate", "0.600 [0.590, 0.610]", "2.40 [2.30, 2.50]", "0.250"],
    ] == rows

    print_summary(make_summary(drafts=[line("base", 0.3), line("candidate", 0.6)]))
    assert "base draft" in capsys.readouterr().out.partition("By segment")[2]
    print_summary(make_summary(drafts=[DraftLine(name="base", megabytes=1.0, broken="x")]))
    assert "By segment" not in capsys.readouterr().out
