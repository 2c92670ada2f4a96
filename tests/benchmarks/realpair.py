"""A pair of real size with random weights: an untied 853 M target and a 99 M draft, Llama-shaped, bf16."""

from typing import Any

import torch

VOCABULARY = 32_000


def real_pair() -> tuple[Any, Any]:
    """Target and draft. What they say is noise; how long they take is not."""
    target = _model(hidden=2048, layers=16, intermediate=5632, heads=32, key_heads=8)
    return target, _model(hidden=768, layers=8, intermediate=2048, heads=12, key_heads=3)


def real_decoder(target: Any, draft: Any, gamma: int, acceptance: float) -> Any:
    """A decoder that accepts each draft token with probability `acceptance`; gamma 0 is plain decoding."""
    from pipeline.speculation.rules import ImposedAcceptance
    from pipeline.speculation.settings import Sampling
    from tests.benchmarks.drafts import decoder

    verification: Any = ImposedAcceptance([acceptance] * gamma) if gamma else "token"
    return decoder(target, draft, VOCABULARY, gamma, Sampling(), verification=verification)


def _model(*, hidden: int, layers: int, intermediate: int, heads: int, key_heads: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
