"""From examinations to what is compared: a draft without figures is a type of its own."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.profile_file import NotExamined, ProfileWithCounts, examined
from pipeline.config.gate import GateConfig
from pipeline.errors import BrokenDraft
from pipeline.judgement.evidence import Evidence, Sides, case_of, compare, gather, make_case
from pipeline.judgement.rule_result import RuleResult
from pipeline.judgement.schema import BASELINE, CANDIDATE, LOOKUP, SIDES, Side
from tests.fakes import counted
from tests.profiles import make_profile

COUNTS = [counted(f"p{number}", 60.0 + number) for number in range(4)]
BROKEN: Any = {"headline": None, "greedy": None, "domains": {}, "broken": "another tokenizer"}


def _examinations(*broken: Side) -> dict[Side, ProfileWithCounts | NotExamined]:
    whole, none = ProfileWithCounts(make_profile(COUNTS), CountTable.of(COUNTS)), make_profile(COUNTS, **BROKEN)
    return {side: NotExamined(none, "another tokenizer") if side in broken else whole for side in SIDES[:3]}


def _compared(found: dict[Side, ProfileWithCounts | NotExamined]) -> tuple[Evidence, list[RuleResult]]:
    sides = Sides(
        examinations=found,
        unquantized=found[CANDIDATE],
        times={},
        seen=frozenset(),
        baseline_name="champion",
        is_champion=False,
        gamma=2,
        max_gamma=2,
        convention="vllm",
        confidence=0.95,
    )
    compared = compare(sides, case_of(sides), GateConfig())
    return gather(compared, None), compared.judgement.rules


@pytest.mark.parametrize(
    ("broken", "named", "sides"),
    [
        ((BASELINE,), ["champion"], {CANDIDATE, LOOKUP}),
        ((CANDIDATE,), [CANDIDATE], {BASELINE, LOOKUP}),
        ((CANDIDATE, BASELINE), [CANDIDATE, "champion"], {LOOKUP}),
    ],
)
def test_nothing_is_compared_with_a_draft_that_cannot_be_examined(
    broken: tuple[Side, ...], named: list[str], sides: set[Side]
) -> None:
    """There is no case to apply rules to; the other drafts keep their figures, and there is no gain."""
    evidence, rules = _compared(_examinations(*broken))

    assert make_case(_examinations(*broken), "champion") is None
    assert ["examined"] == [rule.name for rule in rules]
    assert all(f"the {name} cannot be examined: another tokenizer" in rules[0].text for name in named)
    assert sides == evidence.drafts.keys()
    assert evidence.gains is None
    assert make_case(_examinations(), "champion") is not None


@pytest.mark.parametrize(("kind", "compare"), [("plain", True), ("eagle3", False)])
def test_no_gain_is_told_between_rates_of_other_tokens(kind: Any, compare: bool) -> None:
    """A head's rate is over the tokens that its rounds reach."""
    found = _examinations()
    candidate = found[CANDIDATE]
    assert isinstance(candidate, ProfileWithCounts)
    profile = replace(candidate.profile, draft=replace(candidate.profile.draft, kind=kind))
    found[CANDIDATE] = replace(candidate, profile=profile)
    case = make_case(found, "champion")
    evidence, _ = _compared(found)

    assert case is not None
    assert (compare, compare) == (case.round_ratio is None, evidence.gains is not None)


def test_figures_of_such_a_draft_are_asked_for_in_vain() -> None:
    """What cannot do without them says why in one line."""
    with pytest.raises(BrokenDraft, match="the draft cannot be examined: another tokenizer"):
        examined(_examinations(CANDIDATE)[CANDIDATE])
