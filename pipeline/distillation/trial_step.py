"""One step of a training, without an optimizer, before anything is paid: whether gradients reach the weights of a draft."""

from pathlib import Path
from typing import Any

import torch

from pipeline.errors import UnderstudyError
from pipeline.models.built import empty_model
from pipeline.models.out_of_memory import is_out_of_memory
from pipeline.models.placement import input_device

_TOKENS = 8
_MOST_BYTES = (
    2 << 30
)  # of a model for which memory for gradients is taken; of a larger one, a step without numbers is made


def prove_training(model: Any, path: Path, trust_remote_code: bool, what: str) -> None:
    """UnderstudyError where the loss of the model, which was loaded from `path`, has no gradient, or one that is not finite. The
    model is left as it was."""
    is_large = sum(weight.nbytes for weight in model.parameters()) > _MOST_BYTES
    if is_large:
        model = empty_model(path, trust_remote_code)
    was_training = model.training
    try:
        reached = _step(model.train())
    except Exception as error:  # a model's own code may raise anything
        if is_large or is_out_of_memory(error):
            return  # not known: some models decide by numbers, and batches of a training are made smaller where they do not fit
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UnderstudyError(
            f"{what}: a step of training fails: {type(error).__name__}: {reason}; use another draft"
        ) from error
    finally:
        model.zero_grad(set_to_none=True)
        model.train(was_training)
    if not reached:
        raise UnderstudyError(
            f"{what}: its loss has no finite gradient, so it cannot be trained; use another draft, or pair.dtype"
        )


def _step(model: Any) -> bool:
    """Whether the gradients are there, and finite."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():  # dropout draws numbers
        device = model.device if model.device.type == "meta" else input_device(model)
        ids_BT = torch.arange(min(_TOKENS, model.get_input_embeddings().num_embeddings), device=device)[None]
        logits_TV = model(input_ids=ids_BT, use_cache=False).logits[0].float()
        torch.nn.functional.cross_entropy(logits_TV[:-1], ids_BT[0, 1:]).backward()  # type: ignore[no-untyped-call]
    found = [weight.grad for weight in model.parameters() if weight.grad is not None]
    # Trainings are in float32: what float16 cannot hold says nothing.
    return bool(found) and all(
        grad.is_meta or grad.dtype == torch.float16 or bool(torch.isfinite(grad).all()) for grad in found
    )
