"""Errors of measurements stand beside what `understudy latency` prints, through the real command."""

import json
from itertools import product
from pathlib import Path

import pytest

from tests.integration.conftest import Ended, Place


def _latency(place: Place, *arguments: object) -> Ended:
    return place.understudy("latency", *arguments, store=False)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two models of different speed and two datasets of different acceptance, the throughput of the slowest."""
    rows = ["model,dataset,concurrency,k,tpot_ms,acceptance_length,output_tokens"]
    for load, gamma, (model, by), (dataset, rate) in product(
        (1, 8, 32), (0, 2), (("small", 1.0), ("large", 1.6)), (("code", 0.9), ("chat", 0.3))
    ):
        length = 1 + gamma * rate
        step = by * (10 + 0.1 * load) * (1 + 0.1 * gamma)
        rows.append(f"{model},{dataset},{load},{gamma},{step / length},{length},100")
    path = tmp_path / "mixed.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_table_of_two_servers_is_not_predicted_as_one(place: Place, mixed: Path) -> None:
    """`fit` names what differs; every capacity, latency and draft length has both errors beside it, in text, in JSON and for
    an engine."""
    costs = mixed.with_name("costs.json")
    fitted, as_json = (_latency(place, "fit", mixed, "--out", costs, *more) for more in ((), ("--json",)))
    schedule, predicted = (_latency(place, name, "--costs", costs) for name in ("schedule", "predict"))
    engine = _latency(place, "schedule", "--costs", costs, "--engine", "vllm")
    alone = _latency(place, "schedule", "--costs", costs, "--acceptance-rate", 0.5, "--output-tokens", 100)
    figures = json.loads(_latency(place, "predict", "--costs", costs, "--json").out)
    said = "they differ in model, dataset, which `fit` does not use: fit each alone"

    assert said in " ".join(fitted.out.split())
    assert said in " ".join(as_json.err.split())
    for ended in (schedule, predicted):
        assert "off on left-out points, tokens per step" in " ".join(ended.out.split())
    for text in (schedule.out, engine.err):
        assert "can be a slowdown: so at batch size 1 to 32 a draft is not known to be faster" in " ".join(text.split())
    assert "tokens per step" not in alone.out
    assert figures["accuracy"]["left_out_error"] > 0.2 < figures["accuracy"]["tokens_per_step_error"]
    assert "speculation may be unstable from" in " ".join(predicted.out.split())


def test_a_capacity_that_nobody_measured_is_said(place: Place, tmp_path: Path) -> None:
    """At a batch cap above the largest load."""
    path, costs = tmp_path / "sweep.csv", tmp_path / "costs.json"
    rows = [
        f"{load},{gamma},{(10 + 0.05 * load) * (1 + 0.1 * gamma) / (1 + 0.4 * gamma)},{1 + 0.4 * gamma},100"
        for load, gamma in product((1, 4, 16), (0, 2, 4))
    ]
    path.write_text("\n".join(["concurrency,k,tpot_ms,acceptance_length,tokens", *rows]) + "\n")
    _latency(place, "fit", path, "--out", costs)
    inside, beyond = (
        " ".join(_latency(place, "predict", "--costs", costs, "--max-num-seqs", cap).out.split()) for cap in (8, 64)
    )

    assert "is above the largest throughput" not in inside
    assert 2 == beyond.count("is above the largest throughput of the measurements")
