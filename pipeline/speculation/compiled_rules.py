"""Drawing and verification in compiled code, on a CPU, for sampling without filters. Does not depend on models.

In a decode of one sequence by small models, the 60 operations or so of `rules.TorchRules` on small tensors take longer than the
forward passes. `sampling.c` needs one call for a draft token and one for a verification. Shapes: B sequences, G drafted tokens,
T = G + 1 positions of a target pass, V shared tokens, P: V rounded up.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from pipeline.models.placement import input_device
from pipeline.native.build import SOURCES, load
from pipeline.speculation.rules import Drawn
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.verification import VerificationResult

_SOURCE = SOURCES / "sampling.c"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of logits whose softmax is computed in fp32
_PADDING = 16  # the most numbers of a vector in simd.h
_MIN_SHARED = 1 << 16  # logits of a batch, above which threads share its rows
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


class _DrawArgs(ctypes.Structure):
    _fields_ = (
        *((name, _COUNT) for name in ("rows", "vocab_size", "padded_size", "uniform_stride")),
        ("temperature", ctypes.c_double),
        *((name, _POINTER) for name in ("logits", "uniform", "q", "tokens", "sums")),
        ("threads", ctypes.c_int32),
    )


class _VerifyArgs(ctypes.Structure):
    _fields_ = (
        *((name, _COUNT) for name in ("rows", "drafted_size", "vocab_size", "padded_size", "uniform_stride")),
        ("temperature", ctypes.c_double),
        *((name, _POINTER) for name in ("logits", "q", "tokens", "drafted", "accept_uniform", "next_uniform")),
        *((name, _POINTER) for name in ("accepted", "next", "sums", "scratch")),
        ("threads", ctypes.c_int32),
    )


_STRUCTURES = {"draw_args": _DrawArgs, "verify_args": _VerifyArgs}


class CompiledRules:
    """`rules.Rules` for token-level verification at a temperature above 0 without filters. The same numbers as `TorchRules` to
    fp32 rounding, so a draw at the very border of two tokens may differ."""

    def __init__(self, library: ctypes.CDLL, sampling: Sampling, draft_sampling: Sampling) -> None:
        self._library = library
        self._temperature, self._draft_temperature = sampling.temperature, draft_sampling.temperature

    @classmethod
    def of(cls, models: Sequence[Any], sampling: Sampling, draft_sampling: Sampling) -> "CompiledRules | None":
        """The rules for these models; None if they are not on a CPU in one of the usual dtypes, for greedy or filtered sampling,
        or if nothing can be built here."""
        on_cpu = all(input_device(model).type == "cpu" and getattr(model, "dtype", None) in _DTYPES for model in models)
        if not on_cpu or not all(Sampling(own.temperature) == own != GREEDY for own in (sampling, draft_sampling)):
            return None
        library = _library()
        return cls(library, sampling, draft_sampling) if library is not None else None

    def draw(self, logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> Drawn:
        logits_BV = logits_BV.float().contiguous()
        rows, size = logits_BV.shape
        q_BP = _empty(rows, _padded(size), dtype=torch.float32)
        token_B, sums_B = _empty(rows, dtype=torch.int64), _empty(rows, dtype=torch.float64)
        args = _DrawArgs(
            rows,
            size,
            q_BP.shape[1],
            uniform_B.stride(0),
            self._draft_temperature,
            logits_BV.data_ptr(),
            uniform_B.data_ptr(),
            q_BP.data_ptr(),
            token_B.data_ptr(),
            sums_B.data_ptr(),
            _threads(rows, size),
        )
        self._library.draw_tokens(ctypes.byref(args))
        return Drawn(token_B, q_BP, sums_B)

    def verify(
        self,
        logits_BTV: torch.Tensor,
        draft_BG: torch.Tensor,
        q_G: Sequence[torch.Tensor],
        drafted: Sequence[int],
        accept_BG: torch.Tensor,
        next_B: torch.Tensor,
    ) -> VerificationResult:
        logits_BTV, draft_BG = logits_BTV.float().contiguous(), draft_BG.contiguous()
        rows, positions, size = logits_BTV.shape
        padded, threads = _padded(size), _threads(rows, positions * size)
        assert len(q_G) == positions - 1
        assert all(q_BP.shape == (rows, padded) for q_BP in q_G)
        assert accept_BG.stride(0) == next_B.stride(0)
        assert accept_BG.stride(1) == 1
        assert accept_BG.dtype == next_B.dtype == torch.float64
        assert draft_BG.dtype == torch.int64
        accepted_B, next_token_B = _empty(2, rows, dtype=torch.int64).unbind()
        sums_B, scratch = _empty(rows, dtype=torch.float64), _empty(threads, 2, padded, dtype=torch.float32)
        pointers = (_POINTER * len(q_G))(*[q_BP.data_ptr() for q_BP in q_G])
        counts = (_COUNT * rows)(*drafted)
        args = _VerifyArgs(
            rows,
            len(q_G),
            size,
            padded,
            next_B.stride(0),
            self._temperature,
            logits_BTV.data_ptr(),
            ctypes.addressof(pointers),
            draft_BG.data_ptr(),
            ctypes.addressof(counts),
            accept_BG.data_ptr(),
            next_B.data_ptr(),
            accepted_B.data_ptr(),
            next_token_B.data_ptr(),
            sums_B.data_ptr(),
            scratch.data_ptr(),
            threads,
        )
        self._library.verify_tokens(ctypes.byref(args))
        return VerificationResult(accepted_B, next_token_B, sums_B)


def _padded(size: int) -> int:
    return -(-size // _PADDING) * _PADDING


def _threads(rows: int, numbers: int) -> int:
    """One thread for little work: waking the others takes longer than it."""
    return min(rows, torch.get_num_threads()) if rows * numbers >= _MIN_SHARED else 1


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for compiled code: on the CPU, whatever torch's default device is."""
    return torch.empty(shape, dtype=dtype, device="cpu")


@cache
def _library() -> ctypes.CDLL | None:
    return load(_SOURCE, structures=_STRUCTURES)
