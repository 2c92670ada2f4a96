"""Whether a model supports document masking: packed documents in one row that do not attend to each other."""

from typing import Any

import torch

from pipeline.errors import UnderstudyError

_LENGTHS = (5, 7)


@torch.no_grad()
def supports_document_masking(model: Any, vocabulary: int) -> bool:
    """Whether restarting `position_ids` is enough that the second of two packed documents does not depend on the first. It is for
    attention layers; convolutions and recurrent states of hybrid models carry over from one document to the next.

    UnderstudyError for logits that are not finite."""
    first, second = _LENGTHS
    ids_BT = (torch.arange(first + second, device=model.device) * 7 % vocabulary)[None]
    position_ids = torch.cat([torch.arange(length, device=model.device) for length in _LENGTHS])[None]
    was_training = model.training
    model.eval()
    try:
        together = model(input_ids=ids_BT, position_ids=position_ids, use_cache=False).logits[:, first:].float()
        alone = model(input_ids=ids_BT[:, first:], use_cache=False).logits.float()
    except TypeError:  # no `position_ids` argument
        return False
    finally:
        model.train(was_training)
    if not bool(torch.isfinite(alone).all()):
        raise UnderstudyError(
            "the base draft gives NaN or infinite logits: its weights are damaged, or its dtype is too narrow; "
            "check pair.draft.source and pair.draft.dtype"
        )
    largest = float(alone.abs().max())
    return torch.allclose(together, alone, rtol=1e-3, atol=1e-3 * largest)
