"""What is said of a draft that is slower than plain decoding, by every renderer."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.acceptance.decoding_speed import Measured, SpeedCheck
from pipeline.acceptance.schema import Figure
from pipeline.commands.tables.show import print_summary
from pipeline.judgement.decision_file import recorded_decision
from pipeline.judgement.headline import headline, mark
from pipeline.judgement.rule_result import PASS, RuleResult
from pipeline.judgement.schema import PROMOTE, REFUSE, BriefDecision, Decision, brief
from pipeline.judgement.speed import measured_line, served_worth, speed_warnings
from pipeline.registry.run_content import decision_figures
from pipeline.review.card import version_description
from pipeline.review.page import review_page
from pipeline.store.parsing import format_of
from pipeline.store.runs import RunRecord
from tests.decisions import make_decision, make_example_set, make_speed, make_summary

SLOWER = "slower than plain decoding on this machine (x0.87 [0.85, 0.90])"


@pytest.fixture(autouse=True)
def _no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are read for their text."""
    monkeypatch.setattr("pipeline.review.page._charts", lambda *_: [])


def slow(**changes: Any) -> Decision:
    """A draft that passed and is slower than plain decoding."""
    speed = make_speed(Measured(0.87, 0.85, 0.90))
    decision = replace(make_decision(), speed=speed, benefit=None, **changes)
    return replace(decision, warnings=speed_warnings(decision.verdict, decision.rules, speed))


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [
        (Measured(0.87, 0.85, 0.90), [SLOWER]),
        (Measured(0.98, 0.95, 1.02), ["not faster than plain decoding on this machine (x0.98 [0.95, 1.02])"]),
        (Measured(0.5, None, None), ["slower than plain decoding on this machine (x0.50)"]),
        (Measured(1.0, 0.9, 1.1), []),
        (None, []),
    ],
)
def test_an_estimate_below_one_warns(speedup: Measured | None, expected: list[str]) -> None:
    """With 1 inside the interval nothing says that the draft pays; without a figure nothing is said. Of a refused draft
    the reasons say enough, and nobody serves it."""
    assert expected == speed_warnings(PROMOTE, [], make_speed(speedup))
    assert [] == speed_warnings(REFUSE, [], make_speed(speedup))


def test_the_stated_load_decides_over_this_machine() -> None:
    """The machine of the run need not be the one that serves."""
    rule = RuleResult(name="min_speedup", verdict=PASS, text="", figure=Figure(1.3, 1.2, 1.4, 50), threshold=1.0)
    assert [] == speed_warnings(PROMOTE, [rule], make_speed(Measured(0.5, 0.4, 0.6)))
    below = replace(rule, figure=Figure(0.9, 0.8, 0.95, 50), threshold=0.5)
    expected = ["slower than plain decoding at the stated load (x0.90 [0.80, 0.95])"]
    assert expected == speed_warnings(PROMOTE, [below], make_speed(Measured(2.0, 1.9, 2.1)))


def test_who_serves_a_draft_is_told_its_warning_and_its_best_length() -> None:
    """Whoever starts an engine reads no page: both stand in the export."""
    warned = f"the draft passed, but was {SLOWER.replace('this machine', 'cpu')}"
    where = "8 prompts with 512 tokens in each of 9 interleaved turns, one request at a time, on cpu"
    measured = f"measured: x0.87 [0.85, 0.90] at 2 draft tokens, {where}"
    assert [warned] == served_worth(slow(), 2)
    assert [warned, f"{measured}; this is started with 5; export it with --gamma 2 to start it so"] == served_worth(
        slow(), 5
    )
    assert [] == served_worth(replace(slow(), warnings=[], speed=None), 5)


FEW = "1 prompt with 16 tokens are too few; at least 8 prompts and 512 tokens are needed"


