"""Pairs with a choice to make: a target large enough that a step is bound by memory bandwidth at small batch sizes, and a draft
that agrees with it as often as wanted, without training.

The target has random weights. The output projections of its upper layers are scaled down, so that they change little of what its
lowest layers say; the draft is those lowest layers, with the target's embeddings and head. The scale sets the acceptance.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHARED: dict[str, Any] = {"max_position_embeddings": 2048, "tie_word_embeddings": False}
_PROMPTS, _PROMPT, _NEW = 16, 24, 32  # for measuring the acceptance
_STEPS = 9  # of the bisection


@dataclass(frozen=True)
class Shape:
    """Names of transformers' classes, and sizes. The lowest layers of a mixture of experts, which are the draft, are dense."""

    layers: int
    draft_layers: int
    sizes: dict[str, Any]
    family: str = "Llama"
    experts: dict[str, Any] = field(default_factory=dict)

    def config(self, vocabulary: int, layers: int, dtype: str, draft: bool) -> Any:
        import transformers

        own = {} if draft else self.experts
        made = getattr(transformers, f"{self.family}{'Moe' if own else ''}Config")(
            vocab_size=vocabulary, num_hidden_layers=layers, dtype=dtype, **_SHARED, **self.sizes, **own
        )
        made.eos_token_id = made.bos_token_id = None
        return made

    def model(self, config: Any) -> Any:
        import torch
        import transformers

        name = type(config).__name__.removesuffix("Config")
        return (
            getattr(transformers, f"{name}ForCausalLM")(config)
            .to(getattr(torch, str(config.dtype).removeprefix("torch.")))
            .eval()
        )


DENSE = Shape(
    24,
    1,
    {"hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 4},
)
# A smaller verifier with a drafter of a quarter of its layers.
LARGE_DRAFTER = Shape(
    12,
    3,
    {"hidden_size": 768, "intermediate_size": 2688, "num_attention_heads": 12, "num_key_value_heads": 4},
)
EXPERTS = Shape(
    12,
    1,
    {
        "hidden_size": 512,
        "intermediate_size": 1792,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    family="Qwen3",
    experts={
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 896,
        "mlp_only_layers": [0],
        "norm_topk_prob": True,
    },
)


def make_pair(
    place: Path, tokenizer: Path, acceptance: float, dtype: str = "bfloat16", shape: Shape = DENSE
) -> dict[str, float]:
    """Write `target/` and `draft/` under `place`. Returns the scale and the acceptance rate at temperature 0 that it has."""
    import torch
    from transformers import AutoTokenizer

    from tests.benchmarks.segments_pair import save_models

    known = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    target = shape.model(shape.config(len(known), shape.layers, dtype, draft=False))
    draft = shape.model(shape.config(len(known), shape.draft_layers, dtype, draft=True))
    missing = draft.load_state_dict(target.state_dict(), strict=False).missing_keys
    assert not missing, missing
    upper = [[one.detach().clone() for one in _outputs(layer)] for layer in target.model.layers[shape.draft_layers :]]
    low, high, found = 1e-3, 1.0, dict[str, float]()
    for _ in range(_STEPS):
        scale = (low * high) ** 0.5
        for layer, weights in zip(target.model.layers[shape.draft_layers :], upper, strict=True):
            for one, weight in zip(_outputs(layer), weights, strict=True):
                one.data.copy_(weight * scale)
        found = {"scale": scale, "acceptance_rate": _agreement(target, draft)}
        low, high = (scale, high) if found["acceptance_rate"] > acceptance else (low, scale)
    save_models(place, known, target=target, draft=draft)
    return found


def _outputs(layer: Any) -> list[Any]:
    """The weights that write into the residual."""
    mlp = layer.mlp.experts if hasattr(layer.mlp, "experts") else layer.mlp
    down = mlp.down_proj
    return [layer.self_attn.o_proj.weight, getattr(down, "weight", down)]


def _agreement(target: Any, draft: Any) -> float:
    """Share of the tokens of greedy text, after the first 8, that the draft chooses too."""
    import torch

    random = torch.Generator().manual_seed(1)
    prompts = torch.randint(10, target.config.vocab_size, (_PROMPTS, _PROMPT), generator=random)
    with torch.inference_mode():
        text = target.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=_NEW, do_sample=False, pad_token_id=0
        )
        chosen = draft(text, use_cache=False).logits.argmax(-1)
    return float((chosen[:, _PROMPT + 7 : -1] == text[:, _PROMPT + 8 :]).float().mean())
