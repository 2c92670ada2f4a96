"""What SGLang's EAGLE-3 model is made of, in plain PyTorch: its own code of the model and of the loading runs with these in the
place of kernels and of tensor parallelism, on one text."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tests.conformance.sources import module_of


class RMSNorm(nn.Module):
    """With a residual it is added before, and given back."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.empty(size)), eps

    def forward(self, hidden_TH: torch.Tensor, residual_TH: torch.Tensor | None = None) -> Any:
        joined_TH = hidden_TH if residual_TH is None else hidden_TH + residual_TH
        normed_TH = self.weight * nn.functional.rms_norm(joined_TH, joined_TH.shape[-1:], eps=self._eps)
        return normed_TH if residual_TH is None else (normed_TH, joined_TH)


class Stacked(nn.Module):
    """A linear layer of several that are stored apart: `parts` are their rows."""

    def __init__(self, inputs: int, parts: dict[Any, int]) -> None:
        super().__init__()
        self.parts = parts
        self.weight = nn.Parameter(torch.empty(sum(parts.values()), inputs))
        self.weight.weight_loader = self._load  # type: ignore[attr-defined]

    def _load(self, weight: nn.Parameter, loaded: torch.Tensor, part: Any) -> None:
        first = sum(
            rows for name, rows in self.parts.items() if list(self.parts).index(name) < list(self.parts).index(part)
        )
        _load(weight.data[first : first + self.parts[part]], loaded)

    def forward(self, hidden_TH: torch.Tensor) -> tuple[torch.Tensor, None]:
        return hidden_TH @ self.weight.T, None


class Plain(Stacked):
    """A linear layer, an embedding or an output layer."""

    def __init__(self, rows: int, columns: int, **more: Any) -> None:
        super().__init__(columns, {"all": rows})
        del self.weight.weight_loader  # type: ignore[attr-defined]

    def embed(self, ids_T: torch.Tensor) -> torch.Tensor:
        return self.weight[ids_T]


class Embedding(Plain):
    def forward(self, ids_T: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.embed(ids_T)


def QKV(hidden: int, width: int, heads: int, kv_heads: int, bias: bool, **more: Any) -> Stacked:
    assert not bias
    return Stacked(hidden, {"q": heads * width, "k": kv_heads * width, "v": kv_heads * width})


class MLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int, activation: str, quant_config: Any, prefix: str) -> None:
        super().__init__()
        assert activation == "silu"
        self.gate_up_proj = Stacked(hidden, {0: intermediate, 1: intermediate})
        self.down_proj = Plain(hidden, intermediate)

    def forward(self, hidden_TH: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(hidden_TH)[0].chunk(2, dim=-1)
        down_TH: torch.Tensor = self.down_proj(nn.functional.silu(gate) * up)[0]
        return down_TH


class Attention(nn.Module):
    """Causal, over one text."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.head_dim, self.total_num_heads = config.head_dim, config.num_attention_heads
        self.total_num_kv_heads = config.num_key_value_heads
        self.o_proj = Plain(config.hidden_size, self.total_num_heads * self.head_dim)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        qkv, _ = self.qkv_proj(hidden_states)  # type: ignore[operator]
        parts = qkv.split(list(self.qkv_proj.parts.values()), dim=-1)  # type: ignore[union-attr, operator]
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(0, 1)[None] for part in parts)
        q, k = apply_rotary_pos_emb(q, k, *self.rotary(hidden_states, positions[None]))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        output: torch.Tensor = self.o_proj(found[0].transpose(0, 1).flatten(1))[0]
        return output


class DecoderLayer(nn.Module):
    """What SGLang's layer of the head inherits from that of Llama."""

    def __init__(self, config: Any, layer_id: int, quant_config: Any, prefix: str, stage_boundaries: bool) -> None:
        super().__init__()
        assert not config.attention_bias
        self.hidden_size = config.hidden_size
        self.self_attn = Attention(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


def _load(weight: torch.Tensor, loaded: torch.Tensor) -> None:
    """What no tensor was loaded into is not a number."""
    assert weight.shape == loaded.shape
    assert bool(weight.isnan().all()), "loaded twice"
    with torch.no_grad():
        weight.copy_(loaded)


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def eagle3_module(sglang: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's `models/llama_eagle3.py`, with these parts."""
    anything = SimpleNamespace(SINGLE_GROUP=None)
    parts: dict[str, dict[str, Any]] = {
        "configs.draft_parallel": {"DraftParallelSpec": lambda **options: None, "DraftTPExecution": anything},
        "runtime_context": {
            "get_spec": lambda: SimpleNamespace(speculative_draft_window_size=None),
            "get_parallel": lambda: SimpleNamespace(pp_group=None),
        },
        "utils": {"add_prefix": lambda name, prefix: name},
        "layers.layer_boundary": {"layer_stack": _nothing},
        "layers.layernorm": {"RMSNorm": RMSNorm},
        "layers.linear": {"QKVParallelLinear": QKV},
        "layers.logits_processor": {"LogitsProcessor": lambda config: None},
        "layers.quantization.base_config": {"QuantizationConfig": None},
        "layers.vocab_parallel_embedding": {"ParallelLMHead": Plain, "VocabParallelEmbedding": Embedding},
        "model_executor.forward_batch_info": {"ForwardBatch": None, "PPProxyTensors": None},
        "model_loader.weight_utils": {"default_weight_loader": _load},
        "models.llama": {"LlamaDecoderLayer": DecoderLayer, "LlamaForCausalLM": nn.Module, "LlamaMLP": MLP},
    }
    named = {f"sglang.srt.{name}": content for name, content in parts.items()}
    return module_of(sglang / "srt" / "models" / "llama_eagle3.py", monkeypatch, named)