def test_a_speedup_that_is_not_measurable_is_shown_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is its number: each place says in one line why there is none."""
    found = make_speed(None)
    speed = replace(found, candidate=replace(found.candidate, not_measurable=FEW))
    decision = replace(make_decision(), speed=speed)
    said = f"speedup not measurable: {FEW}"
    assert [said] == served_worth(decision, 5)
    assert f"not measurable: {FEW}" == measured_line(decision)
    assert [] == speed_warnings(PROMOTE, [], speed)
    assert not any(name.startswith("speedup") for name in decision_figures(decision))
    print_summary(make_summary(decision=decision))
    for text in (
        capsys.readouterr().out,
        review_page(decision, make_example_set("one")),
        version_description(decision, "big-draft", "r", "now"),
    ):
        assert f"speedup of candidate not measurable: {FEW}" in " ".join(text.split()).replace("Speedup", "speedup")


@pytest.mark.parametrize(("prompts", "tokens"), [(1, 16), (7, 512), (8, 511)])
def test_a_speedup_of_too_little_in_an_older_record_is_none_now(prompts: int, tokens: int) -> None:
    """Earlier versions showed speedups of one prompt with 16 tokens, and a store keeps them."""
    decision = replace(
        make_decision(), speed=replace(make_speed(Measured(1.3, 1.2, 1.4)), prompts=prompts, tokens=tokens)
    )
    record = RunRecord(id="r", name="r", created="", config={}, outside={}, decision=brief(decision))
    speed = getattr(recorded_decision(record), "speed", None)
    assert speed is not None
    assert speed.candidate.speedup is None
    assert f"{tokens} tokens are too few" in str(speed.candidate.not_measurable)
    assert "turns differ" == speed.baseline.not_measurable


def test_what_rests_on_a_speedup_goes_with_it() -> None:
    """A decision that says "slower" above "not measurable" contradicts itself; what rests on the load or on rules stays."""
    of_times = "no draft length pays on this machine. With 1 draft token: a round costs 1.50 steps of plain decoding"
    of_load, of_rules = "slower than plain decoding at the stated load (x0.90)", "gain lacks 1.00 points"
    made = replace(slow(), what_now=[of_rules, of_times])
    assert made.speed is not None
    made = replace(made, warnings=[*made.warnings, of_load], speed=replace(made.speed, prompts=4, tokens=256))
    record = RunRecord(id="r", name="r", created="", config={}, outside={}, decision=brief(made))
    found = recorded_decision(record)
    assert found is not None
    assert ([of_load], [of_rules]) == (found.warnings, found.what_now)
    assert [f"the draft passed, but was {of_load}", f"speedup {measured_line(found)}"] == served_worth(found, 5)
    assert "not measurable: 4 prompts with 256 tokens" in measured_line(found)


def test_prompts_and_tokens_stand_beside_the_speedup(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the turns, and of the examination."""
    speed = replace(make_speed(Measured(1.3, 1.2, 1.4)), examined_prompts=160, examined_tokens=15360)
    decision = replace(make_decision(), speed=speed)
    print_summary(make_summary(decision=decision))
    for text in (
        capsys.readouterr().out,
        review_page(decision, make_example_set("one")),
        version_description(decision, "big-draft", "r", "now"),
    ):
        assert "8 prompts with 512 tokens in each of 9 interleaved turns" in " ".join(text.split())
        assert "tokens per round of 160 examined prompts (15,360 tokens)" in " ".join(text.replace("\\", "").split())


