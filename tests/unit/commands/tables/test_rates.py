"""What acceptance rates are of is said wherever drafts of several kinds stand in one table."""

import pytest

from pipeline.acceptance.schema import Figure
from pipeline.commands.tables.show import print_summary
from pipeline.commands.tables.summary import DraftLine
from pipeline.drafts.kinds import rates_are_of
from tests.decisions import make_summary


def test_rates_over_other_tokens_do_not_compare() -> None:
    assert "Acceptance rates are over all tokens." == rates_are_of([True, True], 5)
    assert rates_are_of([False], 3).startswith(
        "Acceptance rates are over the tokens that rounds of 3 draft tokens examine"
    )
    both = rates_are_of([True, False], 4)
    assert "of a plain draft over all, of heads and lookups over the tokens that rounds of 4 draft tokens" in both
    assert both.endswith("compare tokens / target call.")


@pytest.mark.parametrize(
    ("by_token", "is_said"), [((True, True), False), ((True, False), True), ((False, False), True)]
)
def test_the_table_of_a_run_says_so(
    by_token: tuple[bool, bool], is_said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not where all drafts are plain ones."""
    figure = Figure(0.5, 0.4, 0.6, 40)
    lines = [
        DraftLine(
            name=name,
            megabytes=1.0,
            by_token=one,
            acceptance_rate=figure,
            tokens_per_target_call=figure,
            acceptance_rate_greedy=0.5,
            loop_share=0.0,
        )
        for name, one in zip(("base", "candidate"), by_token, strict=True)
    ]
    print_summary(make_summary(drafts=lines))
    assert is_said is ("Acceptance rates are" in " ".join(capsys.readouterr().out.split()))


def test_a_run_ends_with_what_is_acted_on(capsys: pytest.CaptureFixture[str]) -> None:
    """The commands with all their directories are what `show` is for."""
    summary = make_summary(examination="/e", directories={"target": "/t", "draft": "/d"}, page="/r.html")
    print_summary(summary, with_commands=False)
    out = capsys.readouterr().out
    assert "to predict its speedup and latency elsewhere: understudy show r has the commands\n" in out
    assert "review page: /r.html\n" in out
    assert "PROFILE" not in out
