"""A pair with a choice to make: a target large enough that a step is bound by memory bandwidth at small batch sizes, and a draft
that agrees with it as often as wanted, without training.

The target has random weights. The output projections of its upper layers are scaled down, so that they change little of what its
lowest layers say; the draft is those lowest layers, with the target's embeddings and head. The scale sets the acceptance.
"""

import os
from pathlib import Path
from typing import Any

LAYERS, DRAFT_LAYERS = 24, 1
_SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
_PROMPTS, _PROMPT, _NEW = 16, 24, 32  # for measuring the acceptance
_STEPS = 9  # of the bisection


def make_pair(place: Path, tokenizer: Path, acceptance: float, dtype: str = "bfloat16") -> dict[str, float]:
    """Write `target/` and `draft/` under `place`. Returns the scale and the acceptance rate at temperature 0 that it has."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    known = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(known), num_hidden_layers=LAYERS, dtype=dtype, **_SHAPE)
    config.eos_token_id = config.bos_token_id = None
    target = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
    original = [[one.weight.detach().clone() for one in _outputs(layer)] for layer in target.model.layers]
    low, high, found = 1e-3, 1.0, dict[str, float]()
    for _ in range(_STEPS):
        scale = (low * high) ** 0.5
        for layer, weights in list(zip(target.model.layers, original, strict=True))[DRAFT_LAYERS:]:
            for one, weight in zip(_outputs(layer), weights, strict=True):
                one.weight.data.copy_(weight * scale)
        found = {"scale": scale, "acceptance_rate": _agreement(target)}
        low, high = (scale, high) if found["acceptance_rate"] > acceptance else (low, scale)
    target.save_pretrained(place / "target")
    target.model.layers = target.model.layers[:DRAFT_LAYERS]
    target.config.num_hidden_layers = DRAFT_LAYERS
    target.save_pretrained(place / "draft")
    for role in ("target", "draft"):
        known.save_pretrained(place / role)
    return found


def _outputs(layer: Any) -> tuple[Any, Any]:
    return layer.self_attn.o_proj, layer.mlp.down_proj


def _agreement(target: Any) -> float:
    """Share of the tokens of greedy text, after the first 8, that the lowest layers choose too."""
    import torch

    random = torch.Generator().manual_seed(1)
    prompts = torch.randint(10, target.config.vocab_size, (_PROMPTS, _PROMPT), generator=random)
    with torch.inference_mode():
        text = target.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=_NEW, do_sample=False, pad_token_id=0
        )
        layers = target.model.layers
        target.model.layers = layers[:DRAFT_LAYERS]
        chosen = target(text, use_cache=False).logits.argmax(-1)
        target.model.layers = layers
    return float((chosen[:, _PROMPT + 7 : -1] == text[:, _PROMPT + 8 :]).float().mean())


if __name__ == "__main__":
    import sys

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(make_pair(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
