"""Part 7: EAGLE-3 and Medusa heads of full size: what a round of them costs, how fast they are examined, and their training."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.pair import HeadShape
from pipeline.distillation.trained_head import TrainedHead
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.eagle3_model import Eagle3Model
from pipeline.drafts.made_heads import new_head
from pipeline.drafts.medusa import MedusaDraft
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import Sampling
from pipeline.speculation.target_states import TargetStates
from tests.device.kit.decoding import PROMPT, phases_of
from tests.device.kit.models import Setup, parameters
from tests.device.kit.passes import examination
from tests.device.kit.training import BATCH, Clock, completions, distill, peak_memory

TARGET, GAMMA = "Qwen3-8B", 3
SHAPES = {"eagle3": HeadShape(kind="eagle3"), "medusa": HeadShape(kind="medusa", places=GAMMA)}


def measures(setup: Setup) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    target = list[Any]()
    for kind in SHAPES:
        for name, measure in (("decoding", _decoding), ("examination", _examination), ("training", _training)):
            yield f"{kind}, {name}", lambda kind=kind, measure=measure: measure(setup, _loaded(setup, target), kind)


def _loaded(setup: Setup, target: list[Any]) -> Any:
    if not target:
        target.append(setup.model(TARGET).requires_grad_(False))
    return target[0]


def _head(setup: Setup, target: Any, kind: str, dtype: torch.dtype) -> Any:
    with torch.device(setup.device):
        return new_head(target, SHAPES[kind], 0).to(setup.device, dtype)


def _draft(setup: Setup, target: Any, kind: str) -> Eagle3Draft | MedusaDraft:
    head, states = _head(setup, target, kind, target.dtype), TargetStates(target)
    made = Eagle3Draft if isinstance(head, Eagle3Model) else MedusaDraft
    return made(head, setup.vocabulary(TARGET), states)


def _decoding(setup: Setup, target: Any, kind: str) -> dict[str, Any]:
    """Milliseconds of the phases of a round, beside a plain decode's. An untrained head accepts next to nothing."""
    draft, tokens = _draft(setup, target, kind), setup.size(32, 6)
    found: dict[str, Any] = {"parameters": parameters(draft.model)}
    for gamma in (0, GAMMA):
        decoder = Decoder(
            target, draft if gamma else None, sampling=Sampling(), vocabulary=setup.vocabulary(TARGET), gamma=gamma
        )
        for batch in (1, 8):
            requests = [Request([2 + number] * PROMPT, tokens, number) for number in range(batch)]
            for _ in range(3):  # the last of the passes that a decode records is recorded in its second turn
                decoder.decode(requests)
            found[f"gamma {gamma}, batch {batch}"] = phases_of(decoder.decode(requests))
    return found


def _examination(setup: Setup, target: Any, kind: str) -> dict[str, Any]:
    return examination(setup, _draft(setup, target, kind), TARGET, EvaluateConfig(max_gamma=5))


def _training(setup: Setup, target: Any, kind: str) -> dict[str, Any]:
    """Seconds of a step with the target's pass in it, and peak memory with the target."""
    head = _head(setup, target, kind, torch.float32).requires_grad_(True)
    clock, rows = Clock(setup), completions(setup, TARGET)
    distill(setup, TrainedHead(head, TargetStates(target), GAMMA), TARGET, rows, clock, optimizer="adamw")
    tokens = BATCH * (len(rows[0].prompt) + rows[0].length)
    step = clock.seconds_a_step
    return {"seconds_a_step": step, "tokens_per_second": tokens / step, **peak_memory(setup)}
