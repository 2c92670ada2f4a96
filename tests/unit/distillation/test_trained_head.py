"""The loss of a head: that of each place from every start of a round, as the examination sees it."""

from typing import Any

import numpy as np
import pytest
import torch

from pipeline.distillation.dataset import PackedCompletions
from pipeline.distillation.losses import cross_entropy
from pipeline.distillation.trained_head import TrainedHead
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.medusa import MedusaDraft
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import stored_completion, tiny_llama
from tests.heads import eagle3_draft, medusa_draft

VOCABULARY, STEPS = 24, 3


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0, vocabulary=VOCABULARY, hidden=32, layers=4)


@pytest.mark.parametrize(
    "kind", ["eagle3", "eagle3 with norms fed back", "eagle3 of a part of the vocabulary", "medusa"]
)
def test_the_loss_is_minus_log_q_of_the_examination(target: Any, kind: str) -> None:
    """Cross-entropy on three completions of unequal lengths: the mean of -log q over the tokens of each place, where the place is
    within the completion, and over places."""
    draft: Eagle3Draft | MedusaDraft = (
        medusa_draft(target, heads=STEPS)
        if kind == "medusa"
        else eagle3_draft(target, layers=2, norm_output="fed back" in kind, kept=15 if "part" in kind else None)
    )
    generator = np.random.default_rng(2)
    sizes = [(4, 7), (2, 3), (9, 5)]
    items = [
        stored_completion(generator.integers(0, VOCABULARY, prompt), generator.integers(0, VOCABULARY, tokens))
        for prompt, tokens in sizes
    ]
    batch = PaddedBatch(items)
    found = draft.examine(batch, Sampling(), STEPS, draft.states.features(batch, draft.layers))
    count = sum(len(item.tokens) for item in items)
    expected = 0.0
    for values_SP, item in zip(found.values, items, strict=True):
        for place in range(STEPS):
            some_S = values_SP[: max(len(item.tokens) - place, 0), place]
            expected -= some_S[np.isfinite(some_S)].sum() / count  # a token that the head does not have has no loss
    documents = PackedCompletions(items, together=False)
    inputs = documents.collate([{"row": row} for row in range(len(items))])
    tokens_N = inputs["tokens"]

    def loss_of(logits_nV: torch.Tensor, where: slice, counts_n: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits_nV, tokens_N[where])

    head = TrainedHead(draft.model, draft.states, STEPS)
    loss = head.loss(inputs, VOCABULARY, loss_of)
    assert float(loss) == pytest.approx(expected / STEPS, rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    learnt = {name: weight.grad for name, weight in head.named_parameters() if weight.requires_grad}
    assert learnt
    assert [] == [name for name, grad in learnt.items() if grad is None or not bool(grad.abs().sum() > 0)]
    assert all(weight.grad is None for weight in target.parameters())