@pytest.mark.parametrize(("agrees", "verdict"), [(True, "agrees"), (False, "does not agree")])
def test_the_check_and_whose_step_times_they_are_are_printed(
    agrees: bool, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for step times that two drafts share, with both numbers and the draft that was decoded with."""
    check = SpeedCheck(
        gamma=1, prompts=8, tokens=520, computed=Measured(1.1, 1.0, 1.2), decoded=Measured(1.2, 1.1, 1.3), agrees=agrees
    )
    found = make_speed(Measured(1.3, 1.2, 1.4))
    assert found.baseline is not None
    speed = replace(
        found,
        baseline=replace(found.baseline, timed="itself", check=check),
        candidate=replace(found.candidate, timed="baseline", check=check),
    )
    decision = replace(make_decision(), speed=speed)
    print_summary(make_summary(decision=decision))
    lines = (
        "step times of candidate are those of base draft (equal shape)",
        "checked by decoding 8 prompts with 520 tokens (base draft, γ=1): x1.20 [1.10, 1.30] decoded, x1.10 [1.00, 1.20] "
        f"computed: {verdict}",
    )
    page = " ".join(review_page(decision, make_example_set("one")).split()).lower()
    assert [1, 1] == [page.count(line) for line in lines]
    for text in (capsys.readouterr().out, "\n".join(headline(decision))):
        assert [1, 1] == [" ".join(text.split()).count(line) for line in lines]


def test_step_times_of_an_earlier_draft_are_said_to_be_so() -> None:
    """Neither the candidate nor what it is compared with was timed."""
    found = make_speed(Measured(1.3, 1.2, 1.4))
    decision = replace(make_decision(), speed=replace(found, candidate=replace(found.candidate, timed="another")))
    assert "step times of candidate are those of a draft of an earlier run (equal shape)" in headline(decision)


def test_every_renderer_shows_the_warning_and_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Page, summary of a run, and description of a registered version. It is in the verdict: the first line says it, with a mark
    of its own, and the colour at the verdict is that of something open."""
    decision = slow()
    assert ("⚠", f"Passed, but {SLOWER}") == (mark(decision), headline(decision)[0])
    print_summary(make_summary(decision=decision))
    page = review_page(decision, make_example_set("one"))
    assert '<section class="verdict warned"' in page
    for text in (capsys.readouterr().out, page, version_description(decision, "big-draft", "r", "now")):
        assert SLOWER in text.replace("\\", "")  # Markdown escapes brackets
        assert "5,000 [4,900, 5,100]" in text.replace("\\", "")
        assert "not measurable: turns differ" in text


def test_why_a_speedup_is_not_measurable_is_said_once_and_outside_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is a sentence, which no column of figures has room for; drafts with one reason share it."""
    decision = replace(make_decision(), speed=make_speed(None))
    speed = decision.speed
    assert speed is not None
    reason = "it was 0.64 in one turn and 2.81 in another; is something else running?"
    drafts = {side: replace(getattr(speed, side), not_measurable=reason) for side in ("baseline", "candidate")}
    decision = replace(decision, speed=replace(speed, **drafts))
    print_summary(make_summary(decision=decision))
    out = capsys.readouterr().out
    line = f"speedup of base draft and candidate not measurable: {reason}"
    assert out.endswith(f"┘\n{line}\n")
    assert 1 == headline(decision).count(line)
    assert f"{line.capitalize()}</p>" in review_page(decision, make_example_set("one"))


def test_the_last_lines_of_a_run_are_the_tokens_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    """Plain decoding, the draft that was compared with, and the candidate."""
    print_summary(make_summary(decision=slow(), mlflow="http://m"))
    out = capsys.readouterr().out
    order = ("http://m", "│ plain decoding", "│ base draft", "│ candidate", "speedup of base draft not measurable")
    shown = [out.index(text) for text in order]
    assert sorted(shown) == shown
    assert "x0.87 [0.85, 0.90]" in out.splitlines()[-3]


def test_metrics_have_the_speedup() -> None:
    """Bounds too, and the medians of the three."""
    found = decision_figures(slow())
    assert (0.87, 0.85, 0.9) == (found["speedup"], found["speedup_low"], found["speedup_high"])
    rates = [found[f"tokens_per_second{suffix}"] for suffix in ("_plain", "_before", "")]
    assert [5000, 4500, 4350] == rates


def test_the_record_of_a_run_holds_the_measurement() -> None:
    """`show` prints it without the artifact of the gate."""
    decision = slow()
    found = format_of(BriefDecision).parse(brief(decision), "run r")
    assert (decision.speed, decision.warnings) == (found.speed, found.warnings)
