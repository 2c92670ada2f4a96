"""Feature matching: the draft's last hidden states learn those of the target, beside a loss on logits."""

from typing import Any

import torch

from pipeline.speculation.teacher_forced import at_positions


def outputs(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the positions to learn at alone: last hidden states (N, H), and logits (N, V)."""
    feed = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    hidden_NH = at_positions(model.model(**feed, use_cache=False).last_hidden_state, batch["predicts"])
    return hidden_NH, model.lm_head(hidden_NH)


class Features(torch.nn.Module):
    """Matching of the target's last hidden states by a linear map of the draft's: 1 - cosine. `taught`: else only the norm by
    which gradients are clipped knows of it, which tells what of a gain is due to clipping."""

    def __init__(self, target: Any, hidden: int, taught: bool) -> None:
        super().__init__()
        self.map = torch.nn.Linear(hidden, target.config.hidden_size, bias=False)
        self._target, self._taught = [target], taught  # in a list: not a part that is trained

    def forward(self, hidden_NH: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            target_NG, _ = outputs(self._target[0], batch)
        return (
            1 - torch.nn.functional.cosine_similarity(self.map(hidden_NH).float(), target_NG.float(), dim=-1)
        ).mean()

    def backward(self, loss: torch.Tensor, beside: torch.Tensor, weights: list[Any], most: float) -> None:
        """Gradients of the loss, with that of the features if they are taught, clipped at `most` by the norm of both together."""
        alone = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        of_features = torch.autograd.grad(beside, weights, allow_unused=True)
        pairs = [
            [torch.zeros_like(weight) if part is None else part for part in both]
            for weight, *both in zip(weights, alone, of_features, strict=True)
        ]
        norm = torch.stack([(one + other).norm() for one, other in pairs]).norm()
        own = set(map(id, self.parameters()))
        for weight, (one, other) in zip(weights, pairs, strict=True):
            weight.grad = (one + other if self._taught or id(weight) in own else one) * (most / (norm + 1e-6)).clamp(
                max=1.0
            )
