"""The processes of one training, and what they tell each other. Only this module and `sharding.py` know torch.distributed.

In one process every function does what its name states of one process, without torch.distributed. Several processes must call the
functions that exchange something in the same order.
"""

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from pipeline.distillation.launchers import Launch
from pipeline.errors import UnderstudyError, UsageError

T = TypeVar("T")
MEETING = "UNDERSTUDY_MEETING"  # the file at which the processes of one machine meet
_NEVER = timedelta(days=30)  # a process that has died is noticed by whoever started it, not by a time limit
_LOOK, _MEET_SECONDS, _LEAVE_SECONDS = timedelta(seconds=60), 300.0, 10.0


def join(kind: str) -> torch.device:
    """Join the processes that the environment names; `kind`: of their devices, such as cuda. Returns this process's device, of
    those of its machine the one of its number there. On one machine they meet at a file, and with a launcher at its MASTER_ADDR,
    a port that takes everybody."""
    backend, device = _backend(kind), torch.device(kind)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if kind != "cpu":
        device = torch.device(kind, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device)
    meeting = os.environ.get(MEETING)
    store = dist.FileStore(meeting, size) if meeting else None  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_NEVER)
    return device


def _backend(kind: str) -> str:
    """The backend by which torch exchanges tensors of these devices, such as nccl. UsageError where it has nothing."""
    try:
        backend: str = dist.get_default_backend_for_device(kind)
        return backend
    except ValueError:
        raise UsageError(
            f"distill.processes: torch has no exchange of tensors between devices of the kind {kind}; set it to 1"
        ) from None


def leave() -> None:
    """Leave the processes' group, once all are done."""
    wait_for_all()
    if dist.is_initialized():
        dist.destroy_process_group()


def count() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def number() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if count() > 1 else 0


def is_first() -> bool:
    """Whether this process writes files and prints how far the training is."""
    return number() == 0


def from_first(make: Callable[[], T]) -> T:
    """What `make` returns in the first process, in every process."""
    if count() == 1:
        return make()
    made: list[Any] = [make() if is_first() else None]
    dist.broadcast_object_list(made)
    return made[0]  # type: ignore[no-any-return]


def wait_for_all() -> None:
    """Wait until every process has come here."""
    if count() > 1:
        dist.barrier()


def in_turn(make: Callable[[], T]) -> T:
    """What `make` returns in this process. One process calls it at a time."""
    for turn in range(count()):
        if turn == number():
            made = make()
        wait_for_all()
    return made


def spread(groups: Sequence[Sequence[int]], work: Callable[[list[int]], Sequence[T]]) -> list[T]:
    """`work(numbers)`, a result a number, for 0 to n - 1: each process does some of the groups, which hold each number once. The
    results of all numbers, in order, in every process."""
    mine = sorted(item for place, group in enumerate(groups) if place % count() == number() for item in group)
    results = dict(zip(mine, work(mine), strict=True))
    if count() > 1:
        parts: list[Any] = [None] * count()
        dist.all_gather_object(parts, results)
        results = {item: result for part in parts for item, result in part.items()}
    return [results[item] for item in range(len(results))]


def one_each(
    inputs: Sequence[list[torch.Tensor]], work: Callable[[list[torch.Tensor]], list[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """`work` on each of at most as many inputs as there are processes: each process does one, and sends the others the tensors
    that come of it, which have the shapes and the dtype of the input."""
    mine = [
        result.to(tensor.dtype).contiguous()
        for some in inputs[number() : number() + 1]
        for tensor, result in zip(some, work(some), strict=True)
    ]
    results = list[list[torch.Tensor]]()
    for place, some in enumerate(inputs):
        results.append(mine if place == number() else [torch.empty_like(tensor) for tensor in some])
        for tensor in results[-1]:
            dist.broadcast(tensor, place)
    return results


def summed(values: torch.Tensor) -> torch.Tensor:
    """The sum of `values` over the processes."""
    if count() > 1:
        dist.all_reduce(values)
    return values


def inside_forward(wrapper: Any, model: Any, compute: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """`compute(model)` inside the forward of `wrapper` around it (DDP), or of itself where it is divided (FSDP2). Its hooks
    exchange weights and gradients: what is computed outside has gradients of its own process alone, and no whole
    weights."""
    if count() == 1:
        return compute(model)
    before = vars(model).get("forward")  # accelerate may have put one over that of the class

    def restore() -> None:
        vars(model).pop("forward", None)
        if before is not None:
            model.forward = before

    def once() -> torch.Tensor:
        restore()
        return compute(model)

    model.forward = once
    try:
        loss: torch.Tensor = wrapper()
        return loss
    finally:
        restore()


class Control:
    """How the first process of a launcher sends the others what to train, and that it has ended: a key-value store of torch."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self._trainings = launch, 0
        listens = launch.rank == 0 and not launch.agent
        try:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                launch.address, launch.port, is_master=listens, wait_for_workers=False
            )
        except dist.DistError as error:
            raise UnderstudyError(
                f"{launch.address}:{launch.port}: the processes of the launcher do not find each other "
                f"({str(error).splitlines()[0]}); see MASTER_ADDR and MASTER_PORT"
            ) from None
        self._store = dist.PrefixStore(f"understudy/{launch.attempt}", store)  # type: ignore[attr-defined]
        if launch.rank > 0:
            self._store.add("there", 1)

    def meet(self) -> None:
        """In the first process: wait until every other one is there. UnderstudyError where some do not come: without them a
        training would wait for ever."""
        until, size = time.monotonic() + _MEET_SECONDS, self._launch.size
        while (there := 1 + self._store.add("there", 0)) < size:
            if time.monotonic() > until:
                raise UnderstudyError(
                    f"distill: only {there} of the {size} processes of the launcher are there; the others have ended, or were "
                    "never started (a shell within srun has the variables of its step)"
                )
            time.sleep(0.05)

    def tell(self, task: str) -> None:
        """Send every other process what to train."""
        self._trainings += 1
        self._store.set(f"training/{self._trainings}", task)

    def next_task(self) -> str | None:
        """The next training; None when the first process has ended. UnderstudyError when it does not answer."""
        self._trainings += 1
        key = f"training/{self._trainings}"
        while True:
            try:
                self._store.wait([key], _LOOK)
            except dist.DistStoreError:  # not yet
                continue
            except dist.DistError:
                raise UnderstudyError("the first process of the launcher has ended") from None
            return self._store.get(key).decode() or None

    def fail(self, reason: str) -> None:
        """Tell every process that the training has failed here."""
        self._store.set(f"failure/{self._trainings}", reason)

    def failure(self) -> str | None:
        """Why the training has failed in another process."""
        key = f"failure/{self._trainings}"
        try:
            return self._store.get(key).decode() if self._store.check([key]) else None
        except dist.DistError:
            return "the first process of the launcher has ended"

    def end(self) -> None:
        """In the first process: let the others end, and wait until they have confirmed it, because the store ends with this
        process."""
        self.tell("")
        until = time.monotonic() + _LEAVE_SECONDS
        while self._store.add("left", 0) < self._launch.size - 1 and time.monotonic() < until:
            time.sleep(0.05)

    def left(self) -> None:
        """In every other process: confirm the end."""
        self._store.add("left", 1)
