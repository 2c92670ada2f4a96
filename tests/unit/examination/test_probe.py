"""When a probe says that a draft pays."""

import pytest

from pipeline.acceptance.schema import Figure
from pipeline.examination.probe import _pays


@pytest.mark.parametrize(
    ("low", "high", "prompts", "conversations", "pays"),
    [
        (1.01, 1.2, 40, None, True),
        (1.0, 1.2, 40, None, None),
        (0.8, 0.99, 40, None, False),
        (0.8, 1.0, 40, None, None),
        (1.01, 1.2, 39, None, None),
        (1.01, 1.2, 80, 39, None),
        (1.01, 1.2, 80, 40, True),
        (None, None, 80, None, None),
    ],
)
def test_a_verdict_needs_bounds_on_one_side_and_enough_conversations(
    low: float | None, high: float | None, prompts: int, conversations: int | None, pays: bool | None
) -> None:
    assert _pays(Figure(1.0, low, high, prompts, conversations)) is pays
