"""Which launcher started this process (torchrun, `accelerate launch`, srun, mpirun), and how many processes train a draft.

Imports nothing heavy: a command looks at this before anything else. The launcher's variables are then taken out of the
environment, because accelerate would otherwise join the other processes in every stage, and a command that this one starts would
wait for them.
"""

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.config.distill import divisors, indivisible
from pipeline.errors import UsageError

if TYPE_CHECKING:
    import torch

# Of each launcher: rank, number of processes, rank on its machine. srun's number is that of the step: a batch script that calls
# `understudy` without srun is one process, whatever SLURM_NTASKS states.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "GROUP_WORLD_SIZE")
_SETTINGS = ("TORCHELASTIC_", "ACCELERATE_")  # of a launcher: precision, FSDP and others are in our config
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"  # torchrun itself listens at MASTER_PORT
_PORT = 29500  # torch's
_STEPS_PORT, _STEPS_PORTS = 15000, 17000  # of a Slurm step: below those that a system gives to connections

Asked = int | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """This process among those of a launcher."""

    rank: int
    size: int
    local_rank: int
    address: str  # of the machine of rank 0
    port: int
    agent: bool  # whether the launcher listens at the port, and not rank 0
    attempt: str  # differs where a launcher starts its processes again, and between steps of a Slurm job


_current: list[Launch] = []


def current() -> Launch | None:
    """The launch of this process, as `take_launch` saw it; None without a launcher, and with one that started one process."""
    return _current[0] if _current else None


def take_launch(environment: MutableMapping[str, str]) -> Launch | None:
    """What the launcher states, which is taken out of `environment`. UsageError if it states something impossible."""
    launch = _launch(environment)
    taken = {*_RENDEZVOUS, *(name for names in _LAUNCHERS for name in names)}
    for name in [name for name in environment if name in taken or name.startswith(_SETTINGS)]:
        del environment[name]
    _current[:] = [launch] if launch is not None else []
    return launch


def _launch(environment: Mapping[str, str]) -> Launch | None:
    variables = next((names for names in _LAUNCHERS if names[1] in environment), None)
    if variables is None:
        _check_accelerate(environment)
        return None
    rank, size, local_rank = (_number(environment, name) for name in variables)
    if size < 2:
        return None
    if variables[0] not in environment:
        raise UsageError(
            f"{variables[1]}={size} without {variables[0]}: no launcher has started this process; unset {variables[1]}, or "
            f"set {variables[0]} to the number of each process"
        )
    if not 0 <= rank < size:
        raise UsageError(
            f"{variables[0]}={rank} and {variables[1]}={size}: no process of a launcher; unset both variables"
        )
    address = environment.get("MASTER_ADDR") or _first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return Launch(
        rank=rank,
        size=size,
        local_rank=local_rank,
        address=address,
        port=_number(environment, "MASTER_PORT") or _port(environment),
        agent=environment.get(_AGENT) == "True",
        attempt=".".join(environment.get(name, "0") for name in _attempt(variables[0])),
    )


def _attempt(rank: str) -> tuple[str, ...]:
    """Variables of the launcher that has this one for the rank. They are the same in all of its processes, and differ from step
    to step and from one start to the next."""
    return ("SLURM_JOB_ID", "SLURM_STEP_ID") if rank.startswith("SLURM") else ("TORCHELASTIC_RESTART_COUNT",)


def _check_accelerate(environment: Mapping[str, str]) -> None:
    """Without GPUs `accelerate launch --num_processes N` sets an address for N processes, and starts one."""
    if "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_PORT" in environment:
        raise UsageError(
            "`accelerate launch` was asked for several processes and has started one, as it does with --cpu: start `understudy` "
            "without a launcher and set distill.processes, or with `accelerate launch --multi_gpu` or torchrun"
        )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "0")
    if not text.isascii() or not text.isdecimal():
        raise UsageError(f"{name}={text}: not a number of a launcher; unset it")
    return int(text)


def _first_host(nodes: str) -> str:
    """The first of Slurm's list of machines, such as `a` of `a,b` and `r1n3` of `r[1-2]n[3,5]`."""
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])*", nodes)
    assert first is not None  # it may be empty
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", first[0]) or "127.0.0.1"


def _port(environment: Mapping[str, str]) -> int:
    """A port, the same in every process of a step; steps and jobs on one machine hardly ever share it."""
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "0")
    if not (job.isascii() and job.isdecimal() and step.isascii() and step.isdecimal()):
        return _PORT
    return _STEPS_PORT + (8 * int(job) + int(step)) % _STEPS_PORTS


def process_count(asked: Asked, batch: int, gpus: int, launch: Launch | None, alone: bool = False) -> int:
    """How many processes train a draft in micro-batches of `batch` rows, which are divided among them. `gpus`: those that a
    training may use; 0 on a CPU, or where it is not known yet. `alone`: it scores on-policy rounds by a target that is placed
    over all devices, of which there can be only one.

    UsageError if there are fewer GPUs, or if it must be the number of a launcher, and is not or does not divide the batch.
    """
    if alone:
        if launch is not None or asked not in ("auto", 1):
            raise UsageError(
                "distill.on_policy.rounds: each process of a training holds the target, and pair.target.device_map places one "
                "over several devices: set distill.processes to 1 and start no launcher, or leave pair.target.device_map out"
            )
        return 1
    if launch is None:
        if asked == "auto":
            return max(number for number in divisors(batch) if number <= max(1, gpus))
        if asked > gpus > 0:
            raise UsageError(
                f"distill.processes is {asked}, and the training may use {gpus} GPU{'s' * (gpus > 1)}, one for each process; set "
                "it to auto"
            )
        return asked
    if asked not in ("auto", launch.size):
        raise UsageError(
            f"distill.processes is {asked}, and the launcher has started {launch.size} processes; set it to auto, or start "
            f"{asked}"
        )
    if batch % launch.size:
        raise UsageError(f"the launcher has started {launch.size} processes, and {indivisible(launch.size, batch)}")
    return launch.size


def processes_here(asked: Asked, batch: int, device: "torch.device", alone: bool = False) -> int:
    """What `process_count` gives with the GPUs, or others of torch's accelerators, that a training on `device` may use."""
    import torch

    from pipeline.models.devices import computes_at_once

    gpus = 0
    if not computes_at_once(device):
        gpus = torch.accelerator.device_count() if device.index is None else 1
    return process_count(asked, batch, gpus, current(), alone)
