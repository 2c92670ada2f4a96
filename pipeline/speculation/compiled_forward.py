"""The Llama forward pass in one call of compiled code, for passes of few tokens on a CPU. Does not depend on decoding rules.

A pass of one or a few tokens is bound by reading the weights once, if nothing else takes time: `llama_forward.c` states how.
Where it cannot be built, `LlamaForward` does without. The weights are read where they are: a model that is trained, moved or
changed needs a new `CompiledForward`. Shapes: B rows, T tokens of a row, S slots of the cache, V tokens of the vocabulary.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from time import perf_counter
from typing import Any

import torch
from torch import nn

from pipeline.native.build import SOURCES, build, load
from pipeline.native.threads import ThreadChoice
from pipeline.speculation.nf4_layers import is_nf4, read

_SOURCE = SOURCES / "llama_forward.c"
_DEFINES = {torch.float32: [], torch.bfloat16: ["-DBF16"]}
_NO_TILES = ["-mno-amx-tile", "-mno-amx-bf16"]  # where the kernel does not grant the tile registers
# llama_forward.c sums over a multiple of 32 numbers, reads heads in vectors of 16, and needs 16 outputs.
_SUM_MULTIPLE, _HEAD_MULTIPLE, _MIN_OUTPUTS = 32, 16, 16

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("weight", "bias")),
        ("outputs", _COUNT),
        *((name, _POINTER) for name in ("nf4_codes", "nf4_table_index", "nf4_tables")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("attention_norm", "query_norm", "key_norm", "mlp_norm")),
        *((name, _Linear) for name in ("query", "key", "value", "output", "gate", "up", "down")),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _COUNT) for name in ("vocab_size", "layer_count", "hidden_size", "intermediate_size")),
        *((name, _COUNT) for name in ("heads", "key_value_heads", "head_dim")),
        ("norm_epsilon", ctypes.c_float),
        ("embedding", _POINTER),
        ("final_norm", _POINTER),
        ("lm_head", _Linear),
        ("layers", ctypes.POINTER(_Layer)),
    )


class _ForwardArgs(ctypes.Structure):
    _fields_ = (
        *((name, _COUNT) for name in ("batch", "tokens", "kept", "cache_slots")),
        *((name, _POINTER) for name in ("ids", "first_slot", "cosine", "sine", "caches", "scratch", "logits")),
        ("threads", ctypes.c_int32),
    )


_STRUCTURES = {"linear": _Linear, "layer": _Layer, "model": _Model, "forward_args": _ForwardArgs}


class CompiledForward:
    """A Llama-shaped model as `llama_forward.c` reads it. Plain matrices are the model's own, not copies; nf4 weights are copied
    into the order that it reads."""

    def __init__(self, library: ctypes.CDLL, model: Any, vocabulary: int) -> None:
        config, self._library = model.config, library
        self.max_tokens = _COUNT.in_dll(library, "llama_max_tokens").value
        self._choices: dict[tuple[int, int], ThreadChoice] = {}  # by threads that torch may use, and tokens of a pass
        self._held: list[torch.Tensor] = []  # keeps alive what the pointers point at
        self._layers = (_Layer * len(model.model.layers))(*map(self._layer, model.model.layers))
        head, attention = self._linear(model.lm_head), model.model.layers[0].self_attn
        head.outputs = min(head.outputs, vocabulary)
        self._dtype, self._vocabulary = model.dtype, head.outputs
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
        """The compiled forward of a model whose shape `LlamaForward` knows. None if its weights are not fp32 or bf16 matrices on
        a CPU, or nf4 layers of a bf16 model, if its sizes do not fit, or if nothing can be built here."""
        linears = [module for layer in model.model.layers for module in _linears(layer)] + [model.lm_head]
        plain = [module for module in linears if type(module) is nn.Linear]
        nf4 = [module for module in linears if model.dtype == torch.bfloat16 and is_nf4(module)]
        if model.device.type != "cpu" or len(plain) + len(nf4) < len(linears):
            return None
        tensors = [model.model.embed_tokens.weight, *(module.weight for module in plain)]
        biases = [module.bias for module in linears if module.bias is not None]
        if not _regular(model) or any(bias.dtype != model.dtype or not bias.is_contiguous() for bias in biases):
            return None
        readable = all(tensor.dtype == model.dtype and tensor.is_contiguous() for tensor in tensors)
        fits = not any(tensor.shape[1] % _SUM_MULTIPLE for tensor in tensors)
        head_dim = model.model.layers[0].self_attn.q_proj.out_features // model.config.num_attention_heads
        smallest = min(vocabulary, *(module.out_features for module in linears))
        if not readable or not fits or head_dim % _HEAD_MULTIPLE or smallest < _MIN_OUTPUTS:
            return None
        library = load_library(model.dtype)
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
        """Logits of the last `keep` positions, (B, keep, V), in the model's dtype. `caches` as in `llama_forward.Caches`; cosines
        and sines are fp32. Raises IndexError for an id outside the vocabulary or a slot outside the cache."""
        (batch, count), ids_BT = ids_BT.shape, ids_BT.to(torch.int64).contiguous()
        choice = self._choice(torch.get_num_threads(), batch * count)
        slots = (_COUNT * batch)(*first)
        pointers = (_POINTER * len(caches))(*[cache.data_ptr() for cache in caches])
        logits_BTV = _floats(batch, keep, self._vocabulary)
        args = _ForwardArgs(
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
            choice.threads(),
        )
        scratch = _floats(self._library.llama_scratch_floats(ctypes.byref(self._model), ctypes.byref(args)))
        args.scratch = scratch.data_ptr()
        began = perf_counter()
        error = self._library.llama_forward(ctypes.byref(self._model), ctypes.byref(args))
        choice.record(perf_counter() - began)
        if error:
            raise IndexError(
                f"no such {('token', 'slot')[error - 1]}: {count} tokens a row from slots {list(first)} on"
            )
        return logits_BTV.to(self._dtype)

    def _choice(self, most: int, tokens: int) -> ThreadChoice:
        if (most, tokens) not in self._choices:
            self._choices[most, tokens] = ThreadChoice(most)
        return self._choices[most, tokens]

    def _layer(self, layer: Any) -> _Layer:
        attention = layer.self_attn
        head_norms = [self._norm(getattr(attention, name, None)) for name in ("q_norm", "k_norm")]
        norms = [self._norm(layer.input_layernorm), *head_norms, self._norm(layer.post_attention_layernorm)]
        return _Layer(*norms, *map(self._linear, _linears(layer)))

    def _linear(self, linear: Any) -> _Linear:
        bias = self._pointer(linear.bias) if linear.bias is not None else None
        if type(linear) is nn.Linear:
            return _Linear(self._pointer(linear.weight), bias, linear.out_features)
        nf4 = read(linear)
        pointers = (self._pointer(tensor) for tensor in (nf4.codes, nf4.table_index, nf4.tables))
        return _Linear(None, bias, linear.out_features, *pointers)

    def _norm(self, norm: Any) -> int | None:
        return None if norm is None else self._pointer(norm.weight.float())

    def _pointer(self, tensor: torch.Tensor) -> int:
        self._held.append(tensor.detach())
        return tensor.data_ptr()


def _floats(*shape: int) -> torch.Tensor:
    """Memory for compiled code: fp32 on the CPU, whatever torch's default dtype and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _regular(model: Any) -> bool:
    """Whether every layer has the sizes that the config states. Layers of a pruned model may not."""
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
    layers = [[(linear.in_features, linear.out_features) for linear in _linears(layer)] for layer in model.model.layers]
    head, table = model.lm_head, model.model.embed_tokens.weight
    return all(sizes == wanted for sizes in layers) and hidden == head.in_features == table.shape[1]


def _linears(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


@cache
def load_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """llama_forward.c for `dtype`, without AMX tiles where the kernel does not grant them. None if it cannot be built."""
    if dtype not in _DEFINES:
        return None
    library = load(_SOURCE, _DEFINES[dtype], _STRUCTURES)
    if library is not None and not library.llama_features_granted():
        library = load(_SOURCE, [*_DEFINES[dtype], *_NO_TILES], _STRUCTURES)
    if library is not None:
        library.llama_scratch_floats.restype = _COUNT
    return library


def instruction_sets() -> dict[str, str]:
    """What the compiled forward uses on this processor, by dtype. The libraries are not kept. Raises NotBuilt."""
    built = {}
    for dtype, defines in _DEFINES.items():
        library = build(_SOURCE, defines, keep=False)
        if not library.llama_features_granted():
            library = build(_SOURCE, [*defines, *_NO_TILES], keep=False)
        built[str(dtype).removeprefix("torch.")] = ctypes.c_char_p.in_dll(library, "llama_instruction_sets").value
    return {dtype: (text or b"").decode() for dtype, text in built.items()}
