"""The quickstart on a fresh store: what was planned, its time, its memory, its table."""

import json
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.answers import interval
from tests.benchmarks.figures import write
from tests.benchmarks.runs import understudy

CONFIG = "configs/quickstart.yaml"
_PLAN_AIM = 0.25


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        began = time.perf_counter()
        planned = json.loads(understudy("plan", CONFIG, "--measure", "--json", "--store", store))["measured"]
        planning = time.perf_counter() - began
        began = time.perf_counter()
        understudy("run", CONFIG, "--store", store)
        took = time.perf_counter() - began
        summary = json.loads(understudy("show", "--json", "--store", store))
        jobs = _jobs(store)
    figure = {
        "seconds": took,
        "peak_gibibytes": max(job["memory_bytes"] for job in jobs.values()) / 2**30,
        "stages": {line["job"]: line["seconds"] for line in summary["stages"]},
        "drafts": summary["drafts"],
        "perplexity": summary["perplexity"],
        "gamma": summary["gamma"],
        "speed": summary["decision"]["speed"],
        "planning": planning,
        "planned": planned,
        "jobs": jobs,
    }
    write("quickstart", "python -m tests.benchmarks quickstart", figure)


def _jobs(store: str) -> dict[str, dict[str, float]]:
    """What each took, in the words of a plan."""
    from dataclasses import asdict
    from pathlib import Path

    from pipeline.planning.trial_runs import cost_of
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import find_built, require_run, shared_jobs

    kept = Store(Path(store))
    record = require_run(kept, None)
    shared = shared_jobs(record)
    built = (job for job, entry in record.jobs.items() if entry.stage != "promote" and job not in shared)
    return {job: asdict(cost_of(find_built(kept, record, job))) for job in built}


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## The quickstart, from an empty store\n"
    yield f"{figure['seconds']:.0f} s in all (at most 240, aim 150), {figure['peak_gibibytes']:.1f} GiB at most (limit 4).\n"
    yield "Temperature 1, examination prompts, 95% intervals by prompt:\n"
    yield f"| draft | acceptance rate | tokens per target call, gamma {figure['gamma']} | at temperature 0 | MB |"
    yield "|---|---|---|---|---|"
    for draft in figure["drafts"]:
        if draft["broken"]:
            continue
        yield (
            f"| {draft['name']} | {interval(draft['acceptance_rate'])} | {interval(draft['tokens_per_target_call'], 2)} "
            f"| {draft['acceptance_rate_greedy']:.3f} | {draft['megabytes']:.2f} |"
        )
    yield "\nSeconds by stage: " + ", ".join(f"{name} {value:.1f}" for name, value in figure["stages"].items()) + "."
    yield from _plan(figure)


def _plan(figure: dict[str, Any]) -> Iterator[str]:
    planned, jobs = figure["planned"], figure["jobs"]
    took = {"seconds": figure["seconds"], "stored_bytes": sum(job["stored_bytes"] for job in jobs.values())}
    took["memory_bytes"] = max(job["memory_bytes"] for job in jobs.values())
    yield (
        f"\n`understudy plan {CONFIG} --measure` takes {figure['planning']:.0f} s, and is to be within {_PLAN_AIM:.0%} of what "
        "the run then takes, writes and holds in memory:\n"
    )
    yield "| job | planned: s | took | planned: MB | wrote | planned: MB in memory | held |"
    yield "|---|---|---|---|---|---|---|"
    for name, one, real in (
        *((name, planned["jobs"][name], jobs[name]) for name in planned["jobs"]),
        ("**all together**", planned["total"], took),
    ):
        cells = (
            f"{one['seconds']:.1f} | {real['seconds']:.1f}",
            *(f"{one[key] / 1e6:.1f} | {real[key] / 1e6:.1f}" for key in ("stored_bytes", "memory_bytes")),
        )
        yield f"| {name} | {' | '.join(cells)} |"
    off = ", ".join(
        f"{word} **{planned['total'][key] / took[key] - 1:+.0%}**"
        for word, key in (("time", "seconds"), ("disk", "stored_bytes"), ("memory", "memory_bytes"))
    )
    yield f"\nOff by: {off}."
