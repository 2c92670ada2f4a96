"""A forward pass in PyTorch over the weights of a Llama-shaped model, with preallocated KV caches.

Does not depend on decoding rules. A round of speculative decoding runs many small passes. On small models the overhead of
operator calls dominates a pass: this forward makes 13 calls per layer, the library's own about 40. It uses the model's own
weights; small matrices are copied side by side, so that one matmul computes queries, keys and values. `proof.py` compares its
logits with those of the model's own forward before it is used.

On a device other than the CPU a pass (`compute`) reads nothing of the host, so that `graphed_forward.py` can record it, and its
attention mask is as long as a multiple of 8: kernels for a GPU read masks by 16 bytes, and fault on one that begins elsewhere.
Hidden states that a draft reads (`hidden_states.py`) are results of the pass, beside its logits.

Shapes: B rows, T tokens of a row, N = B * T, S visible slots, H heads, D head width, V tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pipeline.models.attention_layers import attention_windows
from pipeline.models.devices import computes_at_once, upload
from pipeline.models.placement import is_dispatched
from pipeline.speculation.compiled_forward import CompiledForward
from pipeline.speculation.hidden_states import NORMED, Features

_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # types whose cosines depend on the position alone
_PACKED_BYTES = 1 << 23  # matmuls over more weights than this are bound by memory bandwidth, and packing gains nothing
_ALIGNED = 64  # slots that a device's caches and masks are multiples of
_FEW_ROWS = 8  # most rows of a bf16 matmul on a CPU that use mv or a transposed mm; above, mm is the fastest


class _LinearGroup:
    """`nn.Linear` layers with a common input: packed into one matrix if small, otherwise one matmul for each.

    On a CPU the memory layout decides the speed. Small fp32 matrices are 2 to 3 times faster when stored (in, out). For
    bf16 matrices and a few rows, matrix times vector or the transposed matmul is 25% faster.
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

    def add_to(self, residual_NO: torch.Tensor, x_NI: torch.Tensor) -> torch.Tensor:
        """`residual` plus the output, in one fused call where that is fastest."""
        if self.bias_O is not None or 1 < len(x_NI) <= self.few_rows:
            return residual_NO + self(x_NI)
        (weight_OI,) = self.weights_OI
        if len(x_NI) <= self.few_rows:
            return torch.addmv(residual_NO[0], weight_OI, x_NI[0]).unsqueeze(0)
        return torch.addmm(residual_NO, x_NI, weight_OI.t())

    def pair(self, x_NI: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs of two layers of equal size, separately."""
        if len(self.weights_OI) == 2 and self.bias_O is None:
            return [self._times(x_NI, weight_OI) for weight_OI in self.weights_OI]
        return self(x_NI).chunk(2, dim=-1)

    def _times(self, x_NI: torch.Tensor, weight_OI: torch.Tensor) -> torch.Tensor:
        if len(x_NI) > self.few_rows:
            return torch.mm(x_NI, weight_OI.t())
        if len(x_NI) == 1:
            return torch.mv(weight_OI, x_NI[0]).unsqueeze(0)
        return torch.mm(weight_OI, x_NI.t()).t().contiguous()


class _ModuleGroup:
    """Layers with a common input that are not plain `nn.Linear`, such as quantized layers."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = layers

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        outputs = [layer(x_NI) for layer in self.layers]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def add_to(self, residual_NO: torch.Tensor, x_NI: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = residual_NO + self(x_NI)
        return out

    def pair(self, x_NI: torch.Tensor) -> Sequence[torch.Tensor]:
        return [layer(x_NI) for layer in self.layers]


def _linear_group(*layers: nn.Module) -> _LinearGroup | _ModuleGroup:
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    return _LinearGroup(plain) if len(plain) == len(layers) else _ModuleGroup(layers)


def _norm_weight(norm: Any, dtype: torch.dtype) -> torch.Tensor:
    """A norm's weight for `_rms_norm`: on a CPU in fp32, or fp64 for an fp64 model; on a device in the model's dtype."""
    weight: torch.Tensor = norm.weight.detach()
    if not computes_at_once(weight.device):
        return weight.to(dtype)
    return weight if weight.dtype == torch.float64 else weight.float()


@dataclass
class _Layer:
    norm: torch.Tensor
    qkv: _LinearGroup | _ModuleGroup
    head_norm: tuple[torch.Tensor, torch.Tensor] | None  # of queries and keys (Qwen3)
    output: _LinearGroup | _ModuleGroup
    mlp_norm: torch.Tensor
    gate_up: _LinearGroup | _ModuleGroup
    down: _LinearGroup | _ModuleGroup


class Caches:
    """Keys and values of every layer, (B, S, 2 * KV heads, D), and the rotary tables (cos and sin) for S positions.

    S is the capacity: the most tokens of a sequence. `window`: tokens that a sliding window attends to; None: all.
    """

    def __init__(
        self, layers: list[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor, window: int | None = None
    ) -> None:
        self.layers, self.cos_SHD, self.sin_SHD, self.window = layers, cos, sin, window
        self.cos_SD, self.sin_SD = (
            cos[:, 0].float().contiguous(),
            sin[:, 0].float().contiguous(),
        )  # for the compiled forward
        self._masks: dict[int, torch.Tensor] = {}

    def mask(self, first: int, count: int, group: int) -> torch.Tensor:
        """The additive attention mask of `count` queries at slots first .. first + count - 1: 0 or -inf, shape (group * count,
        first + count). `group`: query heads per KV head (grouped-query attention).

        It is a slice of a stored mask, so that a new `first`, which every round has, needs no new mask.
        """
        capacity = len(self.cos_SHD)
        if count not in self._masks:
            self._masks.clear()  # the mask of the prefill or of another draft length
            ahead = self.cos_SHD.new_full((count, count), -torch.inf).triu_(1)
            mask = torch.cat([self.cos_SHD.new_zeros(count, capacity), ahead], dim=1)
            if self.window is not None and self.window < capacity + count:
                behind = torch.ones_like(mask, dtype=torch.bool).tril_(capacity - self.window)
                mask.masked_fill_(behind, -torch.inf)
            self._masks[count] = mask.repeat(group, 1)
        return self._masks[count][:, capacity - first :]


class LlamaForward:
    """`forward.Forward` for a Llama-shaped model. `layers`: whose hidden states are recorded."""

    def __init__(self, model: Any, vocabulary: int, layers: Sequence[int] = ()) -> None:
        config = model.config
        self.recorded, self.features = tuple(layers), Features()
        self.device, self.vocabulary = model.device, vocabulary
        self.window = attention_windows(config).get("sliding_attention")
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon = torch.tensor(config.rms_norm_eps, device=self.device)
        self._on_host, self._epsilon = computes_at_once(self.device), float(config.rms_norm_eps)
        self.embedding, self.rotary = model.model.embed_tokens.weight.detach(), model.model.rotary_emb
        self.norm, self.head = self._norm_weight(model.model.norm), _linear_group(model.lm_head)
        self.layers = [self._layer(layer) for layer in model.model.layers]
        self.compiled: CompiledForward | None = None  # for passes of few tokens, if it could be built

    @property
    def plain(self) -> bool:
        """Whether all matrices are plain, not quantized."""
        used = [
            self.head,
            *(group for layer in self.layers for group in (layer.qkv, layer.output, layer.gate_up, layer.down)),
        ]
        return all(isinstance(group, _LinearGroup) for group in used)

    @classmethod
    def of(cls, model: Any, vocabulary: int, layers: Sequence[int] = ()) -> "LlamaForward | None":
        """A `LlamaForward` of `model`; None if the architecture is not supported."""
        config: Any = getattr(model, "config", None)
        if getattr(config, "model_type", None) not in _MODEL_TYPES or not hasattr(model, "lm_head"):
            return None
        if is_dispatched(model):
            return None  # only its own forward moves activations and weights between devices
        if attention_windows(config) and len(set(getattr(config, "layer_types", None) or ())) > 1:
            return None  # layers with and without a window
        rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        wrapped = not hasattr(getattr(model, "model", None), "embed_tokens")  # for example by peft
        if wrapped or config.hidden_act != "silu" or rope not in _ROPE_TYPES:
            return None
        return cls(model, vocabulary, layers)

    def _norm_weight(self, norm: Any) -> torch.Tensor:
        return _norm_weight(norm, self.embedding.dtype)

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = None
        if hasattr(attention, "q_norm"):
            norms = (self._norm_weight(attention.q_norm), self._norm_weight(attention.k_norm))
        return _Layer(
            self._norm_weight(layer.input_layernorm),
            _linear_group(attention.q_proj, attention.k_proj, attention.v_proj),
            norms,
            _linear_group(attention.o_proj),
            self._norm_weight(layer.post_attention_layernorm),
            _linear_group(mlp.gate_proj, mlp.up_proj),
            _linear_group(mlp.down_proj),
        )

    def allocate(self, rows: int, capacity: int) -> Caches:
        capacity = capacity if self._on_host else -(-capacity // _ALIGNED) * _ALIGNED
        shape = (rows, capacity, 2 * self.key_heads, self.width)
        layers = [self.embedding.new_zeros(shape) for _ in self.layers]
        cos_SD, sin_SD = self.rotary(self.embedding[:1], torch.arange(capacity, device=self.device)[None])
        # One table for queries, keys and values side by side, so that one call rotates all; values are rotated by 0.
        turned, total = self.heads + self.key_heads, self.heads + 2 * self.key_heads
        cos_SHD = cos_SD.new_ones(capacity, total, self.width)
        sin_SHD = cos_SD.new_zeros(capacity, total, self.width)
        half = self.width // 2
        cos_SHD[:, :turned] = cos_SD[0, :, None]
        # The sign of "rotate half" is in the table, so the rest is a roll by half the width.
        sin_SHD[:, :turned] = torch.cat([-sin_SD[0, :, :half], sin_SD[0, :, half:]], dim=-1)[:, None]
        return Caches(layers, cos_SHD, sin_SHD, self.window)

    def select(self, caches: Caches, rows: Sequence[int]) -> None:
        index = upload(rows, self.device)
        for number in range(len(caches.layers)):  # one at a time: a layer is freed before the next one is copied
            caches.layers[number] = caches.layers[number][index]

    def forward(self, ids_BT: torch.Tensor, first: Sequence[int], caches: Caches, keep: int) -> torch.Tensor:
        batch, count = ids_BT.shape
        end, group = max(first) + count, self.heads // self.key_heads
        if not self._on_host:
            visible = min(-(-end // _ALIGNED) * _ALIGNED, len(caches.cos_SHD))
            return self._result(self.compute(ids_BT, upload(first, self.device), caches, visible, keep))
        within = self.window is None or end <= self.window  # the compiled forward has no sliding window
        if self.compiled is not None and within and batch * count <= self.compiled.max_tokens:
            return self.compiled.forward(ids_BT, first, caches.layers, caches.cos_SD, caches.sin_SD, keep)
        if min(first) != max(first):
            return self._result(self.compute(ids_BT, upload(first, self.device), caches, end, keep))
        return self._result(self._layers(ids_BT, caches, _Slots.from_one(first[0], count, caches, group), keep))

    def _result(self, computed: tuple[torch.Tensor, ...]) -> torch.Tensor:
        logits, *states = computed
        self.features = dict(zip(self.recorded, states, strict=True))
        return logits

    def compute(
        self, ids_BT: torch.Tensor, first_B: torch.Tensor, caches: Caches, visible: int, keep: int
    ) -> tuple[torch.Tensor, ...]:
        """Computes `forward`, with all that differs from pass to pass on the device: logits, then the states of each recorded
        layer, (B, T, H). No row may reach past slot `visible`."""
        slots = _Slots.by_row(first_B, ids_BT.shape[1], caches, visible, self.heads // self.key_heads)
        return self._layers(ids_BT, caches, slots, keep)

    def _layers(self, ids_BT: torch.Tensor, caches: Caches, slots: "_Slots", keep: int) -> tuple[torch.Tensor, ...]:
        batch, count = ids_BT.shape
        cos, sin = caches.cos_SHD[slots.own], caches.sin_SHD[slots.own]
        x_NI, states = F.embedding(ids_BT, self.embedding).view(batch * count, -1), dict[int, torch.Tensor]()
        for number, (layer, cache) in enumerate(zip(self.layers, caches.layers, strict=True)):
            if number in self.recorded:
                states[number] = x_NI  # nothing changes it in place
            qkv = layer.qkv(self._rms_norm(x_NI, layer.norm)).view(batch, count, -1, self.width)
            if layer.head_norm is not None:
                qkv = self._norm_heads(qkv, layer.head_norm)
            qkv = torch.addcmul(qkv * cos, torch.roll(qkv, self.width // 2, -1), sin)
            x_NI = layer.output.add_to(x_NI, self._attend(qkv, cache, slots).reshape(batch * count, -1))
            gate_NI, up_NI = layer.gate_up.pair(self._rms_norm(x_NI, layer.mlp_norm))
            x_NI = layer.down.add_to(x_NI, F.silu(gate_NI) * up_NI)
        if len(self.layers) in self.recorded:
            states[len(self.layers)] = x_NI
        if NORMED in self.recorded:
            states[NORMED] = self._rms_norm(x_NI, self.norm)
        kept = x_NI.view(batch, count, -1)[:, -keep:].reshape(batch * keep, -1)
        logits = self.head(self._rms_norm(kept, self.norm)).view(batch, keep, -1)[..., : self.vocabulary]
        return logits, *(states[layer].view(batch, count, -1) for layer in self.recorded)

    def _attend(self, qkv: torch.Tensor, cache: torch.Tensor, slots: "_Slots") -> torch.Tensor:
        """Write keys and values at their slots and attend to all that is visible; returns (B, T, H, D)."""
        count = qkv.shape[1]
        cache[slots.written] = qkv[:, :, self.heads :]
        seen = cache[:, : slots.visible].transpose(1, 2)
        keys, values = seen[:, : self.key_heads], seen[:, self.key_heads :]
        # Grouped-query attention: the heads that share a key become further queries of it, so keys are never copied.
        group = self.heads // self.key_heads
        shape = (len(qkv), count, self.key_heads, group, self.width)
        if count == 1:  # no transposition needed
            query = qkv[:, 0, : self.heads].view(len(qkv), self.key_heads, group, self.width)
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=slots.mask)
        query = qkv[:, :, : self.heads].view(shape).permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=slots.mask)
        return out.view(len(qkv), self.key_heads, group, count, self.width).permute(0, 3, 1, 2, 4)

    def _rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm over the last axis, computed in fp32 as transformers does; `weight` as `_norm_weight` gives it."""
        if x.dtype == torch.float64:  # for exact tests: the same operations as transformers
            single = x.float()
            return weight * (single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)
        if not self._on_host:
            return F.rms_norm(x, x.shape[-1:], weight, self._epsilon)
        # On a CPU faster than torch's rms_norm (6 against 12 microseconds for a small tensor in cache).
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self.epsilon, norm, norm, value=1 / x.shape[-1]).rsqrt_()
        return torch.mul(x * scale, weight, out=torch.empty_like(x))

    def _norm_heads(self, qkv: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        query, key, value = qkv.tensor_split([self.heads, self.heads + self.key_heads], dim=2)
        return torch.cat([self._rms_norm(query, norms[0]), self._rms_norm(key, norms[1]), value], dim=2)


@dataclass(frozen=True)
class _Slots:
    """The slots that a pass writes and its attention mask, computed once for all layers."""

    own: slice | torch.Tensor  # of each token, (T,) or (B, T)
    written: tuple[slice | torch.Tensor, slice | torch.Tensor]
    visible: int
    mask: torch.Tensor | None  # additive: a boolean mask would be converted in every layer

    @classmethod
    def from_one(cls, first: int, count: int, caches: Caches, group: int) -> "_Slots":
        """Every row starts at the same slot, as in a batch of one: a slice, and a mask that is a slice of a stored one."""
        own, visible = slice(first, first + count), first + count
        beyond = caches.window is not None and visible > caches.window
        return cls(own, (slice(None), own), visible, caches.mask(first, count, group) if count > 1 or beyond else None)

    @classmethod
    def by_row(cls, first_B: torch.Tensor, count: int, caches: Caches, visible: int, group: int) -> "_Slots":
        """An index for each row. Slots up to `visible` that no row has reached are hidden."""
        device = first_B.device
        own_BT = first_B[:, None] + torch.arange(count, device=device)
        seen, own = torch.arange(visible, device=device), own_BT[..., None]
        hidden = seen > own
        if caches.window is not None:
            hidden |= seen <= own - caches.window
        mask = hidden.new_zeros(hidden.shape, dtype=caches.cos_SHD.dtype).masked_fill_(hidden, -torch.inf)
        written = (torch.arange(len(first_B), device=device)[:, None], own_BT)
        return cls(own_BT, written, visible, mask.repeat(1, group, 1).unsqueeze(1))
