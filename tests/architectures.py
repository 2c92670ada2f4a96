"""Tiny random models of many families: what `tests/unit/speculation/test_proof.py` and the architecture benchmark decode."""

import warnings
from typing import Any, NamedTuple

import torch
import transformers
from packaging.version import Version
from torch import nn

VOCABULARY = 64
# The way of computing it: caches of its chunked layers cannot be cropped in earlier versions.
LLAMA_4 = "rows" if Version(transformers.__version__) >= Version("5.18") else "rows, cache rebuilt"
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 64,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_SLIDING = {"sliding_window": 12}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}


class Family(NamedTuple):
    """An architecture as transformers names it, its attention in words, and the settings of a tiny model."""

    config: str  # the config class without "Config"
    attention: str
    settings: dict[str, Any]


FAMILIES: dict[str, Family] = {
    "Llama": Family("Llama", "full", {}),
    "Mistral": Family("Mistral", "sliding window", _SLIDING),
    "Qwen 2": Family("Qwen2", "full", {}),
    "Qwen 3": Family("Qwen3", "full", {}),
    "Llama 4": Family("Llama4Text", "chunked and full", {"attention_chunk_size": 12, "head_dim": 8, **_EXPERTS}),
    "Gemma": Family("Gemma", "full", {"head_dim": 8}),
    "Gemma 2": Family("Gemma2", "sliding window and full", {"head_dim": 8, **_SLIDING}),
    "Gemma 3": Family("Gemma3Text", "sliding window and full", {"head_dim": 8, **_SLIDING}),
    "GPT-2": Family("GPT2", "full", _GPT2),
    "GPT-Neo": Family(
        "GPTNeo",
        "local window and full",
        {"num_layers": 4, "num_heads": 4, "window_size": 12, "attention_types": [[["global", "local"], 2]]},
    ),
    "GPT-NeoX": Family("GPTNeoX", "full", {}),
    "GPT-J": Family("GPTJ", "full", {**_GPT2, "rotary_dim": 8}),
    "GPT-BigCode": Family("GPTBigCode", "full", _GPT2),
    "CodeGen": Family("CodeGen", "full", {**_GPT2, "rotary_dim": 8}),
    "gpt-oss": Family("GptOss", "sliding window and full, sinks", {"head_dim": 8, **_SLIDING, **_EXPERTS}),
    "OPT": Family("OPT", "full", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "Bloom": Family("Bloom", "alibi", {"n_layer": 2, "n_head": 4}),
    "MPT": Family("Mpt", "alibi", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}),
    "Falcon": Family("Falcon", "full", {"alibi": False}),
    "Falcon, alibi": Family("Falcon", "alibi", {"alibi": True, "multi_query": False}),
    "Phi": Family("Phi", "full", {}),
    "Phi 3": Family("Phi3", "sliding window", _SLIDING),
    "Starcoder 2": Family("Starcoder2", "sliding window", _SLIDING),
    "StableLM": Family("StableLm", "full", {}),
    "SmolLM 3": Family("SmolLM3", "full", {}),
    "Granite": Family("Granite", "full", {}),
    "Nemotron": Family("Nemotron", "full", {}),
    "Cohere": Family("Cohere", "full", {}),
    "Cohere 2": Family("Cohere2", "sliding window and full", _SLIDING),
    "OLMo 2": Family("Olmo2", "full", {}),
    "OLMo 3": Family("Olmo3", "sliding window and full", _SLIDING),
    "EXAONE 4": Family("Exaone4", "sliding window and full", _SLIDING),
    "GLM 4": Family("Glm4", "full", {"head_dim": 8}),
    "Apertus": Family("Apertus", "full", {}),
    "XGLM": Family("XGLM", "full", {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48}),
    "Mixtral": Family("Mixtral", "full, experts", _EXPERTS),
    "Qwen 3 MoE": Family("Qwen3Moe", "full, experts", _EXPERTS),
    "OLMoE": Family("Olmoe", "full, experts", _EXPERTS),
    "DeepSeek V3": Family(
        "DeepseekV3",
        "latent, experts",
        {**_LATENT, **_EXPERTS, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    ),
    "LFM 2": Family("Lfm2", "full and convolutions", {"layer_types": ["conv", "full_attention"] * 2}),
    "Qwen 3 Next": Family(
        "Qwen3Next",
        "full and recurrent",
        {
            **_EXPERTS,
            "head_dim": 8,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
    ),
    "Falcon-H1": Family("FalconH1", "full and recurrent", {"head_dim": 8, **_MAMBA}),
    "Bamba": Family("Bamba", "full and recurrent", {"attn_layer_indices": [1, 3], **_MAMBA}),
    "Jamba": Family(
        "Jamba",
        "full and recurrent",
        {
            **_EXPERTS,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "use_mamba_kernels": False,
        },
    ),
    "Granite 4": Family(
        "GraniteMoeHybrid",
        "full and recurrent",
        {**_MAMBA, **_EXPERTS, "shared_intermediate_size": 32, "layer_types": ["mamba", "attention"] * 2},
    ),
    "OLMo Hybrid": Family("OlmoHybrid", "full and recurrent", {}),
    "MiniMax": Family("MiniMax", "full and linear", {**_EXPERTS, "head_dim": 8, "block_size": 8}),
    "Mamba": Family("Mamba", "recurrent", {"state_size": 8, "expand": 2, "time_step_rank": 4}),
    "Mamba 2": Family(
        "Mamba2", "recurrent", {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}
    ),
    "Falcon Mamba": Family("FalconMamba", "recurrent", {"state_size": 8, "expand": 2}),
    "RecurrentGemma": Family(
        "RecurrentGemma",
        "local window and recurrent",
        {"lru_width": 32, "attention_window_size": 12, "block_types": ["recurrent", "attention"], "head_dim": 8},
    ),
    "RWKV": Family("Rwkv", "recurrent", {"attention_hidden_size": 32, "context_length": 128}),
    "BERT, decoder": Family("Bert", "full", {"is_decoder": True}),
    "BERT, encoder": Family("Bert", "bidirectional", {"is_decoder": False}),
}


def tiny_model(name: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A random model of a family, with weights large enough that logits depend on the whole text."""
    family = FAMILIES[name]
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        config = getattr(transformers, f"{family.config}Config")(**_COMMON | family.settings | settings)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, 0, 0.2)
    return model.to(dtype).eval()
