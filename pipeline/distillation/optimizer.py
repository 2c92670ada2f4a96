"""Muon for hidden matrices and AdamW for the other parameters, as one optimizer for trainers and schedulers."""

from collections.abc import Callable
from typing import Any

import torch

from pipeline.distillation.muon import BatchedMuon
from pipeline.distillation.trained_head import TrainedHead


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for hidden matrices (orthogonalised momentum, scaled to AdamW's step size, arXiv 2502.16982); AdamW for embeddings,
    head, norms, biases and other parameters. Frozen parameters are left out."""

    def __init__(
        self,
        model: Any,
        learning_rate: float,
        weight_decay: float,
        betas: tuple[float, float],
        newton_schulz_steps: int = 5,
    ) -> None:
        ends = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
        ends += [layer.weight for layer in output_layers(model)]
        trainable = [weight for weight in model.parameters() if weight.requires_grad]
        matrices = [weight for weight in trainable if weight.ndim == 2 and not any(weight is end for end in ends)]
        others = [weight for weight in trainable if not any(weight is matrix for matrix in matrices)]
        self.parts: list[torch.optim.Optimizer] = []
        if matrices:
            self.parts.append(BatchedMuon(matrices, learning_rate, weight_decay, newton_schulz_steps))
        if others:
            self.parts.append(
                torch.optim.AdamW(others, lr=learning_rate, betas=betas, weight_decay=weight_decay, fused=True)
            )
        super().__init__(self._groups(), {"lr": learning_rate})

    def _groups(self) -> list[dict[str, Any]]:
        """The parameter groups of both optimizers (not copies), so that a scheduler changes them directly."""
        return [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = self._groups()


def output_layers(model: Any) -> list[Any]:
    """The layers that give logits; a head has its own, not its target's."""
    if isinstance(model, TrainedHead):
        return model.output_layers
    head = model.get_output_embeddings()
    return [] if head is None else [head]
