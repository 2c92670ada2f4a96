"""What is said of a base draft that had another tokenizer."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.schema import Figure
from pipeline.drafts.token_rows import WAYS, TokenRows
from pipeline.judgement.new_vocabulary import lines, new_vocabulary, table
from pipeline.judgement.schema import NewVocabulary
from tests.decisions import make_decision

FACTS: dict[str, Any] = {
    **dict.fromkeys(WAYS, 0),
    "copied": 2,
    "mapped": 2,
    "padded": 1,
    "map_error": 0.68,
    "output_map_error": None,
    "no_map": "",
    "lost": ["capital letters"],
}
COPIED, CAPITAL, ROLE = 0, 2, 3  # tokens; 2 and 3 are mapped


def _completion(name: str, prompt: list[int], tokens: list[int], length: int, segments: list[int] | None) -> Any:
    return SimpleNamespace(
        id=name,
        prompt=np.array(prompt, np.int32),
        tokens=np.array(tokens, np.int32),
        length=length,
        segments=None if segments is None else np.array(segments, np.uint8),
        segment_names=("answer", "tool_call") if segments else (),
    )


def _found() -> NewVocabulary:
    rows = TokenRows(np.array([0, 0, 2, 2, 5], np.uint8), np.array([0, 0, 1, 0, 0], np.bool_))
    one = _completion("a", [0, 0, 2, 0], [0, 3, 3, 1, 0], 4, [0, 0, 1, 1, 1])
    two = _completion("b", [1], [0], 1, None)
    before = {"a": np.array([1, 0, 0.5, 0.5], np.float16), "b": np.array([0], np.float16)}
    after = {"a": np.array([1, 1, 0.5, 0.5], np.float16)}
    return new_vocabulary(FACTS, rows, {ROLE: "<|x|>"}, [one, two], before, after, Figure(0.376, 0.36, 0.39, 60))


def test_shares_are_of_prompts_and_completions() -> None:
    """The lookahead is no part of them; acceptance is that of the tokens of completions that were examined."""
    found = _found()
    copied, mapped = found.rows["copied"], found.rows["mapped"]

    assert {"copied", "mapped", "padded"} == set(found.rows)
    assert (2, 7 / 10, 2) == (copied.tokens, copied.share, mapped.tokens)
    assert pytest.approx((1.5 / 3, 1.5 / 2, 0.5 / 2, 1.5 / 2)) == (
        copied.acceptance_before, copied.acceptance_after, mapped.acceptance_before, mapped.acceptance_after,
    )  # fmt: skip
    assert 0.1 == found.unwritten


def test_role_tokens_are_reported_by_segment() -> None:
    """Before and after training."""
    roles = _found().roles["<|x|>"]
    assert {"answer": (0.0, 1.0), "tool_call": (0.5, 0.5)} == {
        name: (one.acceptance_before, one.acceptance_after) for name, one in roles.items()
    }


def test_what_is_said_names_how_weak_the_base_was() -> None:
    """Beside the candidate and prompt-lookup; nothing of drafts with the target's tokenizer."""
    decision = replace(make_decision(), new_vocabulary=_found())
    said, rate = " ".join(lines(decision)), decision.drafts["candidate"].acceptance_rate.value

    assert f"an acceptance rate of 0.376 [0.360, 0.390], beside {rate:.3f} of the candidate" in said
    assert any(rule.name == "beats_prompt_lookup" for rule in decision.rules) == ("beats_prompt_lookup" in said)
    assert "Leave-one-out error of the map: 68% of the rows' spread" in said
    assert "cannot write 10.0% of the examined text: it loses capital letters" in said
    assert ("<|x|> in tool_call: no counterpart", "1", "10.0%", "0.50", "0.50") in table(_found())
    assert [] == lines(make_decision())
