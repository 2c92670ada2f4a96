"""The quickstart on a fresh store: its time, its memory, its table."""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.figures import ROOT, UNDERSTUDY, peak_gibibytes_of_children, write


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        began = time.perf_counter()
        subprocess.run([UNDERSTUDY, "run", "configs/quickstart.yaml", "--store", store], check=True, cwd=ROOT)
        took = time.perf_counter() - began
        shown = subprocess.run(
            [UNDERSTUDY, "show", "--json", "--store", store], check=True, capture_output=True, text=True
        )
    summary = json.loads(shown.stdout)
    figure = {
        "seconds": took,
        "peak_gibibytes": peak_gibibytes_of_children(),
        "stages": {line["job"]: line["seconds"] for line in summary["stages"]},
        "drafts": summary["drafts"],
        "perplexity": summary["perplexity"],
        "gamma": summary["gamma"],
    }
    write("quickstart", "python -m tests.benchmarks quickstart", figure)


def section(figure: dict[str, Any]) -> Iterator[str]:
    """What BENCHMARKS.md says of it."""
    yield "## The quickstart, from an empty store\n"
    yield f"{figure['seconds']:.0f} s in all (at most 480, aim 300), {figure['peak_gibibytes']:.1f} GiB at most (limit 4).\n"
    yield "Temperature 1, unseen prompts, 95% intervals by prompt:\n"
    yield f"| draft | acceptance rate | tokens per target call, gamma {figure['gamma']} | at temperature 0 | MB |"
    yield "|---|---|---|---|---|"
    for draft in figure["drafts"]:
        if draft["broken"]:
            continue
        alpha, omega = draft["acceptance_rate"], draft["tokens_per_target_call"]
        yield (
            f"| {draft['name']} | {alpha['value']:.3f} [{alpha['low']:.3f}, {alpha['high']:.3f}] "
            f"| {omega['value']:.2f} [{omega['low']:.2f}, {omega['high']:.2f}] "
            f"| {draft['acceptance_rate_greedy']:.3f} | {draft['megabytes']:.2f} |"
        )
    yield "\nSeconds by stage: " + ", ".join(f"{name} {value:.1f}" for name, value in figure["stages"].items()) + "."
