"""Heads on hidden states: the CPU's rounds, examinations and weights, and waits that do not grow with the block."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.distillation.trained_head import TrainedHead
from pipeline.distillation.trainer import distill
from pipeline.distillation.weighted_completions import WeightedCompletions
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.medusa import MedusaDraft
from pipeline.examination.examiner import AcceptanceSummary
from pipeline.speculation.batch import Request, Round
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.device.on_device import APART, DEVICE, there, waits
from tests.fakes import quiet, stored_completion, tiny_llama, tiny_tokenizer
from tests.heads import eagle3_draft, medusa_draft
from tests.integration.trained import SETTINGS, rows_of

VOCABULARY, GAMMA = 32, 3
Head = Eagle3Draft | MedusaDraft

HEADS: dict[str, Callable[[Any], Head]] = {
    "eagle3": eagle3_draft,
    "part of the vocabulary, a window": lambda target: eagle3_draft(target, "qwen3", 2, kept=15, window=5),
    "medusa": medusa_draft,
}


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0, vocabulary=VOCABULARY, hidden=32, layers=4)


@pytest.fixture(params=HEADS, scope="module")
def heads(request: pytest.FixtureRequest, target: Any) -> tuple[Head, Head]:
    return _both(target, request.param)


def _both(target: Any, kind: str) -> tuple[Head, Head]:
    """Here and there."""
    head, moved = HEADS[kind](target), there(target)
    return head, type(head)(there(head.model), VOCABULARY, TargetStates(moved))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
def test_a_head_decodes_as_on_the_cpu(heads: tuple[Head, Head], sampling: Sampling) -> None:
    """A ragged batch: tokens, rounds and accepted tokens. The host waits once a round, and for the prompts."""
    generator = np.random.default_rng(0)
    requests = [
        Request(generator.integers(0, VOCABULARY, size).tolist(), 30, size, domain="code") for size in (2, 9, 30, 5)
    ]
    found, rounds = [], list[Round]()
    for head in heads:
        decoder = Decoder(head.states.target, head, sampling=sampling, vocabulary=VOCABULARY, gamma=GAMMA)
        with waits() as waited:
            rounds.clear()
            found.append(decoder.decode(requests, rounds.append))

    assert found[0] == found[1]
    assert sum(map(sum, (one.accepted for one in found[1]))) > 0
    assert waited.total <= len(rounds) + 4, waited


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.7)], ids=["greedy", "sampled"])
def test_a_head_is_examined_as_on_the_cpu(heads: tuple[Head, Head], sampling: Sampling) -> None:
    generator = np.random.default_rng(1)
    items = [
        stored_completion(
            generator.integers(0, VOCABULARY, size).tolist(), generator.integers(0, VOCABULARY, 12).tolist()
        )
        for size in (1, 4, 9)
    ]
    batch = PaddedBatch(items)
    here, over_there = (
        head.examine(batch, sampling, GAMMA, head.states.features(batch, head.layers)) for head in heads
    )
    assert here.hits == over_there.hits
    for one, other in zip(here.values, over_there.values, strict=True):
        # norms and attention are computed in fp32
        np.testing.assert_allclose(other.astype(float), one.astype(float), atol=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_trained_as_on_the_cpu(target: Any, tmp_path: Path, kind: str, optimizer: Any) -> None:
    heads = _both(target, kind)
    logs = [_trained(head, tmp_path / name, optimizer) for head, name in zip(heads, ("here", "there"), strict=True)]
    assert {DEVICE} == {weight.device for weight in heads[1].model.parameters()}
    assert logs[1] == pytest.approx(logs[0], rel=APART)


def _trained(head: Head, work: Path, optimizer: Any) -> list[float]:
    """The losses of a few steps."""
    model = copy.deepcopy(head.model).float().requires_grad_(True)
    states = TargetStates(copy.deepcopy(head.states.target).float().requires_grad_(False))
    log = distill(
        TrainedHead(model, states, GAMMA),
        tiny_tokenizer(),
        WeightedCompletions(rows_of(7), VOCABULARY),
        SETTINGS.model_copy(update={"optimizer": optimizer, "max_steps": 4, "evaluate_every": 4}),
        seed=0,
        work=work,
        examine=lambda model: AcceptanceSummary(0.5, 1.0),
        progress=quiet(),
    )
    return [entry["loss"] for entry in log if "loss" in entry]
