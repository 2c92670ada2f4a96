"""LoRA: low-rank adapters on the frozen draft, merged into its weights after training. Needs peft (an extra)."""

from typing import Any

import torch

from pipeline.config.distill import LoraConfig
from pipeline.errors import UsageError


def add_adapters(model: Any, settings: LoraConfig, seed: int) -> Any:
    """`model` with trainable adapters on all linear layers but the head. Initially they do not change the output."""
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
    """The model without adapters, after merging them into its weights."""
    return model.merge_and_unload()
