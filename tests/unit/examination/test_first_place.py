"""A head that does not read what it was trained on is told from one that does, without a text of the traffic."""

from typing import Any

import numpy as np
import pytest
import torch

from pipeline.examination.first_place import note_at_chance
from pipeline.speculation.drafter import DraftScores
from pipeline.speculation.hidden_states import NORMED
from pipeline.speculation.settings import Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import tiny_llama
from tests.heads import eagle3_draft, medusa_draft


@pytest.fixture(scope="module")
def target() -> Any:
    """One whose likeliest token is likely."""
    model = tiny_llama(32, layers=4, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.mul_(8)
    return model


@pytest.mark.parametrize("make", [eagle3_draft, medusa_draft])
def test_a_head_of_another_target_is_at_chance(target: Any, make: Any) -> None:
    """Its output layer is of other tokens. The seeds are fixed; of such heads one in a hundred would pass."""
    draft = make(target)
    for layer in [draft.model.lm_head] if hasattr(draft.model, "lm_head") else draft.model.lm_heads:
        layer.weight.data.copy_(layer.weight.flip(0))
    note = note_at_chance(draft, 32)
    assert note is not None
    assert "the head is at chance: the mean log q of its first tokens" in note


class _Knowing:
    """Drafts what the target does, from the state of the token before; a real head has only earlier ones."""

    layers = (NORMED,)

    def __init__(self, target: Any) -> None:
        self.states = TargetStates(target)

    @torch.inference_mode()
    def examine(self, batch: PaddedBatch, sampling: Sampling, gamma: int, features: Any) -> DraftScores:
        found = []
        for states_TH, row in zip(features[NORMED], batch.rows, strict=True):
            before = len(row.prompt) - 1
            logits_NV = self.states.target.lm_head(states_TH[before : before + len(row.tokens)])
            log_q_NV = logits_NV.log_softmax(-1).numpy()
            found.append(log_q_NV[np.arange(len(row.tokens)), row.tokens][:, None])
        return DraftScores(found, hits=False)


def test_a_head_that_reads_its_states_is_not(target: Any) -> None:
    draft: Any = _Knowing(target)
    assert note_at_chance(draft, 32) is None
