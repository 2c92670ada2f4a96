"""Where memory runs out: which errors say so, the batch that is named, and work that goes on in smaller batches."""

import errno
import os
import weakref

import pytest
import torch

from pipeline.errors import UnderstudyError
from pipeline.models.out_of_memory import SmallerBatches, batch_named, is_out_of_memory, remedy_named

CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB")


class _Memory:
    """A device that holds `room`; a batch takes as much as its size. `tried`: the sizes that were asked for."""

    def __init__(self, room: int, error: Exception = CUDA) -> None:
        self.room, self.error, self.tried = room, error, list[int]()

    def take(self, size: int) -> int:
        self.tried.append(size)
        if size > self.room:
            raise self.error
        return size


@pytest.mark.parametrize(
    "error",
    [
        CUDA,
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("HIP out of memory"),
    ],
    ids=lambda error: str(error)[:30],
)
def test_errors_of_a_full_memory_are_known(error: Exception) -> None:
    """Of Python, of the system, of torch on a CPU and of its GPUs; also where a library raised another error from it."""
    wrapped = ValueError("loading failed")
    wrapped.__cause__ = error
    assert is_out_of_memory(error)
    assert is_out_of_memory(wrapped)


def test_other_errors_are_not_of_memory() -> None:
    """Nor is one of ours, which says already what to do."""
    ours = UnderstudyError("generate.batch = 8: out of memory; 4 fits")
    ours.__cause__ = CUDA
    for error in (RuntimeError("size mismatch"), ours, None):
        assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    ("size", "room", "said", "tried"),
    [
        (64, 20, "generate.batch = 64: out of memory; 16 fits: set generate.batch to 16 and run again", [64, 32, 16]),
        (3, 1, "generate.batch = 3: out of memory; 1 fits: set generate.batch to 1 and run again", [3, 1]),
        (
            4,
            0,
            "generate.batch = 4: out of memory, and in smaller batches too; free memory, use a device with more",
            [4, 2, 1],
        ),
        (1, 0, "generate.batch = 1: out of memory; free memory, use a device with more", [1]),
    ],
)
def test_the_error_names_the_key_and_a_size_that_fits(size: int, room: int, said: str, tried: list[int]) -> None:
    """It was tried: half, a quarter, and so on. Where one does not fit either, no batch helps."""
    memory = _Memory(room)
    with pytest.raises(UnderstudyError) as found, batch_named("generate.batch", size, memory.take):
        memory.take(size)
    assert str(found.value).startswith(said)
    assert tried == memory.tried


def test_another_error_is_not_named_as_one_of_memory() -> None:
    """It keeps its traceback, also where it comes from the attempt."""
    memory = _Memory(1)
    with pytest.raises(ZeroDivisionError), batch_named("generate.batch", 4, memory.take):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), batch_named("generate.batch", 4, lambda size: 1 // 0):
        memory.take(4)


def test_work_without_a_batch_names_what_makes_it_unnecessary() -> None:
    """Another error, and one of ours, stays as it is."""
    with (
        pytest.raises(UnderstudyError, match=r"^speed: out of memory; set speed to 0, or use a device with more$"),
        remedy_named("speed", "set speed to 0"),
    ):
        raise CUDA
    for error in (ZeroDivisionError("other"), UnderstudyError("generate.batch = 8: out of memory; 4 fits")):
        with pytest.raises(type(error), match=f"^{error}$"), remedy_named("speed", "set speed to 0"):
            raise error


def test_a_remedy_may_name_more_than_the_key() -> None:
    """Such as the accumulation of gradients, with which a smaller batch trains the same."""
    memory = _Memory(4)
    with (
        pytest.raises(UnderstudyError, match=r"4 fits: set a to 4 and b to 2 and run again"),
        batch_named("a", 8, memory.take, lambda fits: f"set a to {fits} and b to {8 // fits}"),
    ):
        memory.take(8)


def test_what_the_failed_work_held_is_freed_before_a_smaller_batch_is_tried() -> None:
    """Otherwise the smaller batch has less memory than it would have after a restart."""
    held, alive = list[weakref.ref[torch.Tensor]](), list[bool]()

    def work(size: int) -> int:
        tensor = torch.zeros(size)
        alive.append(any(ref() is not None for ref in held))
        held.append(weakref.ref(tensor))
        if size > 2:
            raise CUDA
        return size

    with pytest.raises(UnderstudyError, match="2 fits"), batch_named("generate.batch", 8, work):
        work(8)
    assert 2 == SmallerBatches("work", 8, lambda line: None).run(work)
    assert [False] * 6 == alive


def test_work_goes_on_in_smaller_batches_and_says_so() -> None:
    """The size that fitted is kept for the next time."""
    memory, lines = _Memory(20), list[str]()
    batches = SmallerBatches("examine: tokens of a batch", 64, lines.append)
    assert [16, 16] == [batches.run(memory.take) for _ in range(2)]
    assert [64, 32, 16, 16] == memory.tried
    assert [f"examine: tokens of a batch: out of memory; going on with {size}" for size in (32, 16)] == lines


@pytest.mark.parametrize(("error", "tried"), [(CUDA, [8, 4, 3]), (ZeroDivisionError(), [8])])
def test_work_that_cannot_be_made_smaller_fails_with_its_error(error: Exception, tried: list[int]) -> None:
    """At the least batch, and at once with an error that is not of memory."""
    memory = _Memory(0, error)
    with pytest.raises(type(error)):
        SmallerBatches("work", 8, lambda line: None, least=3).run(memory.take)
    assert tried == memory.tried
