"""The output layer of a model, where its logits are nothing but that layer applied to the last hidden state: then logits can be
computed for a few positions at a time."""

from typing import Any

import torch
from torch import nn

from pipeline.models.placement import input_device

_CHECK_TOKENS = 16  # tokens on which head and model must agree


@torch.no_grad()
def output_head(model: Any) -> nn.Module | None:
    """The output layer, which maps hidden states (..., H) to logits (..., V), if the model's logits are exactly that layer
    applied to the last hidden state of `model.get_decoder()`; otherwise None."""
    config = getattr(model, "config", None)
    # Soft-capping and scaling are visible only in large logits, so the comparison below would miss them.
    if any(getattr(config, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")):
        return None
    if not hasattr(model, "get_decoder") or not hasattr(model, "get_output_embeddings"):
        return None
    head, decoder = model.get_output_embeddings(), model.get_decoder()
    if decoder is model or not isinstance(head, nn.Module):
        return None
    ids_BT = torch.arange(min(_CHECK_TOKENS, model.get_input_embeddings().num_embeddings), device=input_device(model))[
        None
    ]
    was_training = model.training
    model.eval()
    own = model(input_ids=ids_BT, use_cache=False).logits.float()
    ours = head(decoder(input_ids=ids_BT, use_cache=False).last_hidden_state).float().to(own.device)
    model.train(was_training)
    if own.shape != ours.shape or not bool(torch.isfinite(own).all()):  # NaN weights: readers of the logits report it
        return None
    return head if torch.allclose(own, ours, rtol=1e-4, atol=1e-4 * float(own.abs().max())) else None


def linear_head(model: Any) -> nn.Linear | None:
    """`output_head`, if it is a plain linear layer, whose weights a loss may use."""
    head = output_head(model)
    return head if type(head) is nn.Linear else None
