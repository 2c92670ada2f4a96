"""The draft's log-probabilities that a sparse loss needs, with a closed-form backward pass.

A loss on stored distributions reads K of V log-probabilities, that of the completion token, and the mass of all others. The
gradient is the draft's distribution times one number per row, except for K + 1 entries. This takes two passes over the logits;
autograd through log-softmax, copies and masks takes several more. On a CPU with a C compiler `sparse_log_probs.c` does it row
by row. Shapes: N positions, V tokens, K stored.
"""

import ctypes
from functools import cache
from typing import Any, NamedTuple

import torch

from pipeline.native.build import SOURCES, load

_LEAST_MASS = 1e-30  # lower bound of the rest's mass as a divisor
_SOURCE = SOURCES / "sparse_log_probs.c"
_DEFINES = {torch.float32: [], torch.bfloat16: ["-DBF16"]}
_LANES = 16
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


class SparseLogProbs(NamedTuple):
    log_q_NK: torch.Tensor
    token_log_q_N: torch.Tensor
    rest_log_q_N: torch.Tensor  # log of the mass of all other tokens; -inf if there is none


def gather_log_probs(logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor) -> SparseLogProbs:
    """log q of the tokens `ids_NK` (distinct within a row), of `tokens_N`, and of all tokens but `ids_NK` together; in fp32, or
    fp64 for fp64 logits.

    Invariant to a constant added to a row of logits. Differentiable once. Raises IndexError (on a CPU) for a token id outside
    the vocabulary.
    """
    way = _CompiledForm if _library(logits_NV) is not None else _TorchForm
    return SparseLogProbs(*way.apply(logits_NV, ids_NK, tokens_N))  # type: ignore[no-untyped-call]


class _TorchForm(torch.autograd.Function):
    """In PyTorch, for any device."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_q_NV = (logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()).log_softmax(-1)
        log_q_NK = log_q_NV.gather(-1, ids_NK)
        token_log_q_N = log_q_NV.gather(-1, tokens_N.unsqueeze(-1)).squeeze(-1)
        # Sum without the stored tokens: 1 - sum(q) over them would cancel to 0 or below in fp32.
        rest_q_NV = log_q_NV.exp_().scatter_(-1, ids_NK, 0.0)
        rest_q_N = rest_q_NV.sum(-1)
        ctx.save_for_backward(rest_q_NV, rest_q_N, log_q_NK, ids_NK, tokens_N)
        ctx.dtype = logits_NV.dtype
        return log_q_NK, token_log_q_N, rest_q_N.log()

    @staticmethod
    def backward(
        ctx: Any, d_kept_NK: torch.Tensor, d_token_N: torch.Tensor, d_rest_N: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        """d log q_k / d logit_i = [i = k] - q_i;  d log(rest) / d logit_i = [i not kept] q_i / rest - q_i."""
        rest_q_NV, rest_q_N, log_q_NK, ids_NK, tokens_N = ctx.saved_tensors
        all_N = d_kept_NK.sum(-1) + d_token_N + d_rest_N
        d_logits_NV = rest_q_NV * (d_rest_N / rest_q_N.clamp(min=_LEAST_MASS) - all_N).unsqueeze(-1)
        d_logits_NV.scatter_(-1, ids_NK, d_kept_NK - log_q_NK.exp() * all_N.unsqueeze(-1))
        d_logits_NV.scatter_add_(-1, tokens_N.unsqueeze(-1), d_token_N.unsqueeze(-1))
        return d_logits_NV.to(ctx.dtype), None, None


class _Selection(ctypes.Structure):
    _fields_ = (
        *((name, _COUNT) for name in ("rows", "size", "kept")),
        *(
            (name, _POINTER)
            for name in ("logits", "ids", "tokens", "log_q", "token_log_q", "rest_q", "log_sum", "scratch")
        ),
        ("threads", ctypes.c_int),
    )


class _Gradients(ctypes.Structure):
    _fields_ = tuple((name, _POINTER) for name in ("kept", "token", "rest", "logits"))


@cache
def _built(dtype: torch.dtype) -> ctypes.CDLL | None:
    return load(_SOURCE, _DEFINES[dtype]) if dtype in _DEFINES else None


def _library(logits_NV: torch.Tensor) -> ctypes.CDLL | None:
    return _built(logits_NV.dtype) if logits_NV.device.type == "cpu" else None


class _CompiledForm(torch.autograd.Function):
    """In C, see `sparse_log_probs.c`."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        read = [logits_NV.contiguous(), ids_NK.long().contiguous(), tokens_N.long().contiguous()]
        log_q_NK = _floats(*ids_NK.shape)
        token_log_q_N, rest_q_N, log_sum_N = _floats(3, len(logits_NV)).unbind()
        tensors = [*read, log_q_NK, token_log_q_N, rest_q_N, log_sum_N]
        library = _library(logits_NV)
        assert library is not None
        selection, _scratch = _selection(*tensors)
        if library.forward(ctypes.byref(selection)):
            raise IndexError(f"a stored token id is outside the draft's vocabulary of {logits_NV.shape[1]}")
        ctx.save_for_backward(*tensors)
        return log_q_NK, token_log_q_N, rest_q_N.log()

    @staticmethod
    def backward(
        ctx: Any, d_kept_NK: torch.Tensor, d_token_N: torch.Tensor, d_rest_N: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        logits_NV, *_ = tensors = ctx.saved_tensors
        library, d_logits_NV = _library(logits_NV), torch.empty_like(logits_NV)
        assert library is not None
        selection, _scratch = _selection(*tensors)
        given = [gradient.float().contiguous() for gradient in (d_kept_NK, d_token_N, d_rest_N)]
        slopes = _Gradients(*(gradient.data_ptr() for gradient in given), d_logits_NV.data_ptr())
        library.backward(ctypes.byref(selection), ctypes.byref(slopes))
        return d_logits_NV, None, None


def _selection(*tensors: torch.Tensor) -> tuple[_Selection, torch.Tensor]:
    """The argument struct of `sparse_log_probs.c`, and the scratch buffer that it points to."""
    (rows, size), kept, threads = tensors[0].shape, tensors[1].shape[1], torch.get_num_threads()
    scratch = _floats(threads, -(-size // _LANES) * _LANES)
    pointers = [tensor.data_ptr() for tensor in (*tensors, scratch)]
    return _Selection(rows, size, kept, *pointers, threads), scratch


def _floats(*shape: int) -> torch.Tensor:
    """fp32 CPU memory for compiled code, independent of torch's default dtype and device."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")
