"""Trains a draft in several processes: starts them, shows how far the first of them is, and ends all when one ends.

This process stays outside: it has the store, its locks and the registry. The workers write checkpoints, best weights and the log
into the training's directory; afterwards the training is finished there, and this process only loads it. A worker ends when its
standard input does, so none outlives the process that started it, however that ends.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from pipeline.distillation import launchers
from pipeline.distillation.processes import MEETING, Control
from pipeline.distillation.training_task import FILE, TrainingTask
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress

WORKER = "pipeline.commands.training_process"
ALL_WORKERS = "pipeline.commands.training_processes"
SAID = "understudy: "  # begins a line of stderr that says why a worker ends
_TRAINED = "trained"  # in the training's directory: the workers have finished it
_ROOT = Path(__file__).parents[2]
_LOOK_SECONDS, _POLL_SECONDS, _END_SECONDS, _LAST_LINES = 0.3, 0.05, 10.0, 30
_WITHOUT_REASON = "has ended with exit code"  # said of a worker by whoever started it
_controls: list[Control] = []


@contextlib.contextmanager
def leading(control: Control) -> Iterator[None]:
    """In the first process of a launcher: the others train with this one, and end with it."""
    _controls.append(control)
    try:
        yield
    finally:
        _controls.remove(control)
        control.end()


def serve(control: Control) -> None:
    """In every other process of a launcher: take part in each training, until the first process ends."""
    while (said := control.next_task()) is not None:
        port, task = said.split(" ", 1)
        _work_here(Path(task), int(port), control, Progress())
    control.left()


def train_in_processes(task: TrainingTask, processes: int, progress: Progress) -> None:
    """Train as `task` says, unless that is done. UnderstudyError, after all processes have ended, if one of them failed."""
    done = task.work / _TRAINED
    if processes == 1 or done.exists():
        return
    task.work.mkdir(parents=True, exist_ok=True)
    task.write(path := (task.work / FILE).absolute())
    progress.line(f"distill: {processes} processes on {task.device}{', which divide the draft' if task.shard else ''}")
    if _controls:
        _controls[0].meet()
        port = _free_port()
        _controls[0].tell(f"{port} {path}")
        _work_here(path, port, _controls[0], progress)
    else:
        _run([*_python(ALL_WORKERS), str(processes), str(path)], _environment(processes), None, progress)
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
        _run([*_python(WORKER), str(task)], dict(os.environ) | _own_packages() | own, control, progress)
    except UnderstudyError as error:
        control.fail(str(error))
        raise


def _python(module: str) -> list[str]:
    return [sys.executable, "-P", "-m", module]


def _own_packages() -> dict[str, str]:
    """`pipeline` is this package, whatever lies in the current directory."""
    return {"PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]), "PYTHONSAFEPATH": "1"}


def _environment(processes: int) -> dict[str, str]:
    """Of the workers that are started here: the cores are divided among them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = {"OMP_NUM_THREADS": str(max(1, cores // processes))}
    return given | dict(os.environ) | _own_packages()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _run(command: list[str], environment: Mapping[str, str], control: Control | None, progress: Progress) -> None:
    """Run it to its end, which is also that of a training that failed elsewhere. Its stdout is progress."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for this process, which ends the others
    )
    last, reasons = deque[str](maxlen=_LAST_LINES), list[str]()
    readers = [
        threading.Thread(target=_relay, args=(process.stdout, progress), daemon=True),
        threading.Thread(target=_collect, args=(process.stderr, last, reasons), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        elsewhere = _wait(process, control)
    finally:
        _end(process)
        for reader in readers:
            reader.join(_END_SECONDS)
    if elsewhere is None and process.returncode == 0:
        return
    if elsewhere is None and (not reasons or _WITHOUT_REASON in reasons[0]):
        for line in last:
            progress.line(line)
    raise UnderstudyError(
        next(iter(reasons), None)
        or elsewhere
        or f"distill: a training process has ended with exit code {process.returncode}; its last lines are above"
    )


def _wait(process: subprocess.Popen[str], control: Control | None) -> str | None:
    """Until it has ended, or the training has failed elsewhere: then why."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_SECONDS)
            return None
        if control is not None and (failure := control.failure()) is not None:
            return failure


def _end(process: subprocess.Popen[str]) -> None:
    """End it with all that it has started: they see the end of their input."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(_END_SECONDS)


def _relay(stream: IO[str], progress: Progress) -> None:
    for line in stream:
        progress.line(line.rstrip("\n"))


def _collect(stream: IO[str], last: deque[str], reasons: list[str]) -> None:
    """The last lines, and the reasons why workers ended."""
    for line in stream:
        line = line.rstrip("\n")
        last.append(line)
        if line.startswith(SAID):
            reasons.append(line.removeprefix(SAID))


def launch_all(processes: int, task: Path) -> None:
    """Start the workers of one machine, and wait for their end. Run in a process of its own: what is started here ends with its
    process group, and each worker with its input. UnderstudyError naming the process that ended first, if one failed."""
    with tempfile.TemporaryDirectory() as place:
        # They meet at a file, and talk over the loopback interface: nothing of theirs can be reached from another machine.
        size = {name: str(processes) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        shared = {MEETING: str(Path(place, "meeting")), "MASTER_ADDR": "127.0.0.1"} | size | _loopback()
        workers = [
            subprocess.Popen(
                [*_python(WORKER), str(task)],
                env=dict(os.environ) | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
            )
            for rank in range(processes)
        ]
        codes = dict[int, int]()
        while len(codes) < processes and not any(codes.values()):
            time.sleep(_POLL_SECONDS)
            codes = {rank: code for rank, one in enumerate(workers) if (code := one.poll()) is not None}
        for one in workers:
            one.terminate()
        for one in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(_END_SECONDS)
            one.kill()
    if any(codes.values()):
        raise UnderstudyError(_first_end({rank: code for rank, code in codes.items() if code}, processes))


def _loopback() -> dict[str, str]:
    """Where the processes of one machine listen for each other. A user's own choice stands."""
    name = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {key: os.environ.get(key, name) for key in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}


def _first_end(codes: Mapping[int, int], processes: int) -> str:
    """Which process ended. One that was killed makes others fail, whose connections it breaks; SIGTERM is for all of them, from
    whoever ends the training."""
    rank, code = min(codes.items(), key=lambda one: (one[1] == -signal.SIGTERM, one[1] >= 0, one[0]))
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"{_WITHOUT_REASON} {code}"
    return f"distill: training process {rank + 1} of {processes} {how}; checkpoints are kept, run again to resume"
