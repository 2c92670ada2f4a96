"""The Slurm script and the Kubernetes Job of docs/examples, with four processes on one disk in place of nodes."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.integration.conftest import SMOKE, Place, Smoke, command_line
from tests.integration.test_execution import completions, shard_times

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
ROOT = Path(__file__).resolve().parents[2]

# Submits as Slurm does: runs a job at once, an array as so many processes, and prints an id.
SBATCH = """#!{python}
import os, subprocess, sys
options = [word for word in sys.argv[1:] if word.startswith("--")]
call = [word for word in sys.argv[1:] if not word.startswith("--")]
array = next((one[8:].split("-") for one in options if one.startswith("--array=")), None)
numbers = range(int(array[0]), int(array[1]) + 1) if array else [0]
jobs = [subprocess.Popen(call, env=os.environ | {{"SLURM_ARRAY_TASK_ID": str(n)}}, stdout=sys.stderr) for n in numbers]
failed = [n for n, job in zip(numbers, jobs) if job.wait()]
print(4711)
sys.exit(f"failed: {{failed}}" if failed else 0)
"""


def commands(place: Place) -> dict[str, str]:
    """An environment in which `understudy` is on the PATH."""
    _program(place, "understudy", f'#!/bin/sh\nexec {" ".join(map(repr, command_line()))} "$@"\n')
    return place.environment(PYTHONPATH=str(ROOT)) | {"PATH": f"{place.root / 'bin'}:{os.environ['PATH']}"}


def _program(place: Place, name: str, text: str) -> None:
    (place.root / "bin").mkdir(exist_ok=True)
    (place.root / "bin" / name).write_text(text)
    (place.root / "bin" / name).chmod(0o755)


def test_the_slurm_script_makes_a_run(smoke: Smoke, ungenerated: Place) -> None:
    """Four tasks at once, twice: the completions and examinations of one process."""
    stopped = ungenerated.root / "config.yaml"
    stopped.write_text(SMOKE.read_text())
    _program(ungenerated, "sbatch", SBATCH.format(python=sys.executable))
    _program(ungenerated, "srun", '#!/bin/sh\nshift\nexec "$@"\n')  # one task, without its only option
    there = {"CONFIG": str(stopped), "STORE": str(ungenerated.store), "RUN": "slurm", "TASKS": "4"}
    ended = subprocess.run(
        [EXAMPLES / "slurm/run.sh"],
        env=commands(ungenerated) | there,
        cwd=ungenerated.cwd,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert "run slurm: jobs 4711, 4711, 4711, 4711, 4711" in ended.stdout, ended.stderr
    for job in ("generate", "evaluate/candidate"):
        assert [f"{job}: shards {n}/4 are there" in ended.stderr for n in range(1, 5)] == [True] * 4
    made, found = smoke.place.contents(), ungenerated.contents()
    for name in (name for name in made if name.startswith(("generate-", "evaluate-"))):
        assert made[name] == found[name], name


def test_the_kubernetes_job_makes_all_shards(smoke: Smoke, ungenerated: Place) -> None:
    """Its command for each index, four at once; then the stage itself has nothing to generate."""
    job = yaml.safe_load((EXAMPLES / "kubernetes/shards.yaml").read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    given = {one["name"]: one["value"] for one in container["env"]}
    assert given["SHARES"] == str(job["completions"])
    environment = commands(ungenerated) | {"RUN": "pods", "SHARES": "4", "STAGE": given["STAGE"]}
    assert 0 == ungenerated.understudy("run", SMOKE, "--until", "corpus", "--run", "pods").code
    line = container["command"][-1].replace("/etc/understudy/config.yaml", str(SMOKE))
    line = line.replace("/var/lib/understudy", str(ungenerated.store))
    pods = [
        subprocess.Popen(
            ["bash", "-c", line], env=environment | {"JOB_COMPLETION_INDEX": str(index)}, cwd=ungenerated.cwd
        )
        for index in range(4)
    ]
    assert [0] * 4 == [pod.wait(600) for pod in pods]
    made = shard_times(ungenerated, "work")
    ended = ungenerated.understudy("stage", "generate", SMOKE, "--run", "pods")

    assert 0 == ended.code, ended.err
    assert completions(smoke.place) == completions(ungenerated)
    assert made == shard_times(ungenerated, "artifacts") != {}
