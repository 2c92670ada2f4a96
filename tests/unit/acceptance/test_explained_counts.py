"""Counts of an engine at temperature 0 are those of a draft, up to near-ties and what lies past the end."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.acceptance.explained_counts import Drafted, DraftingRule, Explanation, counts_of, explain
from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds
from pipeline.engines.counts import Counts


def drafted(choices: str | Sequence[bool], *ties: int) -> Drafted:
    """`x`: the argmax is the token. `ties`: near-ties at these positions."""
    is_argmax_N = np.array([one in ("x", True) for one in choices])
    return Drafted(is_argmax_N, np.isin(np.arange(len(choices)), ties))


def simulated(choices: list[bool], past: list[bool], gamma: int, limit: int | None) -> Counts:
    """What an engine counts that emits these tokens, whose draft agrees with those past the end as `past` says."""
    agrees, position, drafts, tokens, accepted = [*choices, *past], 1, 0, 0, 0
    while position < len(choices):
        block = gamma if limit is None else min(gamma, limit - position - 1)
        taken = 0
        while taken < block and agrees[position + taken]:
            taken += 1
        drafts, tokens, accepted = drafts + (block > 0), tokens + block, accepted + taken
        position += taken + 1
    return Counts(drafts=float(drafts), draft_tokens=float(tokens), accepted=float(accepted))


@given(st.data())
def test_the_counts_of_the_draft_itself_need_no_explanation(data: st.DataObject) -> None:
    """Whatever lies past the end, vLLM's rounds and llama.cpp's; and they lie between the least and the most."""
    choices = data.draw(st.lists(st.booleans(), min_size=2, max_size=24))
    gamma = data.draw(st.integers(1, 6))
    past = data.draw(st.lists(st.booleans(), min_size=gamma, max_size=gamma))
    limit = data.draw(st.sampled_from([None, len(choices), len(choices) + 3]))
    counted = simulated(choices, past, gamma, limit)
    found = drafted(choices)
    rounds = DraftingRule(gamma, limit)
    assert Explanation() == explain(found, rounds, counted)
    least, most = counts_of(found, rounds)
    for name in ("drafts", "draft_tokens", "accepted"):
        assert getattr(least, name) <= getattr(counted, name) <= getattr(most, name)
    assert least.drafts == most.drafts == counted.drafts


@given(st.lists(st.booleans(), min_size=2, max_size=24), st.integers(1, 6))
def test_the_rounds_are_those_of_the_examination(choices: list[bool], gamma: int) -> None:
    """`expected_rounds` in vLLM's convention, with nothing accepted past the end, counts the least."""
    padded_BT = np.array([[*map(float, choices), *([0.0] * gamma)]])
    expected = expected_rounds(padded_BT, np.array([len(choices)]), gamma, CONVENTIONS["vllm"])
    least, _ = counts_of(drafted(choices), DraftingRule(gamma))
    assert (least.drafts, least.draft_tokens, least.accepted) == (
        expected.rounds_B[0],
        expected.proposed_B[0],
        expected.accepted_BG.sum(),
    )


def test_a_near_tie_explains_other_counts() -> None:
    """The draft could have chosen the emitted token at position 2: then both rounds have two accepted tokens."""
    counted = Counts(drafts=2, draft_tokens=4, accepted=4)
    assert Explanation(ties=(2,)) == explain(drafted("xx.xx", 2), DraftingRule(2), counted)


def test_choices_beyond_ties_are_listed_and_as_few_as_can_be() -> None:
    """Without a near-tie, another draft is needed."""
    found = explain(drafted("xx.xx"), DraftingRule(2), Counts(drafts=2, draft_tokens=4, accepted=4))
    assert Explanation(beyond=(2,)) == found


def test_impossible_counts_have_no_explanation() -> None:
    """Six tokens cannot come from one round of two."""
    assert explain(drafted("xxxxxx"), DraftingRule(2), Counts(drafts=1, draft_tokens=2, accepted=2)) is None


@pytest.mark.parametrize(
    ("counted", "same"),
    [
        (Counts(draft_tokens=4, accepted=3), True),
        (Counts(draft_tokens=4, accepted=2), False),
        (Counts(draft_tokens=5, accepted=3), False),
    ],
)
def test_counts_that_an_engine_does_not_give_are_not_compared(counted: Counts, same: bool) -> None:
    """llama.cpp gives no number of drafts, and drafts no further than the request may go."""
    found = explain(drafted("xxx.xx"), DraftingRule(3, limit=6), counted)
    assert same == (found == Explanation())


def test_a_completion_of_one_token_has_no_round() -> None:
    """The prefill emits it."""
    assert (Counts(drafts=0, draft_tokens=0, accepted=0),) * 2 == counts_of(drafted("x"), DraftingRule(5))


def test_near_ties_widen_what_may_be_counted() -> None:
    """Of counters, where no request is told from another."""
    least, most = counts_of(drafted("x..x"), DraftingRule(2))
    assert (3, 3) == (least.drafts, most.drafts)
    least, most = counts_of(drafted("x..x", 1, 2), DraftingRule(2), ties=True)
    assert (1, 3, 3) == (least.drafts, most.drafts, most.accepted)


@given(st.data())
def test_choices_may_depend_on_the_start_of_the_round(data: st.DataObject) -> None:
    """A head's counts are those of `expected_rounds` on a[start, place], with nothing accepted past the end; a plain draft's are
    the same in either form."""
    length, gamma = data.draw(st.integers(2, 16)), data.draw(st.integers(1, 4))
    hits_NP = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=gamma, max_size=gamma), min_size=length, max_size=length))
    )
    found = Drafted(hits_NP, np.zeros_like(hits_NP))
    least, _ = counts_of(found, DraftingRule(gamma))
    by_token_TP = np.zeros((length + gamma, gamma))
    for start, place in np.ndindex(length, gamma):
        by_token_TP[start + place, place] = float(hits_NP[start, place] and start + place < length)
    expected = expected_rounds(by_token_TP[None], np.array([length]), gamma, CONVENTIONS["vllm"])
    assert (least.drafts, least.accepted) == (expected.rounds_B[0], expected.accepted_BG.sum())
    assert Explanation() == explain(found, DraftingRule(gamma), least)
    choices = hits_NP[:, 0]
    same_NP = np.array([[choices[min(start + place, length - 1)] for place in range(gamma)] for start in range(length)])
    by_start = Drafted(same_NP, np.zeros_like(same_NP))
    assert counts_of(by_start, DraftingRule(gamma)) == counts_of(drafted(choices.tolist()), DraftingRule(gamma))
