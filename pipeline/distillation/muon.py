"""Muon for hidden matrices, with batched orthogonalisation for many small ones, and AdamW for the other parameters: one optimizer
for trainers and schedulers."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from pipeline.distillation.processes import count, one_each
from pipeline.distillation.sharding import is_part, part, whole
from pipeline.distillation.trained_head import TrainedHead
from pipeline.models.devices import supports_bf16

_AT_ONCE = 1 << 24  # elements orthogonalised in one batch: small matrices get faster, large ones only need memory


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
        return [group for optimizer in self.parts for group in optimizer.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for optimizer in self.parts:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [optimizer.state_dict() for optimizer in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for optimizer, state in zip(self.parts, state_dict["parts"], strict=True):
            optimizer.load_state_dict(state)
        self.param_groups = self._groups()


def output_layers(model: Any) -> list[Any]:
    """The layers that give logits; a head has its own, not its target's."""
    if isinstance(model, TrainedHead):
        return model.output_layers
    head = model.get_output_embeddings()
    return [] if head is None else [head]


class BatchedMuon(torch.optim.Muon):
    """torch's Muon at AdamW's step size (arXiv 2502.16982), with matrices of equal shape orthogonalised in one batch. One by one,
    the fifteen matmuls of each small matrix are mostly overhead and take three times as long.

    Of a divided model the momentum is divided too, and whole only in batches that are worked on: each process orthogonalises one,
    and sends the others what comes of it."""

    def __init__(self, matrices: list[torch.Tensor], lr: float, weight_decay: float, ns_steps: int) -> None:
        super().__init__(matrices, lr=lr, weight_decay=weight_decay, ns_steps=ns_steps, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            trainable = [weight for weight in group["params"] if weight.grad is not None]
            for some, updates in self._orthogonalised(list(_by_shape(trainable)), group):
                for weight, update in zip(some, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(part(update, weight), alpha=-group["lr"] * 0.2 * max(weight.shape) ** 0.5)
        return loss

    def _orthogonalised(
        self, batches: list[list[torch.Tensor]], group: dict[str, Any]
    ) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        """Batches of weights with their whole updates."""
        at_once = count() if any(is_part(weight) for some in batches for weight in some) else 1
        for begin in range(0, len(batches), at_once):
            several = batches[begin : begin + at_once]
            updates = [[whole(self._momentum(weight, group)) for weight in some] for some in several]
            if at_once == 1:
                yield several[0], _orthogonal(updates[0], group)
            else:
                yield from zip(several, one_each(updates, lambda some: _orthogonal(some, group)), strict=True)

    def _momentum(self, weight: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        """Nesterov momentum."""
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight.grad)
        kept = state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
        return weight.grad.lerp(kept, group["momentum"])


def _by_shape(weights: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Batches of weights of equal shape, up to transposition."""
    shapes: dict[Any, list[torch.Tensor]] = {}
    for weight in weights:
        shapes.setdefault((*sorted(weight.shape), weight.device), []).append(weight)
    for some in shapes.values():
        count = max(1, _AT_ONCE // some[0].numel())
        yield from (some[begin : begin + count] for begin in range(0, len(some), count))


def _orthogonal(updates: list[torch.Tensor], group: dict[str, Any]) -> list[torch.Tensor]:
    """Newton-Schulz iterations, in bfloat16 as in torch.optim.Muon; in float32 on a device without bfloat16 units."""
    dtype = torch.bfloat16 if supports_bf16(updates[0].device) else torch.float32
    tall = [update.shape[0] > update.shape[1] for update in updates]
    flat = torch.stack([update.mT if turned else update for update, turned in zip(updates, tall, strict=True)]).to(
        dtype
    )
    flat /= flat.flatten(1).norm(dim=1).clamp(min=group["eps"])[:, None, None]
    a, b, c = group["ns_coefficients"]
    for _ in range(group["ns_steps"]):
        gram = flat @ flat.mT
        flat = torch.baddbmm(flat, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), flat, beta=a)
    return [update.mT if turned else update for update, turned in zip(flat, tall, strict=True)]
