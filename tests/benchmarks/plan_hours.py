"""What a run takes against what `understudy plan` said from the run before it: the quickstart, then one with twice the training
and longer completions. Jobs that the second run finds in the store are left out."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import ROOT, UNDERSTUDY, write

CONFIG = "configs/quickstart.yaml"
CHANGES = ("distill.max_steps=400", "generate.max_new_tokens=128")


def main() -> None:
    figure = measure()
    print(f"took {figure['ratio']:.2f} of what was planned")
    write("plan_hours", "python -m tests.benchmarks plan_hours", figure)


def measure(config: str = CONFIG, changes: Sequence[str] = CHANGES) -> dict[str, Any]:
    """By job: the seconds that were planned, and those that it took."""
    settings = [word for change in changes for word in ("--set", change)]
    with tempfile.TemporaryDirectory() as store:
        run = ["run", config, "--store", store, "--even-if-refused"]
        _understudy(*run, "--run", "first")
        planned = json.loads(_understudy("plan", config, *settings, "--store", store, "--json"))["estimate"]["jobs"]
        _understudy(*run, *settings, "--run", "second")
        record = json.loads((Path(store) / "runs/second/run.json").read_text())
    built = {job: entry["seconds"] for job, entry in record["jobs"].items() if entry["state"] == "done"}
    jobs = {
        job["job"]: {"planned": job["seconds"], "took": built[job["job"]], "from": job["origin"]}
        for job in planned
        if job["job"] in built and job["seconds"] is not None
    }
    took, expected = (sum(job[name] for job in jobs.values()) for name in ("took", "planned"))
    return {"changes": list(changes), "jobs": jobs, "took": took, "planned": expected, "ratio": took / expected}


def _understudy(*arguments: str) -> str:
    done = subprocess.run([UNDERSTUDY, *arguments], check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode in (0, 3), arguments  # a draft may be refused
    return done.stdout


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## A run against its plan\n"
    yield (
        f"The quickstart, then a run with {' and '.join(figure['changes'])}, planned from the first one. The jobs that "
        f"were built took {figure['took']:.0f} s; planned were {figure['planned']:.0f} s (ratio {figure['ratio']:.2f}).\n"
    )
    yield "| job | planned, s | took, s | ratio |"
    yield "|---|---|---|---|"
    for name, job in figure["jobs"].items():
        yield f"| {name} | {job['planned']:.1f} | {job['took']:.1f} | {job['took'] / job['planned']:.2f} |"
