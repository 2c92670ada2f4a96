"""A plain forward pass over the weights of a Llama-shaped model, with preallocated caches. Knows no decoding rule.

A speculative step is many small passes, and on small models most of a pass is not arithmetic: it is calls. Per layer this
makes 13 where the library's own forward makes about 40. Weights are the model's own; small matrices are copied side by
side, so that queries, keys and values come from one product. What it computes is compared with the model's own forward
before it is used. Shapes: B rows, T tokens of a row, N = B * T, S visible slots, H heads, D head width, V tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pipeline.speculation.cache import attention_window
from pipeline.speculation.compiled_forward import CompiledForward

_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # cosines that depend on the position alone
_PACKED_BYTES = 1 << 23  # products over more weights than this are bound by memory, where packing gains nothing
_FEW_ROWS = 8  # of a bf16 product on a CPU; above, the usual way is the fastest
_PROOF = 24  # tokens over which it must agree with the model's own forward
_FEW = (13, 15, 18)  # where the last of them begin, in parts that the compiled forward takes
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest logit; 0.05 in lower precision


class _Product:
    """Plain linear layers of one input: side by side in one matrix where they are small, else one after the other over the
    model's own weights.

    On a CPU the way matters more than the arithmetic. Small fp32 matrices are 2 to 3 times faster stored (in, out); over
    bf16 ones, a few rows are read a quarter faster as matrix times vector, or as the transposed product.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        weights_OI = [layer.weight.detach() for layer in layers]
        size = sum(weight_OI.numel() * weight_OI.element_size() for weight_OI in weights_OI)
        has_bias = layers[0].bias is not None
        self.bias_O = torch.cat([layer.bias.detach() for layer in layers]) if has_bias else None
        on_cpu, dtype = weights_OI[0].device.type == "cpu", weights_OI[0].dtype
        self.few_rows = _FEW_ROWS if on_cpu and dtype == torch.bfloat16 else 0
        if size <= _PACKED_BYTES:
            weights_OI = [torch.cat(weights_OI)]
            if on_cpu and dtype == torch.float32:
                weights_OI = [weights_OI[0].t().contiguous().t()]
        self.weights_OI = weights_OI

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        outs = [self._times(x_NI, weight_OI) for weight_OI in self.weights_OI]
        out_NO = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        return out_NO if self.bias_O is None else out_NO + self.bias_O

    def onto(self, residual_NO: torch.Tensor, x_NI: torch.Tensor) -> torch.Tensor:
        """The product added to `residual`, in one call where that is the fastest way."""
        if self.bias_O is not None or 1 < len(x_NI) <= self.few_rows:
            return residual_NO + self(x_NI)
        (weight_OI,) = self.weights_OI
        if len(x_NI) <= self.few_rows:
            return torch.addmv(residual_NO[0], weight_OI, x_NI[0]).unsqueeze(0)
        return torch.addmm(residual_NO, x_NI, weight_OI.t())

    def halves(self, x_NI: torch.Tensor) -> Sequence[torch.Tensor]:
        """The product of two layers of one size, apart."""
        if len(self.weights_OI) == 2 and self.bias_O is None:
            return [self._times(x_NI, weight_OI) for weight_OI in self.weights_OI]
        return self(x_NI).chunk(2, dim=-1)

    def _times(self, x_NI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
        if len(x_NI) > self.few_rows:
            return torch.mm(x_NI, weight_OI.t())
        if len(x_NI) == 1:
            return torch.mv(weight_OI, x_NI[0]).unsqueeze(0)
        return torch.mm(weight_OI, x_NI.t()).t().contiguous()


class _Modules:
    """Linear layers of one input that are not plain matrices: quantised ones, say."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = layers

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        outputs = [layer(x_NI) for layer in self.layers]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def onto(self, residual_NO: torch.Tensor, x_NI: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = residual_NO + self(x_NI)
        return out

    def halves(self, x_NI: torch.Tensor) -> Sequence[torch.Tensor]:
        return [layer(x_NI) for layer in self.layers]


def _product(*layers: nn.Module) -> _Product | _Modules:
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    return _Product(plain) if len(plain) == len(layers) else _Modules(layers)


def _wide(norm: Any) -> torch.Tensor:
    """A norm's weight as `_normed` wants it: in fp32, unless the model is wider still."""
    weight: torch.Tensor = norm.weight.detach()
    return weight if weight.dtype == torch.float64 else weight.float()


@dataclass
class _Layer:
    norm: torch.Tensor
    qkv: _Product | _Modules
    head_norm: tuple[torch.Tensor, torch.Tensor] | None  # of queries and keys (Qwen3)
    output: _Product | _Modules
    mlp_norm: torch.Tensor
    gate_up: _Product | _Modules
    down: _Product | _Modules


class Caches:
    """Keys and values of every layer, (B, S, 2 * key heads, D), and the rotary tables up to the capacity."""

    def __init__(self, layers: list[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.layers, self.cos_SHD, self.sin_SHD = layers, cos, sin
        self.cos_SD, self.sin_SD = (
            cos[:, 0].float().contiguous(),
            sin[:, 0].float().contiguous(),
        )  # for the compiled forward
        self._masks: dict[int, torch.Tensor] = {}

    def mask(self, first: int, count: int, group: int) -> torch.Tensor:
        """What `count` queries from slot `first` on may see, (group * count, first + count): a slice of one triangle, which
        is kept, because every round of a batch of one asks for another `first`."""
        capacity = len(self.cos_SHD)
        if count not in self._masks:
            self._masks.clear()  # the prefill's, or that of another draft length
            ahead = self.cos_SHD.new_full((count, count), -torch.inf).triu_(1)
            mask = torch.cat([self.cos_SHD.new_zeros(count, capacity), ahead], dim=1)
            self._masks[count] = mask.repeat(group, 1)
        return self._masks[count][:, capacity - first :]


class LlamaForward:
    """The `forward.Body` of a Llama-shaped model."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        config = model.config
        self.device, self.vocabulary, self.window = model.device, vocabulary, attention_window(config)
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon = torch.tensor(config.rms_norm_eps, device=self.device)
        self.embedding, self.rotary = model.model.embed_tokens.weight.detach(), model.model.rotary_emb
        self.norm, self.head = _wide(model.model.norm), _product(model.lm_head)
        self.layers = [self._layer(layer) for layer in model.model.layers]
        self.compiled: CompiledForward | None = None  # for passes of few tokens, where it could be built

    @classmethod
    def of(cls, model: Any, vocabulary: int) -> "LlamaForward | None":
        """The lean form of `model`; None where its shape is unknown or the logits are not the model's own."""
        config: Any = getattr(model, "config", None)
        if getattr(config, "model_type", None) not in _MODEL_TYPES or not hasattr(model, "lm_head"):
            return None
        if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
            return None  # spread over devices: its own forward knows where its parts are
        rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        wrapped = not hasattr(getattr(model, "model", None), "embed_tokens")  # by peft, say
        if wrapped or config.hidden_act != "silu" or rope not in _ROPE_TYPES:
            return None
        lean = cls(model, vocabulary)
        if not lean.reproduces(model):
            return None
        lean.compiled = CompiledForward.of(model, vocabulary)
        if lean.compiled is not None and not lean.reproduces(model):
            lean.compiled = None
        return lean

    @torch.inference_mode()
    def reproduces(self, model: Any) -> bool:
        """Whether logits of a few tokens, fed to two rows in parts of many and few, are those of the model's own forward."""
        ids_BT = torch.arange(1, 2 * _PROOF + 1, device=self.device).view(2, _PROOF)
        ids_BT = ids_BT % min(self.vocabulary, self.embedding.shape[0])
        own_BTV = model(input_ids=ids_BT, use_cache=False).logits[..., : self.vocabulary]
        caches = self.allocate(2, _PROOF)
        parts = [
            self.forward(ids_BT[:, a:b], [a] * 2, caches, b - a) for a, b in pairwise((0, _PROOF // 2, *_FEW, _PROOF))
        ]
        if not bool(torch.isfinite(own_BTV).all()):
            return True  # damaged weights look the same either way, and the decoder says so
        gap = (torch.cat(parts, dim=1) - own_BTV).abs().max()  # NaN compares as not close
        return bool(gap <= _TOLERANCE.get(own_BTV.dtype, 0.05) * own_BTV.abs().max())

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = None
        if hasattr(attention, "q_norm"):
            norms = (_wide(attention.q_norm), _wide(attention.k_norm))
        return _Layer(
            _wide(layer.input_layernorm),
            _product(attention.q_proj, attention.k_proj, attention.v_proj),
            norms,
            _product(attention.o_proj),
            _wide(layer.post_attention_layernorm),
            _product(mlp.gate_proj, mlp.up_proj),
            _product(mlp.down_proj),
        )

    def allocate(self, rows: int, capacity: int) -> Caches:
        shape = (rows, capacity, 2 * self.key_heads, self.width)
        layers = [self.embedding.new_zeros(shape) for _ in self.layers]
        cos_SD, sin_SD = self.rotary(self.embedding[:1], torch.arange(capacity, device=self.device)[None])
        # One table for queries, keys and values side by side, so that all turn in one go: values by nothing.
        turned, total = self.heads + self.key_heads, self.heads + 2 * self.key_heads
        cos_SHD = cos_SD.new_ones(capacity, total, self.width)
        sin_SHD = cos_SD.new_zeros(capacity, total, self.width)
        half = self.width // 2
        cos_SHD[:, :turned] = cos_SD[0, :, None]
        # The sign of "rotate half" is in the table; what is left is a roll by half the width.
        sin_SHD[:, :turned] = torch.cat([-sin_SD[0, :, :half], sin_SD[0, :, half:]], dim=-1)[:, None]
        return Caches(layers, cos_SHD, sin_SHD)

    def select(self, state: Caches, rows: Sequence[int]) -> None:
        index = torch.tensor(rows, device=self.device)
        state.layers = [layer[index] for layer in state.layers]

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], state: Caches, keep: int) -> torch.Tensor:
        batch, count = ids_BT.shape
        if self.compiled is not None and batch * count <= self.compiled.max_tokens:
            return self.compiled.forward(ids_BT, first, state.layers, state.cos_SD, state.sin_SD, keep)
        place = _Place(ids_BT, first, state, self.heads // self.key_heads)
        cos, sin = state.cos_SHD[place.slots], state.sin_SHD[place.slots]
        x_NI = F.embedding(ids_BT, self.embedding).view(batch * count, -1)
        for layer, cache in zip(self.layers, state.layers, strict=True):
            qkv = layer.qkv(self._normed(x_NI, layer.norm)).view(batch, count, -1, self.width)
            if layer.head_norm is not None:
                qkv = self._norm_heads(qkv, layer.head_norm)
            qkv = torch.addcmul(qkv * cos, torch.roll(qkv, self.width // 2, -1), sin)
            x_NI = layer.output.onto(x_NI, self._attend(qkv, cache, place).reshape(batch * count, -1))
            gate_NI, up_NI = layer.gate_up.halves(self._normed(x_NI, layer.mlp_norm))
            x_NI = layer.down.onto(x_NI, F.silu(gate_NI) * up_NI)
        kept = x_NI.view(batch, count, -1)[:, -keep:].reshape(batch * keep, -1)
        return self.head(self._normed(kept, self.norm)).view(batch, keep, -1)[..., : self.vocabulary]

    def _attend(self, qkv: torch.Tensor, cache: torch.Tensor, place: "_Place") -> torch.Tensor:
        """Write keys and values at their slots and attend to all that is visible; returns (B, T, H, D)."""
        count = qkv.shape[1]
        cache[place.written] = qkv[:, :, self.heads :]
        seen = cache[:, : place.visible].transpose(1, 2)
        keys, values = seen[:, : self.key_heads], seen[:, self.key_heads :]
        # The heads that share a key become further queries of it: no copy of the keys, whatever the kernel.
        group = self.heads // self.key_heads
        shape = (len(qkv), count, self.key_heads, group, self.width)
        if count == 1:  # nothing to turn around
            query = qkv[:, 0, : self.heads].view(len(qkv), self.key_heads, group, self.width)
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=place.mask)
        query = qkv[:, :, : self.heads].view(shape).permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=place.mask)
        return out.view(len(qkv), self.key_heads, group, count, self.width).permute(0, 3, 1, 2, 4)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm over the last axis, in fp32 as the library has it whatever the model; `weight` is fp32, or fp64."""
        if x.dtype == torch.float64:  # where exactness is the point: operation by operation
            single = x.float()
            return weight * (single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)
        # On a CPU faster than the library's own function (6 against 12 microseconds, small and warm).
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self.epsilon, norm, norm, value=1 / x.shape[-1]).rsqrt_()
        return torch.mul(x * scale, weight, out=torch.empty_like(x))

    def _norm_heads(self, qkv: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        query, key, value = qkv.tensor_split([self.heads, self.heads + self.key_heads], dim=2)
        return torch.cat([self._normed(query, norms[0]), self._normed(key, norms[1]), value], dim=2)


class _Place:
    """Where a pass writes and what it sees, worked out once for all layers.

    Where every row is at the same slot, as in a batch of one, it is a slice; else an index a row.
    """

    def __init__(self, ids_BT: torch.Tensor, first: Sequence[int], state: Caches, group: int) -> None:
        count, device = ids_BT.shape[1], ids_BT.device
        self.visible = max(first) + count
        self.slots: slice | torch.Tensor
        self.written: tuple[slice | torch.Tensor, slice | torch.Tensor]
        self.mask: torch.Tensor | None = (
            None  # added to the scores: truth values would be turned into this in each layer
        )
        if min(first) == max(first):
            self.slots = slice(first[0], self.visible)
            self.written = (slice(None), self.slots)
            self.mask = state.mask(first[0], count, group) if count > 1 else None
        else:
            self.slots = torch.tensor(first, device=device)[:, None] + torch.arange(count, device=device)
            self.written = (torch.arange(len(first), device=device)[:, None], self.slots)
            ahead = torch.arange(self.visible, device=device) > self.slots[..., None]
            mask = ahead.new_zeros(ahead.shape, dtype=state.cos_SHD.dtype).masked_fill_(ahead, -torch.inf)
            self.mask = mask.repeat(1, group, 1).unsqueeze(1)
