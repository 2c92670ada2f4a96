"""When a probe says that a draft pays."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.acceptance.schema import Figure
from pipeline.examination import probe
from pipeline.examination.probe import _pays
from pipeline.latency.costs.speedup import ForwardTimes, from_cost_ratio


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


def test_drafts_of_equal_shape_have_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal drafts had two speedups, as far apart as two measurements are."""
    measured: list[str] = []

    def times(pair: Any, draft: str, cost_ratio: float | None) -> list[ForwardTimes]:
        measured.append(draft)
        return [from_cost_ratio(0.1 * len(measured), 16)]

    monkeypatch.setattr(probe, "_times", times)
    drafts = {name: SimpleNamespace(model=name) for name in ("one", "two", "other", "unknown")}
    pair: Any = SimpleNamespace(drafts=drafts, shapes={"one": "s", "two": "s", "other": "t"})
    found = probe._times_by_draft(pair, drafts, None)
    assert ["one", "other", "unknown"] == measured
    assert found["one"] is found["two"]
    assert found["one"] != found["other"]
