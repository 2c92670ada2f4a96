"""Charts of the review page."""

from typing import Any

import pytest

from pipeline.judgement.schema import CANDIDATE
from pipeline.review.charts import Charts


@pytest.mark.parametrize("largest", [1.0, 0.0125, 123456.0])
@pytest.mark.parametrize("lines", [1, 7])
def test_labels_and_legend_have_room(largest: float, lines: int) -> None:
    """Nothing is cut off, however wide numbers are and whatever rows a legend has, and curves have most of the room."""
    charts = Charts({CANDIDATE: "Candidate"})
    figure, axes = charts._axes("context length (tokens)", "tokens/s of the replica")
    for number in range(lines):
        axes.plot([0, 100_000], [0, largest * (1 + number)], label=f"γ = {number}")
    charts._svg(figure, axes)
    shown: Any = figure.get_tightbbox()

    assert (True, True) == (shown.x0 >= 0 and shown.y0 >= 0, shown.x1 <= 6.2 and shown.y1 <= 3.2)
    assert axes.get_position().width * axes.get_position().height > 0.45
