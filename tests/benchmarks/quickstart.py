"""The quickstart on a fresh store: its time, its memory, its table."""

import json
import subprocess
import tempfile
import time

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
