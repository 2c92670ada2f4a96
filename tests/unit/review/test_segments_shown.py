"""Figures by segment, wherever figures of a draft are shown."""

from dataclasses import replace

import pytest

from pipeline.acceptance.baseline import ExaminedCounts
from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.segments import SegmentCounts
from pipeline.commands.tables.compare import ComparedDrafts, compare_examined, print_comparison
from pipeline.examination.profile_figures import headline_figures
from pipeline.judgement.comparison import compared_figures, paired_gains
from pipeline.judgement.schema import BASELINE, CANDIDATE, Decision, TrainingStep
from pipeline.registry.run_content import decision_figures, training_points
from pipeline.review.card import card
from pipeline.review.charts import Charts
from tests.decisions import make_decision
from tests.fakes import counted
from tests.profiles import make_profile
from tests.unit.commands.tables.test_check import CONDITIONS
from tests.unit.review.test_card import facts


def _counts(tool_call: float) -> list[PromptCounts]:
    """Of 60 tokens of the answer 40 are accepted, and a share of 40 tokens of tool calls."""
    parts = {"answer": (60, 40.0), "tool_call": (40, 40 * tool_call)}
    segments = {
        name: SegmentCounts(
            tokens=tokens,
            accepted=accepted,
            examined=float(tokens),
            rounds=[20.0] * 12,
            emitted=[50.0] * 12,
            begins=1,
            begins_accepted=0.25,
        )
        for name, (tokens, accepted) in parts.items()
    }
    whole = sum(accepted for _, accepted in parts.values())
    return [
        replace(counted(f"p{number}", whole, calls=40.0 + number % 3, gammas=12), segments=segments)
        for number in range(50)
    ]


@pytest.fixture
def decision() -> Decision:
    found = make_decision()
    drafts = {
        side: replace(draft, by_segment=compared_figures(_counts(rate), 5, 0.95).by_segment)
        for rate, (side, draft) in zip((0.75, 0.5, 0.1), found.drafts.items(), strict=True)
    }
    return replace(found, drafts=drafts)


def test_the_record_of_an_examination_has_rates_by_segment() -> None:
    found = headline_figures(make_profile(_counts(0.75)))
    assert found["acceptance_rate_segment_tool_call"] == 0.75


def test_compare_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = _counts(0.75), _counts(0.5)
    drafts = {CANDIDATE: compared_figures(ours, 5, 0.95), BASELINE: compared_figures(theirs, 5, 0.95)}
    print_comparison(
        ("a", "b"),
        ComparedDrafts(gamma=5, confidence=0.95, left_out=0, drafts=drafts, gains=paired_gains(ours, theirs, 0.95)),
    )
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "segment tool_call" in line]
    assert "0.500" in row
    assert "0.750" in row
    assert "+25.00 points" in row


@pytest.mark.parametrize("same", [True, False])
def test_compare_says_that_both_are_one_draft(same: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise 0 [0, 0] reads as a result about two drafts. Names differ, weights decide."""
    counts = _counts(0.5)
    one = ExaminedCounts(counts=counts, conditions=CONDITIONS, hardware="cpu", digest="d", trained_on=frozenset[str]())
    found = compare_examined(one, replace(one, digest="d" if same else "e"), gamma=2, domain=None)
    print_comparison(("run r", "name@champion"), found)
    assert same == ("A and B are the same draft, with equal weights" in capsys.readouterr().out)


def test_mlflow_has_a_metric_for_each(decision: Decision) -> None:
    found = decision_figures(decision)
    assert found["acceptance_rate_of_segment/answer"] == pytest.approx(2 / 3, abs=0.001)
    assert found["acceptance_rate_of_segment/tool_call"] == 0.75
    assert found["acceptance_rate_of_segment_before/tool_call"] == 0.5


def test_the_card_has_a_row_for_each(decision: Decision) -> None:
    (row,) = [line for line in card({**facts(), "decision": decision}).splitlines() if line.startswith("| tool")]
    assert "| 40% | 0.750 |" in row
    assert row.endswith("| 0.250 |")


def test_the_training_chart_has_a_line_for_each(decision: Decision) -> None:
    """With a legend; without segments there is neither. A step may lack one of them."""
    log = [
        TrainingStep(step=4, dev_acceptance_rate=0.5, dev_acceptance_rate_by_segment={"aside": 0.1}),
        *decision.training,
    ]
    svg = Charts({CANDIDATE: "candidate"}).training(log)
    plain = [TrainingStep(step=one.step, dev_acceptance_rate=one.dev_acceptance_rate) for one in log]

    assert all(f">{name}</text>" in svg for name in ("answer", "aside", "tool_call", "candidate"))
    assert "legend" not in Charts({CANDIDATE: "candidate"}).training(plain)


def test_mlflow_has_a_curve_of_the_training_for_each(decision: Decision) -> None:
    found = {(name, step): value for name, value, step in training_points(decision.training)}

    assert found["training/dev_acceptance_rate_by_segment/tool_call", 8] == 0.75
    assert found["training/loss_by_segment/answer", 4] == 0.8
    assert found["training/dev_acceptance_rate", 8] == 0.6
    assert not any("step" in name for name, _ in found)
