"""Variants of the candidate at a stated load, from the command line: examined on dev, chosen, compared, promoted."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.measurements import Measurement
from tests.integration.conftest import SMOKE, Place
from tests.step_costs import write_step_costs

FAST, SLOW = 0.001, 0.004  # seconds of a draft's pass; a target's takes 10 ms
LOAD = "gate.load={requests_per_second: 2, max_batch: 4, context: 64}"


@pytest.fixture
def profiles(tmp_path: Path) -> str:
    """The int4 draft's passes take a quarter of the others'."""
    variants = {"unquantized": SLOW, "int8": SLOW, "int4": FAST}
    return json.dumps(
        {variant: str(write_step_costs(tmp_path / f"{variant}.json", draft)) for variant, draft in variants.items()}
    )


def _run(loop: Place, profiles: str, *further: str) -> Any:
    given = [part for one in (LOAD, f"gate.profile={profiles}", *further) for part in ("--set", one)]
    return loop.understudy("run", SMOKE, *given, "--run", "variants", "--set", "promote.target_name=other")


def test_the_form_that_serves_the_load_best_is_promoted(
    loop: Place, profiles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen on dev, passes every rule on the examination and is registered; a second run finds it is the champion."""
    rules = ("gate.min_speedup=1.2", "gate.max_latency_seconds={p97.5: 4}", "gate.max_memory_megabytes=10")
    ended = _run(loop, profiles, *rules)
    assert 0 == ended.code, ended.err
    decision = loop.record("variants")["decision"]
    verdicts = {one["name"]: one["verdict"] for one in decision["variants"]}
    manifest = json.loads((loop.artifact("quantize/int4", "variants") / "manifest.json").read_text())

    assert {"unquantized": "slower", "int8": "slower", "int4": "chosen"} == verdicts
    assert ("int4", manifest["provides"]["draft"]) == (decision["variant"], decision["candidate"])
    assert {"min_speedup", "max_latency_seconds:p97.5", "max_memory_megabytes"} <= {
        one["name"] for one in decision["rules"]
    }
    plots = [loop.artifact("gate", "variants") / name for name in ("latency.png", "draft_lengths.png")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots)
    tags = loop.registry()["other-draft"]["versions"]["1"]
    assert ("int4", manifest["provides"]["draft"]) == (tags["quantization"], tags["understudy.digest"])
    assert "chosen  int4" in ended.out
    assert "│ dev" not in ended.out  # people are shown the examination

    monkeypatch.setattr("pipeline.review.at_load.plot_at_load", lambda *_: None)  # they were plotted
    again = loop.understudy(
        "run", SMOKE, "--set", LOAD, "--set", f"gate.profile={profiles}", "--set", "promote.target_name=other"
    )
    assert 0 == again.code, again.err
    assert "decision: already champion" in again.out


def test_a_profile_must_reach_the_draft_length(loop: Place, profiles: str) -> None:
    """A profile that does not cover evaluate.gamma is an error."""
    ended = loop.understudy(
        "run", SMOKE, "--set", LOAD, "--set", f"gate.profile={profiles}", "--set", "evaluate.gamma=6"
    )

    assert 2 == ended.code
    assert "measured up to draft length 5, and evaluate.gamma is 6" in ended.complaint


def test_a_speedup_needs_plain_decoding(loop: Place, tmp_path: Path) -> None:
    """A speedup rule needs step times of plain decoding."""
    rows = [
        Measurement(
            where="",
            requests=n,
            gamma=gamma,
            tokens_per_step=1.0,
            step_seconds=0.01 + 0.001 * gamma * n,
            isolated=True,
        )
        for n in (1, 4)
        for gamma in (1, 3, 5)
    ]
    (tmp_path / "costs.json").write_text(json.dumps(fit_measurements(rows).json()))
    given = ("--set", LOAD, "--set", f"gate.profile={tmp_path / 'costs.json'}")
    ended = loop.understudy("run", SMOKE, *given, "--set", "gate.min_speedup=1.2")

    assert 2 == ended.code
    assert "has no row with draft length 0" in ended.complaint


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["gate.min_speedup=1.2"], "min_speedup needs a prediction: set gate.load and gate.profile too"),
        (["gate.max_memory_megabytes=1"], "depends on batch and context: set gate.load too"),
        ([LOAD, "gate.profile={int4: p.json}", "quantize.variants=[]"], "gate.profile.int4: this variant is not made"),
        ([LOAD, "gate.profile={int4: p.json}", "quantize.engine=llama.cpp"], "what llama.cpp loads"),
        ([LOAD, "gate.profile=nowhere.json"], "gate.profile.unquantized: "),
        ([LOAD, f"gate.profile={SMOKE}"], "not valid JSON"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(loop: Place, settings: list[str], complaint: str) -> None:
    """Before anything runs, exit 2."""
    ended = loop.understudy("run", SMOKE, *(part for one in settings for part in ("--set", one)))

    assert 2 == ended.code
    assert complaint in ended.complaint


def test_an_engine_that_loads_no_variant_gets_none(loop: Place) -> None:
    """No variant is made, and the unquantized draft is compared."""
    ended = loop.understudy("run", SMOKE, "--dry-run", "--set", "quantize.engine=tensorrt-llm")

    assert 0 == ended.code
    assert "distill" in ended.out
    assert "quantize" not in ended.out


def test_a_variant_that_lost_is_trained_through_its_rounding(loop: Place) -> None:
    """A variant that lost more than the limit on dev is trained again, and the better of the two is kept."""
    recovery = (
        "--set",
        "quantize.recovery={max_acceptance_loss: 0, max_steps: 20}",
        "--set",
        "quantize.variants=[int4]",
    )
    ended = loop.understudy("run", SMOKE, *recovery, "--until", "quantize", "--run", "recovered")
    assert 0 == ended.code, ended.err
    artifact = loop.artifact("quantize/int4", "recovered")
    figures = json.loads((artifact / "manifest.json").read_text())["figures"]
    before = json.loads((loop.artifact("quantize/int4") / "manifest.json").read_text())["figures"]

    assert (
        before["dev_acceptance_rate_quantized"]
        == figures["dev_acceptance_rate_quantized"]
        < figures["dev_acceptance_rate_before"]
    )
    assert figures["dev_acceptance_rate"] == max(
        figures["dev_acceptance_rate_quantized"], figures["dev_acceptance_rate_recovered"]
    )
    assert "dev_acceptance_rate_recovered" not in before
    assert ["draft"] == sorted(path.name for path in artifact.iterdir() if path.is_dir())
    assert f"after recovery {figures['dev_acceptance_rate_recovered']:.3f}" in ended.err
