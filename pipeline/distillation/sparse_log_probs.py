"""The log probabilities of the draft that a sparse loss reads, and their gradient with respect to the logits in closed form.

A loss on stored distributions reads K of V log probabilities, that of one more token, and the mass of all other tokens. The
gradient of any such loss is the draft's distribution times one factor a row, except at K + 1 entries. So it takes two passes over
the logits; differentiating through log-softmax, copies and masks takes several more. On a CPU with a C compiler
`sparse_log_probs.c` makes both passes row by row, on a GPU kernels that torch compiles.

Shapes: N positions, V tokens of the vocabulary, K kept tokens.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from pipeline.native.build import SOURCES, load

_MIN_REST_MASS = 1e-30  # the mass of the tokens that are not kept is a divisor
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

    The logits of a row need not be normalised. Differentiable once. Raises IndexError (on a CPU) for a token outside the
    vocabulary.
    """
    function = _CompiledFunction if _library(logits_NV) is not None else _TorchFunction
    return SparseLogProbs(*function.apply(logits_NV, ids_NK, tokens_N))  # type: ignore[no-untyped-call]


GatherLogProbs = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], SparseLogProbs]


def fused_log_probs(logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor) -> SparseLogProbs:
    """`gather_log_probs` on a GPU whose kernels torch can compile: a fifth of the bytes."""
    return SparseLogProbs(*_FusedFunction.apply(logits_NV, ids_NK, tokens_N))  # type: ignore[no-untyped-call]


