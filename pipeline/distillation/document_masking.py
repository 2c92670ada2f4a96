"""Whether a model keeps documents apart that share a row of training."""

from typing import Any

import torch

_LENGTHS = (5, 7)


@torch.no_grad()
def supports_document_masking(model: Any, vocabulary: int) -> bool:
    """Whether positions that begin anew are all it takes for the second of two documents in a row to know nothing of the first.
    Attention layers see to that; convolutions and recurrent states, as hybrid models have them, run on from one to the next."""
    first, second = _LENGTHS
    ids_BT = (torch.arange(first + second, device=model.device) * 7 % vocabulary)[None]
    position_ids = torch.cat([torch.arange(length, device=model.device) for length in _LENGTHS])[None]
    was_training = model.training
    model.eval()
    try:
        together = model(input_ids=ids_BT, position_ids=position_ids, use_cache=False).logits[:, first:].float()
        alone = model(input_ids=ids_BT[:, first:], use_cache=False).logits.float()
    except TypeError:  # it takes no positions
        return False
    finally:
        model.train(was_training)
    largest = float(alone.abs().max())
    return torch.allclose(together, alone, rtol=1e-3, atol=1e-3 * largest)
