"""On a real Slurm with two nodes, which are this machine: the script of docs/examples, and a training by srun."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping

import pytest

from tests.integration.conftest import NOBODY, SMOKE, Place, Smoke
from tests.integration.test_execution import completions
from tests.integration.test_training_processes import FP32, alike, set_aside
from tests.scale import slurm
from tests.scale.test_schedulers import EXAMPLES, commands

pytestmark = pytest.mark.skipif(not slurm.installed(), reason="needs root, slurmctld, slurmd, slurm-client and munge")
_SECONDS = 900


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


def _say(environment: Mapping[str, str], place: Place, *command: object) -> str:
    ended = subprocess.run(
        [*map(str, command)],
        env=dict(environment),
        cwd=place.root,  # where Slurm writes what jobs say
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_the_script_makes_a_run_though_a_task_is_killed(
    smoke: Smoke, ungenerated: Place, cluster: dict[str, str]
) -> None:
    """As it is to be copied, with its GPUs, cores and memory: jobs on two nodes, which train one draft together. A task that has
    begun a shard is put back into the queue, as when its node fails."""
    environment = commands(ungenerated) | cluster
    script = ungenerated.root / "run.sh"
    shipped = (EXAMPLES / "slurm/run.sh").read_text()
    script.write_text(shipped.replace('training=("${resources[@]}")', "training=(--nodes=2 --ntasks=2 --gres=gpu:1)"))
    script.chmod(0o755)
    there = {"CONFIG": str(SMOKE), "STORE": str(ungenerated.store), "RUN": "slurm", "TASKS": "4"}
    said = _say(environment | there, ungenerated, script)
    share = said.partition("jobs ")[2].split(", ")[1]
    until, requeued = time.monotonic() + _SECONDS, False
    while jobs := _queue(environment, ungenerated):
        assert time.monotonic() < until, f"{jobs}\n{_logs(ungenerated)}"
        if not requeued and list((ungenerated.store / "parts").glob("*.claim")):
            running = [name for name, state in jobs if name.startswith(f"{share}_") and state == "RUNNING"]
            requeued = bool(running)
            for one in running[:1]:
                _say(environment, ungenerated, "scontrol", "requeue", one)
        time.sleep(0.1)

    assert requeued, _logs(ungenerated)
    assert completions(smoke.place) == completions(ungenerated)
    assert "distill: 2 processes on cpu" in _logs(ungenerated).splitlines()
    assert "evaluate/candidate: shards 4/4 are there" in _logs(ungenerated)
    # Refused: the draft of two processes is that of one but for rounding, which is the champion.
    assert ungenerated.record("slurm")["state"] in ("finished", "refused"), _logs(ungenerated)


def test_where_a_job_fails_nothing_stays_in_the_queue(loop: Place, cluster: dict[str, str]) -> None:
    """Jobs that depend on it would wait for ever."""
    environment = commands(loop) | cluster | {"CONFIG": str(loop.root / "none.yaml"), "STORE": str(loop.store)}
    _say(environment, loop, EXAMPLES / "slurm/run.sh")
    until = time.monotonic() + _SECONDS
    while jobs := _queue(environment, loop):
        assert time.monotonic() < until, jobs
        time.sleep(0.2)
    (said,) = loop.root.glob("slurm-*.out")
    assert "none.yaml" in said.read_text()


def _queue(environment: Mapping[str, str], place: Place) -> list[tuple[str, str]]:
    """The jobs that wait or run: id and state."""
    lines = _say(environment, place, "squeue", "--noheader", "--format=%i %T").splitlines()
    return [(line.split()[0], line.split()[1]) for line in lines]


def _logs(place: Place) -> str:
    return "\n".join(path.read_text(errors="replace") for path in sorted(place.root.glob("slurm-*.out")))


@pytest.mark.parametrize(
    "launcher",
    [
        ("srun", "--nodes=2", "--ntasks=2", "--gres=gpu:1", "--kill-on-bad-exit"),
        ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"),
    ],
    ids=lambda launcher: launcher[0],
)
def test_a_launcher_trains_in_two_processes(loop: Place, cluster: dict[str, str], launcher: tuple[str, ...]) -> None:
    """One on each node of a step, or two of MPI: rank 0 runs the command, and the draft is that of one process."""
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    assert 0 == loop.understudy("run", SMOKE, *FP32, "--run", "one", MLFLOW_TRACKING_URI=NOBODY).code
    one = set_aside(loop, "one")
    environment = commands(loop) | cluster | {"MLFLOW_TRACKING_URI": NOBODY, "OMP_NUM_THREADS": "1"}
    said = _say(environment, loop, *launcher, "understudy", "run", SMOKE, *FP32, "--run", "two", "--store", loop.store)

    assert "distill: 2 processes on cpu" in said.splitlines()
    alike(one, loop.artifact("distill", "two"))
