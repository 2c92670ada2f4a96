"""What a draft buys at a load."""

import re

import numpy as np

from pipeline.acceptance.schema import Figure
from pipeline.judgement.at_load import StatedLoad
from pipeline.judgement.benefit import benefit_at_load
from pipeline.judgement.rule_result import PASS, RuleResult
from pipeline.judgement.schema import PLAIN
from pipeline.latency.load.prediction import predict
from pipeline.registry.run_content import decision_points
from pipeline.report.page import review_page
from tests.decisions import make_decision, make_example_set
from tests.unit.latency.load.test_prediction import WORKLOAD, step_costs_of


def test_latency_is_named_by_its_quantile() -> None:
    """In the decision, on its page and in the metrics: those that were asked for, and no other."""
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
