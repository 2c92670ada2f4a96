"""What a draft buys at a load."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.acceptance.schema import Figure
from pipeline.judgement.at_load import StatedLoad
from pipeline.judgement.benefit import benefit_at_load
from pipeline.judgement.rule_result import PASS, RuleResult
from pipeline.judgement.schema import CANDIDATE, PLAIN, Benefit
from pipeline.latency.load.closed_loop import closed_loop
from pipeline.latency.load.prediction import predict
from pipeline.registry.run_content import decision_points
from pipeline.review.charts import Charts
from pipeline.review.page import review_page
from tests.decisions import make_decision, make_example_set
from tests.unit.latency.load.test_prediction import WORKLOAD, step_costs_of


def test_latency_is_named_by_its_quantile(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the decision, on its page and in the metrics: those that were asked for, and no other."""
    monkeypatch.setattr("pipeline.review.page._charts", lambda *_: [])
    step_costs = step_costs_of(0.0005)
    load = StatedLoad(step_costs=step_costs, requests_per_second=1.0, max_batch=16, gamma=2, quantiles=[0.5, 0.99])
    benefit = benefit_at_load(WORKLOAD, load)
    (point,) = predict(WORKLOAD, step_costs, np.full(16, 2), [1.0]).points
    figure = Figure(2.5, 2.4, 2.6, 50)
    rule = RuleResult(name="max_latency_seconds:p99", verdict=PASS, text="", figure=figure, threshold=3.0)
    decision = make_decision(benefit=benefit, rules=[rule])
    page = review_page(decision, make_example_set("one"))
    metrics = {name: value for name, value, _ in decision_points(decision)}

    assert point.plain is not None
    seconds = {"p50": point.plain.quantile(0.5), "p99": point.plain.quantile(0.99)}
    assert seconds == benefit.sides[PLAIN].quantile_seconds
    assert [{"p50", "p99"}] * 9 == [{*at.candidate.quantile_seconds} for at in benefit.by_load if at.candidate]
    assert ["mean", "p50", "p99"] == re.findall(r"<th[^>]*>(\w+) latency", page)
    assert f'<td data-label="p99 latency (s)">{seconds["p99"]:.3g}</td>' in page
    assert {"_seconds": 2.5, "_seconds_low": 2.4, "_seconds_high": 2.6} == {
        name.removeprefix("predicted_p99"): value for name, value in metrics.items() if "predicted" in name
    }
    assert 1.0 == metrics["rules/max_latency_seconds/p99"]


LOAD = StatedLoad(
    step_costs=step_costs_of(0.0005), requests_per_second=1.5, max_batch=16, gamma=2, quantiles=[0.95, 0.99]
)
LIMITS = [
    RuleResult(name=f"max_latency_seconds:{name}", verdict=PASS, text="", threshold=seconds)
    for name, seconds in (("p95", 4.0), ("p99", 8.0))
]


def _labels(_: Charts, figure: Any, axes: Any, legend: bool = True) -> str:
    """The entries of a legend in place of a chart."""
    return ", ".join(axes.get_legend_handles_labels()[1])


class Axes(Charts):
    """Gives the axes that were drawn, instead of SVG."""

    def _svg(self, figure: Any, axes: Any, legend: bool = True) -> Any:
        return axes


@pytest.fixture(scope="module")
def found() -> Benefit:
    return benefit_at_load(WORKLOAD, LOAD)


def test_tokens_per_second_are_known_at_each_draft_length(found: Benefit) -> None:
    """Those of a load test with so many requests: of one user and of the replica. The engine's length is among them where it was
    not measured."""
    loop = closed_loop(WORKLOAD, LOAD.step_costs, np.full(16, 2), 16)
    apart = benefit_at_load(WORKLOAD, replace(LOAD, step_costs=fit_without(2)))

    assert 200 == found.output_tokens
    assert [0, 1, 2, 3] == list(found.by_draft_length)
    assert [1, 16] == [found.by_draft_length[2][at].requests for at in (0, -1)]
    assert (loop.each, loop.throughput) == (found.by_draft_length[2][-1].each, found.by_draft_length[2][-1].all)
    assert [0, 1, 2, 3] == list(apart.by_draft_length)


def fit_without(gamma: int) -> Any:
    costs = step_costs_of(0.0005)
    return replace(costs, measured_requests={length: (1, 16) for length in range(4) if length != gamma})


def test_the_chart_has_the_stated_load_and_the_limits(found: Benefit) -> None:
    """A limit is the tokens per second of a request of mean length that takes as long; the load, those that arrive."""
    drawn: Any = Axes({PLAIN: "Plain decoding", CANDIDATE: "x"}).tokens_by_draft_length(found, 200, {"p95 4 s": 4.0})
    lines = {line.get_label(): line for line in drawn.lines}

    assert [(50.0, 300.0)] == [tuple(at) for at in lines["p95 4 s"].get_xydata()]
    assert {"Plain decoding", "γ = 1", "γ = 2", "γ = 3"} < lines.keys()
    assert [(one.each, one.all) for one in found.by_draft_length[3]] == [
        tuple(at) for at in lines["γ = 3"].get_xydata()
    ]
    assert [300.0, 300.0] in [list(line.get_ydata()) for line in drawn.lines]


def test_the_page_has_tokens_per_second_as_a_chart_and_as_a_table(
    monkeypatch: pytest.MonkeyPatch, found: Benefit
) -> None:
    """The caption names a star only where there are limits; a decision of before has neither chart nor table."""
    monkeypatch.setattr(Charts, "_svg", _labels)
    limited, free, old = (
        review_page(make_decision(benefit=one, rules=rules), make_example_set("one"))
        for one, rules in (
            (found, LIMITS),
            (found, []),
            (replace(found, output_tokens=None, by_draft_length={}), LIMITS),
        )
    )
    (last,) = re.findall(r"<div>16</div></th>(.*?)</tr>", limited)
    at = found.by_draft_length[0][-1]

    assert f'<td data-label="Plain decoding">{at.each:.3g} / {at.all:.3g}</td><td data-label="γ = 1">' in last
    assert [(True, True), (True, False), (False, False)] == [
        ("against those of one user" in page, "a star a latency limit" in page) for page in (limited, free, old)
    ]
    assert ("p99 8 s" in limited, "p99 8 s" in free) == (True, False)
    assert "number of requests and draft length" not in old
