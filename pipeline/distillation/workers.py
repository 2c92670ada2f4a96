"""Trains a draft in several processes: starts them, shows how far the first of them is, and ends all when one ends.

This process stays outside: it has the store, its locks and the registry. The workers write checkpoints, best weights and the log
into the training's directory; afterwards the training is finished there, and this process only loads it.
"""

import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from pipeline.distillation import launchers
from pipeline.distillation.processes import MEETING, Control
from pipeline.distillation.settings import TASK, TrainingTask
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.store.worker_processes import Ended, Failed, Worker, environment_of_each, ready

_TRAINED = "trained"  # in the training's directory: the workers have finished it
_LOOK_SECONDS, _LAST_BYTES, _LAST_LINES = 0.3, 1 << 16, 30
_controls: list[Control] = []


@contextlib.contextmanager
def leading(control: Control) -> Iterator[None]:
    """The context of the first process of a launcher: the others train with this one, and end with it."""
    _controls.append(control)
    try:
        yield
    finally:
        _controls.remove(control)
        control.end()


def serve(control: Control) -> None:
    """Called by every other process of a launcher: take part in each training, until the first process ends."""
    while (said := control.next_task()) is not None:
        port, task = said.split(" ", 1)
        _work_here(Path(task), int(port), control, Progress())
    control.left()


def train_in_processes(task: TrainingTask, processes: int, progress: Progress) -> None:
    """Train as `task` states, unless that is done. Raises, after all processes have ended, the error of the one that failed
    first; UnderstudyError where one was killed."""
    done = task.work / _TRAINED
    if processes == 1 or done.exists():
        return
    task.work.mkdir(parents=True, exist_ok=True)
    task.write(path := (task.work / TASK).absolute())
    progress.line(f"distill: {processes} processes on {task.device}{', which divide the draft' if task.shard else ''}")
    if _controls:
        _controls[0].meet()
        port = _free_port()
        _controls[0].tell(f"{port} {path}")
        _work_here(path, port, _controls[0], progress)
    else:
        with tempfile.TemporaryDirectory() as place:
            _train(path, _places_here(processes, Path(place, "meeting")), None, progress)
    done.touch()


def _work_here(task: Path, port: int, control: Control, progress: Progress) -> None:
    """The worker of this process of a launcher."""
    launch = launchers.current()
    assert launch is not None
    own = {
        "RANK": str(launch.rank),
        "WORLD_SIZE": str(launch.size),
        "LOCAL_RANK": str(launch.local_rank),
        "MASTER_ADDR": launch.address,
        "MASTER_PORT": str(port),
    }
    try:
        _train(task, [dict(os.environ) | own], control, progress)
    except Exception as error:
        control.fail(str(error))
        raise


def _places_here(processes: int, meeting: Path) -> list[dict[str, str]]:
    """The environments of the workers of one machine. They meet at a file, and talk over the loopback interface, unless the user
    has chosen another: nothing of theirs can be reached from another machine."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    shared = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback} | environment_of_each(processes)
    shared |= {MEETING: str(meeting), "MASTER_ADDR": "127.0.0.1"}
    shared |= {name: str(processes) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _train(task: Path, places: Sequence[Mapping[str, str]], control: Control | None, progress: Progress) -> None:
    """A worker in each place, until all have ended, or the training has failed here or elsewhere."""
    workers = dict[Worker, str]()  # with their names
    with tempfile.TemporaryFile() as output:
        try:
            for place in places:
                worker = Worker(take_part, task, environment=place, output=output)
                workers[worker] = f"training process {int(place['RANK']) + 1} of {place['WORLD_SIZE']}"
            wrong, elsewhere = _followed(workers, control, progress)
        finally:
            for worker in workers:
                worker.end()
        if any(isinstance(message, Ended) and message.code > 0 for message in wrong.values()):
            _show_end(output, progress)  # of what libraries print, which states why
    if wrong or elsewhere:
        raise _first_error(wrong, elsewhere)


def _followed(
    workers: Mapping[Worker, str], control: Control | None, progress: Progress
) -> tuple[dict[str, Failed | Ended], str | None]:
    """Show the lines of the workers until all have ended or something went wrong: which of them failed, by name, and why the
    training failed elsewhere. A worker that fails breaks the connections of others, which then fail too: all that is sent by then
    is heard."""
    left, wrong, elsewhere = set(workers), dict[str, Failed | Ended](), None
    while left:
        heard = ready(left, 0 if wrong or elsewhere else _LOOK_SECONDS)
        if not heard and (wrong or elsewhere):
            break
        for worker in heard:
            message = worker.next()
            if isinstance(message, str):
                progress.line(message)
                continue
            left.remove(worker)
            if isinstance(message, Failed) or message.code:
                wrong[workers[worker]] = message
        elsewhere = None if control is None else control.failure()
    return wrong, elsewhere


def _first_error(wrong: Mapping[str, Failed | Ended], elsewhere: str | None) -> Exception:
    """The one from which the others follow: the first that states why; else that of a worker which was killed, as that breaks the
    connections of others. SIGTERM is for all of them, from whoever ends the training."""
    failures = list[tuple[int, float, Exception]]()  # rank, time
    for name, message in wrong.items():
        if isinstance(message, Failed):
            error = message.error()
            failures.append((0 if isinstance(error, UnderstudyError) else 3, message.at, error))
        else:
            rank = 4 if message.code > 0 else 5 if message.code == -signal.SIGTERM else 1
            error = UnderstudyError(f"distill: {name} {message}; checkpoints are kept, run again to resume")
            failures.append((rank, 0.0, error))
    if elsewhere:
        failures.append((2, 0.0, UnderstudyError(elsewhere)))
    return min(failures, key=lambda failure: failure[:2])[2]


def _show_end(output: IO[bytes], progress: Progress) -> None:
    output.seek(0)
    for line in output.read().decode(errors="replace").splitlines()[-_LAST_LINES:]:
        progress.line(line)


def take_part(connection: Connection, task: Path) -> None:
    """A worker. The lines of the first one are its messages."""
    from pipeline.distillation.task import work

    work(task, connection.send)
