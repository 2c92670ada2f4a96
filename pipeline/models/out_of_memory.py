"""Where memory runs out: an error that names the batch to lower and a size that fits, or work that goes on in smaller batches.

The batches of a stage are in the keys of its artifacts, and other batches round otherwise, so a stage ends with the error. Does
not know what the work is. Does not import torch.
"""

import errno
import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pipeline.errors import UnderstudyError

T = TypeVar("T")
_OTHERWISE = "free memory, use a device with more, or smaller or quantized models"

_SAID = (
    "can't allocate memory",  # torch's allocator on a CPU
    "cannot allocate memory",  # the system
    "not enough memory",
    "out of memory",  # CUDA, ROCm
    "std::bad_alloc",
    "alloc_failed",  # cuBLAS and cuDNN
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the error, or what it came from, is that of a full memory: of the machine, of the process, of a GPU."""
    while error is not None and not isinstance(error, UnderstudyError):  # which states already what is to be done
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if isinstance(error, Exception) and any(phrase in str(error).lower() for phrase in _SAID):
            return True
        error = error.__cause__  # not its context: a defect may show while a full memory is handled
    return False


@contextmanager
def batch_named(
    key: str,
    size: int,
    attempt: Callable[[int], object],
    remedy: Callable[[int], str] | None = None,
    otherwise: str = _OTHERWISE,
    tried: bool = True,
) -> Iterator[None]:
    """Work in batches of `size`, by the config key `key`. Where memory runs out, UnderstudyError with a size that fits.

    `attempt(n)` does what takes the most memory of a batch of n. It is called for size/2, size/4 and so on until one fits. It may
    spoil what it uses: the work has failed. `remedy(n)` states what to do; by default, to set the key to n. `otherwise`: what to
    do where none fits. `tried`: whether `attempt` works; if not, it only states by an error of memory that a batch cannot do.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _release(error)
        fits = _largest(size // 2, attempt)
        raise UnderstudyError(
            f"{key} = {size}: out of memory{_advice(key, size, fits, remedy, otherwise, tried)}"
        ) from error


@contextmanager
def remedy_named(what: str, remedy: str) -> Iterator[None]:
    """Work without a batch of its own. Where memory runs out, UnderstudyError that states what the work is, and what to do."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _release(error)
        raise UnderstudyError(f"{what}: out of memory; {remedy}, or use a device with more") from error


def _advice(key: str, size: int, fits: int, remedy: Callable[[int], str] | None, otherwise: str, tried: bool) -> str:
    if not fits:
        also = "" if size == 1 or not tried else ", and in smaller batches too"
        return f"{also}; {otherwise}"
    todo = f"set {key} to {fits}" if remedy is None else remedy(fits)
    return f"; {fits} {'fits' if tried else 'may fit'}: {todo} and run again"


def _largest(size: int, attempt: Callable[[int], object]) -> int:
    """The first of size, size/2 and so on for which the attempt succeeds; 0 if none does."""
    while size:
        try:
            attempt(size)
            return size
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            _release(error)
        size //= 2
    return 0


class SmallerBatches:
    """Work that goes on with half the batch where memory runs out, and reports it. For work whose batch changes results by
    rounding only, and no key states what it is."""

    def __init__(self, what: str, size: int, warn: Callable[[str], None], least: int = 1) -> None:
        """`what`: the work and its unit, such as "examine: tokens of a batch". No batch is made smaller than `least`."""
        self.what, self.size, self.least, self._warn = what, size, least, warn

    def run(self, work: Callable[[int], T]) -> T:
        """The result of `work(size)`, from the beginning for each size. Later calls begin with the size that fitted."""
        while True:
            try:
                return work(self.size)
            except Exception as error:
                if not is_out_of_memory(error) or self.size <= self.least:
                    raise
                _release(error)
            self.size = max(self.size // 2, self.least)
            self._warn(f"{self.what}: out of memory; going on with {self.size:,}")


def _release(error: BaseException | None) -> None:
    """Free what the failed work held: the tensors in its frames, and what a GPU's allocator keeps for later."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
