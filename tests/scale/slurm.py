"""A Slurm cluster on this machine: the real controller and two nodes of two GPUs each, which are only counted.

Debian: `apt-get install slurmctld slurmd slurm-client munge`. It runs as root, on ports of its own, from one directory, and ends
with the block.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
NODES = (socket.gethostname(), f"{socket.gethostname()}-second")  # the first of a step must have an address
_UP_SECONDS = 60

_CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={root}/munge.sock
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
KillWait=2
MinJobAge=3600
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=256000 Gres=gpu:2
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=256000 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def installed() -> bool:
    """Whether this machine has Slurm, and may start it."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in PROGRAMS)


@contextmanager
def cluster(root: Path) -> Iterator[dict[str, str]]:
    """The variables by which Slurm's commands find it, once both nodes are up."""
    root.chmod(0o755)
    (root / "state").mkdir()
    ports = [_free_port() for _ in range(3)]
    config = root / "slurm.conf"
    config.write_text(_CONFIG.format(root=root, host=socket.gethostname(), ports=ports, nodes=NODES))
    for number in range(2):
        (root / f"gpu{number}").touch()
    (root / "gres.conf").write_text(f"Name=gpu File={root}/gpu[0-1]\n")
    key = root / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    munge = {"key-file": key, "socket": root / "munge.sock", "pid-file": root / "munged.pid"}
    munge |= {"log-file": root / "munged.log", "seed-file": root / "munge.seed"}
    environment = {"SLURM_CONF": str(config)}
    with ExitStack() as ends:
        ends.enter_context(
            _running("munged", "--foreground", "--force", *(f"--{key}={path}" for key, path in munge.items()))
        )
        _wait_for(root / "munge.sock")
        ends.enter_context(_running("slurmctld", "-D", "-f", str(config)))
        for node in NODES:
            ends.enter_context(_running("slurmd", "-D", "-N", node, "-f", str(config)))
        _wait_for_nodes(environment)
        yield environment


@contextmanager
def _running(*command: str) -> Iterator[None]:
    """A daemon that is a child of this process; what it says is in its log."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as daemon:
        try:
            yield
        finally:
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(path: Path) -> None:
    until = time.monotonic() + _UP_SECONDS
    while not path.exists():
        assert time.monotonic() < until, f"{path} is not there"
        time.sleep(0.05)


def _wait_for_nodes(environment: dict[str, str]) -> None:
    until, said = time.monotonic() + _UP_SECONDS, ""
    while time.monotonic() < until:
        asked = ["sinfo", "--noheader", "--format=%T"]
        said = subprocess.run(asked, env=os.environ | environment, capture_output=True, text=True, check=False).stdout
        if said.split() == ["idle"]:
            return
        time.sleep(0.2)
    raise AssertionError(f"Slurm's nodes are {said}")
