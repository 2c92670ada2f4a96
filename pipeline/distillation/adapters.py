"""LoRA: low-rank adapters beside the draft's frozen weights, merged into them when training ends. By peft, an extra."""

from typing import Any

import torch

from pipeline.config.distill import LoraConfig
from pipeline.errors import UsageError


def add_adapters(model: Any, settings: LoraConfig, seed: int) -> Any:
    """`model` with adapters on every linear layer but the head; only they learn. They begin as no change at all."""
    try:
        import peft
    except ImportError:
        raise UsageError("distill.lora needs peft: pip install 'understudy[lora]'") from None
    wanted = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return peft.get_peft_model(model, wanted)


def merge_adapters(model: Any) -> Any:
    """The plain model again, with what the adapters learnt in its own weights."""
    return model.merge_and_unload()