class _TorchFunction(torch.autograd.Function):
    """The function in PyTorch's operations, on any device."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_q_NV = (logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()).log_softmax(-1)
        log_q_NK = log_q_NV.gather(-1, ids_NK)
        token_log_q_N = log_q_NV.gather(-1, tokens_N.unsqueeze(-1)).squeeze(-1)
        # The rest is summed without the kept tokens: in fp32, 1 - sum(q) of the kept tokens may be 0 or negative.
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
        d_logits_NV = rest_q_NV * (d_rest_N / rest_q_N.clamp(min=_MIN_REST_MASS) - all_N).unsqueeze(-1)
        d_logits_NV.scatter_(-1, ids_NK, d_kept_NK - log_q_NK.exp() * all_N.unsqueeze(-1))
        d_logits_NV.scatter_add_(-1, tokens_N.unsqueeze(-1), d_token_N.unsqueeze(-1))
        return d_logits_NV.to(ctx.dtype), None, None


class _FusedFunction(torch.autograd.Function):
    """The function in two compiled passes, which read logits as they are and write nothing larger."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows_NV, kept_NK = logits_NV.data, logits_NV.gather(-1, ids_NK)
        token_N = logits_NV.gather(-1, tokens_N.unsqueeze(-1)).squeeze(-1).float()
        rows_NV.scatter_(-1, ids_NK, -torch.inf)  # the rest without the kept tokens; they are put back
        rest_N = _compiled(_log_sum)(rows_NV)
        rows_NV.scatter_(-1, ids_NK, kept_NK)
        log_sum_N = torch.logaddexp(rest_N, kept_NK.float().logsumexp(-1))
        log_q_NK, rest_log_q_N = kept_NK.float() - log_sum_N.unsqueeze(-1), rest_N - log_sum_N
        ctx.save_for_backward(logits_NV, log_sum_N, rest_log_q_N, log_q_NK, ids_NK, tokens_N)
        return log_q_NK, token_N - log_sum_N, rest_log_q_N

    @staticmethod
    def backward(
        ctx: Any, d_kept_NK: torch.Tensor, d_token_N: torch.Tensor, d_rest_N: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        """The gradient, as `_TorchFunction.backward` computes it."""
        logits_NV, log_sum_N, rest_log_q_N, log_q_NK, ids_NK, tokens_N = ctx.saved_tensors
        all_N = d_kept_NK.sum(-1) + d_token_N + d_rest_N
        factor_N = d_rest_N / rest_log_q_N.exp().clamp(min=_MIN_REST_MASS) - all_N
        d_logits_NV = _compiled(_weighted)(logits_NV, log_sum_N, factor_N)
        d_kept_NK = d_kept_NK - log_q_NK.exp() * all_N.unsqueeze(-1)
        # In fp32, where the token is one of the kept.
        is_token_NK = ids_NK == tokens_N.unsqueeze(-1)
        d_kept_NK = d_kept_NK + is_token_NK * d_token_N.unsqueeze(-1)
        d_token_N = torch.where(is_token_NK.any(-1), 0.0, d_token_N)
        d_logits_NV.scatter_add_(-1, tokens_N.unsqueeze(-1), d_token_N.unsqueeze(-1).to(d_logits_NV.dtype))
        d_logits_NV.scatter_(-1, ids_NK, d_kept_NK.to(d_logits_NV.dtype))
        return d_logits_NV, None, None


def _log_sum(logits_NV: torch.Tensor) -> torch.Tensor:
    return logits_NV.float().logsumexp(-1)


def _weighted(logits_NV: torch.Tensor, log_sum_N: torch.Tensor, factor_N: torch.Tensor) -> torch.Tensor:
    q_NV = (logits_NV.float() - log_sum_N.unsqueeze(-1)).exp()
    return (q_NV * factor_N.unsqueeze(-1)).to(logits_NV.dtype)


@cache
def _compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function compiled once for all numbers of rows. What cannot be compiled is computed as it is written; torch keeps that
    setting by thread, and a backward pass has one of its own."""
    compiled = torch.compile(function, dynamic=True)

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.config.patch(suppress_errors=True):
            return compiled(*tensors)

    return call


class _LogProbArgs(ctypes.Structure):
    _fields_ = (
        *((name, _COUNT) for name in ("rows", "vocab_size", "kept")),
        *(
            (name, _POINTER)
            for name in ("logits", "ids", "tokens", "log_q", "token_log_q", "rest_q", "log_sum", "scratch")
        ),
        ("threads", ctypes.c_int32),
    )


class _GradientArgs(ctypes.Structure):
    _fields_ = tuple((name, _POINTER) for name in ("log_q", "token_log_q", "rest_log_q", "logits"))


_STRUCTURES = {"log_prob_args": _LogProbArgs, "gradient_args": _GradientArgs}


@cache
def _load_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    return load(_SOURCE, _DEFINES[dtype], _STRUCTURES) if dtype in _DEFINES else None


def _library(logits_NV: torch.Tensor) -> ctypes.CDLL | None:
    return _load_library(logits_NV.dtype) if logits_NV.device.type == "cpu" else None


class _CompiledFunction(torch.autograd.Function):
    """The function in `sparse_log_probs.c`."""

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
        args, _scratch = _log_prob_args(*tensors)
        if library.sparse_log_probs_forward(ctypes.byref(args)):
            raise IndexError(f"a stored token is not among the draft's {logits_NV.shape[1]}")
        ctx.save_for_backward(*tensors)
        return log_q_NK, token_log_q_N, rest_q_N.log()

    @staticmethod
    def backward(
        ctx: Any, d_kept_NK: torch.Tensor, d_token_N: torch.Tensor, d_rest_N: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        logits_NV, *_ = tensors = ctx.saved_tensors
        library, d_logits_NV = _library(logits_NV), torch.empty_like(logits_NV)
        assert library is not None
        args, _scratch = _log_prob_args(*tensors)
        gradients = [gradient.float().contiguous() for gradient in (d_kept_NK, d_token_N, d_rest_N)]
        gradient_args = _GradientArgs(*(gradient.data_ptr() for gradient in gradients), d_logits_NV.data_ptr())
        library.sparse_log_probs_backward(ctypes.byref(args), ctypes.byref(gradient_args))
        return d_logits_NV, None, None


def _log_prob_args(*tensors: torch.Tensor) -> tuple[_LogProbArgs, torch.Tensor]:
    """The arguments of `sparse_log_probs.c`, and the scratch that they point at."""
    (rows, size), kept, threads = tensors[0].shape, tensors[1].shape[1], torch.get_num_threads()
    scratch = _floats(threads, -(-size // _LANES) * _LANES)
    pointers = [tensor.data_ptr() for tensor in (*tensors, scratch)]
    return _LogProbArgs(rows, size, kept, *pointers, threads), scratch


def _floats(*shape: int) -> torch.Tensor:
    """Memory for compiled code: fp32 on the CPU, whatever torch's default dtype and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")
