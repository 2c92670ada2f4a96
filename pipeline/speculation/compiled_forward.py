"""The lean forward in one call of compiled code, for passes of few tokens on a CPU. Knows no decoding rule.

A pass of one or a few tokens takes as long as reading the weights once, if nothing else costs anything: `native.c` says how.
Where it cannot be built, `lean.LlamaForward` does without. A model that is trained on, moved or changed needs a
new one: it reads the weights where they were. Shapes: B rows, T tokens of a row, V tokens.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from pipeline.native.build import SOURCES, load
from pipeline.speculation.nf4_layers import is_nf4, read

_SOURCE = SOURCES / "llama_forward.c"
_DEFINES = {torch.float32: [], torch.bfloat16: ["-DBF16"]}
_NO_TILES = ["-mno-amx-tile", "-mno-amx-bf16"]  # where the kernel does not grant them
_MULTIPLE, _LEAST = 32, 16  # what native.c asks of sizes that are summed over, and of a product's outputs

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("weight", "bias")),
        ("out", _COUNT),
        *((name, _POINTER) for name in ("codes", "table", "tables")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("norm", "query_norm", "key_norm", "mlp_norm")),
        *((name, _Linear) for name in ("query", "key", "value", "output", "gate", "up", "down")),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _COUNT) for name in ("tokens", "layers", "hidden", "inner", "heads", "key_heads", "width")),
        ("epsilon", ctypes.c_float),
        ("embedding", _POINTER),
        ("norm", _POINTER),
        ("head", _Linear),
        ("layer", ctypes.POINTER(_Layer)),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, _COUNT) for name in ("rows", "count", "keep", "capacity")),
        *((name, _POINTER) for name in ("ids", "first", "cosine", "sine", "caches", "scratch", "logits")),
        ("threads", ctypes.c_int),
    )


class CompiledForward:
    """A Llama-shaped model as `native.c` wants it. Plain matrices are the model's own, not copies; nf4 ones are laid down
    anew."""

    def __init__(self, library: ctypes.CDLL, model: Any, vocabulary: int) -> None:
        config, self._library = model.config, library
        self.most_tokens = _COUNT.in_dll(library, "most_tokens").value
        self._held: list[torch.Tensor] = []  # what the pointers point at
        self._layers = (_Layer * len(model.model.layers))(*map(self._layer, model.model.layers))
        head, attention = self._linear(model.lm_head), model.model.layers[0].self_attn
        head.out = min(head.out, vocabulary)
        self._dtype, self._vocabulary = model.dtype, head.out
        self._model = _Model(
            len(model.model.embed_tokens.weight),
            len(self._layers),
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            attention.q_proj.out_features // config.num_attention_heads,
            config.rms_norm_eps,
            self._pointer(model.model.embed_tokens.weight),
            self._norm(model.model.norm),
            head,
            self._layers,
        )

    @classmethod
    def of(cls, model: Any, vocabulary: int) -> "CompiledForward | None":
        """The native form of a model whose shape `lean.LlamaForward` knows; None where it is not plain fp32 or bf16 matrices, or
        nf4 ones beside bf16, of fitting sizes on a CPU, or nothing can be built here."""
        linears = [module for layer in model.model.layers for module in _linears(layer)] + [model.lm_head]
        whole = [module for module in linears if type(module) is nn.Linear]
        coded = [module for module in linears if model.dtype == torch.bfloat16 and is_nf4(module)]
        if model.device.type != "cpu" or len(whole) + len(coded) < len(linears):
            return None
        tensors = [model.model.embed_tokens.weight, *(module.weight for module in whole)]
        biases = [module.bias for module in linears if module.bias is not None]
        if not _regular(model) or any(bias.dtype != model.dtype or not bias.is_contiguous() for bias in biases):
            return None
        plain = all(tensor.dtype == model.dtype and tensor.is_contiguous() for tensor in tensors)
        fits = not any(tensor.shape[1] % _MULTIPLE for tensor in tensors)
        width = model.model.layers[0].self_attn.q_proj.out_features // model.config.num_attention_heads
        smallest = min(vocabulary, *(module.out_features for module in linears))
        if not plain or not fits or width % 16 or smallest < _LEAST:
            return None
        library = _library(model.dtype)
        return cls(library, model, vocabulary) if library is not None else None

    def forward(
        self,
        ids_BT: torch.Tensor,
        first: Sequence[int],
        caches: Sequence[torch.Tensor],
        cos_SD: torch.Tensor,
        sin_SD: torch.Tensor,
        keep: int,
    ) -> torch.Tensor:
        """Logits of the last `keep` positions, (B, keep, V), in the model's dtype; `caches` as in `lean.Caches`, the tables in
        fp32. Raises IndexError for a token or a slot that is not there."""
        (batch, count), ids_BT, threads = ids_BT.shape, ids_BT.to(torch.int64).contiguous(), torch.get_num_threads()
        slots = (_COUNT * batch)(*first)
        pointers = (_POINTER * len(caches))(*[cache.data_ptr() for cache in caches])
        logits_BTV = _floats(batch, keep, self._vocabulary)
        one = _Pass(
            batch,
            count,
            keep,
            caches[0].shape[1],
            ids_BT.data_ptr(),
            ctypes.addressof(slots),
            cos_SD.data_ptr(),
            sin_SD.data_ptr(),
            ctypes.addressof(pointers),
            None,
            logits_BTV.data_ptr(),
            threads,
        )
        scratch = _floats(self._library.scratch_floats(ctypes.byref(self._model), ctypes.byref(one)))
        one.scratch = scratch.data_ptr()
        wrong = self._library.forward(ctypes.byref(self._model), ctypes.byref(one))
        if wrong:
            raise IndexError(
                f"no such {('token', 'slot')[wrong - 1]}: {count} tokens a row from slots {list(first)} on"
            )
        return logits_BTV.to(self._dtype)

    def _layer(self, layer: Any) -> _Layer:
        attention = layer.self_attn
        head_norms = [self._norm(getattr(attention, name, None)) for name in ("q_norm", "k_norm")]
        norms = [self._norm(layer.input_layernorm), *head_norms, self._norm(layer.post_attention_layernorm)]
        return _Layer(*norms, *map(self._linear, _linears(layer)))

    def _linear(self, linear: Any) -> _Linear:
        bias = self._pointer(linear.bias) if linear.bias is not None else None
        if type(linear) is nn.Linear:
            return _Linear(self._pointer(linear.weight), bias, linear.out_features)
        coded = read(linear)
        pointers = (self._pointer(tensor) for tensor in (coded.codes, coded.table, coded.tables))
        return _Linear(None, bias, linear.out_features, *pointers)

    def _norm(self, norm: Any) -> int | None:
        return None if norm is None else self._pointer(norm.weight.float())

    def _pointer(self, tensor: torch.Tensor) -> int:
        self._held.append(tensor.detach())
        return tensor.data_ptr()


def _floats(*shape: int) -> torch.Tensor:
    """Memory for `native.c`: what it is told, whatever dtype and device are the default elsewhere."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _regular(model: Any) -> bool:
    """Whether every layer has the sizes that the config says: a pruned model may not."""
    config = model.config
    width = model.model.layers[0].self_attn.q_proj.out_features // config.num_attention_heads
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    wanted = [
        (hidden, heads),
        (hidden, keys),
        (hidden, keys),
        (heads, hidden),
        (hidden, inner),
        (hidden, inner),
        (inner, hidden),
    ]
    found = [[(one.in_features, one.out_features) for one in _linears(layer)] for layer in model.model.layers]
    head, table = model.lm_head, model.model.embed_tokens.weight
    return all(sizes == wanted for sizes in found) and hidden == head.in_features == table.shape[1]


def _linears(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


@cache
def _library(dtype: torch.dtype) -> ctypes.CDLL | None:
    if dtype not in _DEFINES:
        return None
    library = load(_SOURCE, _DEFINES[dtype])
    if library is not None and not library.ready():
        library = load(_SOURCE, [*_DEFINES[dtype], *_NO_TILES])
    if library is not None:
        library.scratch_floats.restype = _COUNT
    return library
