"""How often completions of requests with low acceptance are in the training data."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.config.distill import DistillConfig
from pipeline.distillation.low_acceptance import repeat_low_acceptance
from pipeline.distillation.mixing import training_rows
from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion
from tests.fakes import stored_completion


def _logged(rates: Sequence[float | None], domain: str = "code") -> list[StoredCompletion]:
    """A conversation each."""
    return [
        replace(stored_completion([3, 4], [5, 6], name=f"{domain}-{n}", domain=domain), acceptance=rate)
        for n, rate in enumerate(rates)
    ]


LOG = _logged([n / 400 for n in range(400)])


def _copies(rows: Sequence[StoredCompletion], weight: float, seed: int = 0) -> Counter[str]:
    return Counter(item.id for item in repeat_low_acceptance(rows, weight, seed))


@pytest.mark.parametrize("weight", [1.5, 2.0, 3.5, 4.0])
def test_the_lowest_is_drawn_most_and_none_is_left_out(weight: float) -> None:
    """The ratio of the extremes is the weight, and it is linear between them."""
    copies = _copies(LOG, weight)
    assert 400 == len(copies)
    assert math.floor(weight) <= copies["code-0"] <= math.ceil(weight)
    assert 1 == copies["code-399"]
    quarters = [sum(copies[f"code-{n}"] for n in range(begin, begin + 100)) / 100 for begin in (0, 100, 200, 300)]
    expected = [1 + (weight - 1) * part for part in (7 / 8, 5 / 8, 3 / 8, 1 / 8)]
    assert pytest.approx(expected, abs=0.25) == quarters  # 5 standard errors of 100 fractions that are rounded


def test_a_weight_of_one_changes_nothing() -> None:
    """Rows without statistics too."""
    rows = [*LOG, *_logged([None], "fixed")]
    assert rows == repeat_low_acceptance(rows, 1.0, 0)
    assert rows == training_rows(rows, DistillConfig(), 0)


def test_ranks_decide_whatever_the_draft_length() -> None:
    """Rates that fall in another way, as those of longer drafts do, give the same copies."""
    steep = [replace(item, acceptance=(item.acceptance or 0.0) ** 3) for item in LOG]
    assert _copies(LOG, 3.0) == _copies(steep, 3.0)


def test_equal_rates_have_equal_weights() -> None:
    """The mean of the ranks that they share."""
    copies = _copies(_logged([0.5] * 300), 3.0)
    assert {2} == set(copies.values())


def test_rows_without_statistics_keep_their_share() -> None:
    """A fixed slice of prompts is no smaller part of the training than before."""
    copies = _copies([*LOG, *_logged([None] * 400, "fixed")], 4.0)
    of_log, of_fixed = (
        sum(count for name, count in copies.items() if name.startswith(part)) for part in ("code", "fix")
    )
    assert 0.95 < of_log / of_fixed < 1.05  # the standard error is 0.012


def test_the_turns_of_a_conversation_are_repeated_together() -> None:
    """By the mean of their rates; a prompt with several completions counts once."""
    turns = [replace(item, conversation="one") for item in _logged([0.0, 0.9, None], "chat")]
    turns = [turns[0], turns[1], turns[1], turns[2]]
    copies = _copies([*_logged([0.44, 0.46]), *turns], 3.0)
    assert Counter({"code-0": 3, "code-1": 1, "chat-0": 2, "chat-1": 4, "chat-2": 2}) == copies


def test_what_is_repeated_depends_on_the_seed_and_not_on_the_order() -> None:
    """As everything else that a training draws."""
    assert _copies(LOG, 2.5, 1) == _copies(LOG[::-1], 2.5, 1)
    assert _copies(LOG, 2.5, 1) != _copies(LOG, 2.5, 2)


def test_without_any_statistics_it_is_refused() -> None:
    """The setting would change nothing."""
    with pytest.raises(
        UsageError, match=r"low_acceptance_weight: no train prompt has the acceptance of its request; log"
    ):
        repeat_low_acceptance(_logged([None, None]), 2.0, 0)


def test_the_share_of_a_domain_holds() -> None:
    """Within it, low acceptance is drawn more often."""
    rows = [*LOG, *_logged([0.1 + n / 1000 for n in range(400)], "chat")]
    settings = DistillConfig(low_acceptance_weight=4.0, domain_shares={"chat": 0.3, "code": 0.7})
    drawn = training_rows(rows, settings, 0)
    domains = Counter(item.domain for item in drawn)
    low = sum(item.domain == "code" and (item.acceptance or 0) < 0.5 for item in drawn)
    assert pytest.approx(0.3, abs=0.01) == domains["chat"] / domains.total()
    assert 0.6 < low / domains["code"]
