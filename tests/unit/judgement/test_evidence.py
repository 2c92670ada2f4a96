"""From examinations to what is compared: a draft without figures is a type of its own."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.profile_file import Examination, NotExamined, examined
from pipeline.errors import BrokenDraft
from pipeline.judgement.evidence import counts_of, gather, make_case, reasons_not_examined
from pipeline.judgement.schema import BASELINE, CANDIDATE, LOOKUP, SIDES, Side
from tests.fakes import counted
from tests.profiles import make_profile

COUNTS = [counted(f"p{number}", 60.0 + number) for number in range(4)]
BROKEN: Any = {"headline": None, "greedy": None, "domains": {}, "broken": "another tokenizer"}


def _examinations(*broken: Side) -> dict[Side, Examination | NotExamined]:
    whole, none = Examination(make_profile(COUNTS), CountTable.of(COUNTS)), make_profile(COUNTS, **BROKEN)
    return {side: NotExamined(none, "another tokenizer") if side in broken else whole for side in SIDES[:3]}


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
    found = _examinations(*broken)
    evidence = gather(
        {side: one.profile for side, one in found.items()},
        counts_of(found),
        None,
        None,
        is_champion=False,
        gamma=2,
        confidence=0.95,
    )

    assert make_case(found, "champion") is None
    assert dict.fromkeys(named, "another tokenizer") == reasons_not_examined(found, "champion")
    assert sides == evidence.drafts.keys()
    assert evidence.gains is None
    assert make_case(_examinations(), "champion") is not None


@pytest.mark.parametrize(("kind", "compare"), [("plain", True), ("eagle3", False)])
def test_no_gain_is_told_between_rates_of_other_tokens(kind: Any, compare: bool) -> None:
    """A head's rate is over the tokens that its rounds reach."""
    found = _examinations()
    candidate = found[CANDIDATE]
    assert isinstance(candidate, Examination)
    profile = replace(candidate.profile, draft=replace(candidate.profile.draft, kind=kind))
    found[CANDIDATE] = replace(candidate, profile=profile)
    case = make_case(found, "champion")
    profiles = {side: one.profile for side, one in found.items()}
    evidence = gather(profiles, counts_of(found), None, None, is_champion=False, gamma=2, confidence=0.95)

    assert case is not None
    assert (compare, compare) == (case.round_ratio is None, evidence.gains is not None)


def test_figures_of_such_a_draft_are_asked_for_in_vain() -> None:
    """What cannot do without them says why in one line."""
    with pytest.raises(BrokenDraft, match="the draft cannot be examined: another tokenizer"):
        examined(_examinations(CANDIDATE)[CANDIDATE])
