"""Tables of measurements and results of load tests, as files."""

import json
from pathlib import Path
from typing import Any

from pipeline.latency.costs.measurements import Table, read_measurements

# Of `vllm bench serve`: a closed loop.
RESULT: dict[str, Any] = {"completed": 10, "total_output_tokens": 1280, "max_concurrency": 4, "mean_tpot_ms": 9.0}
DRAFTED = {"spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_acceptance_length": 2.2}


def write_results(place: Path, *results: Any) -> Path:
    """Results after each other, as --append-result leaves them."""
    path = place / "results.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in results))
    return path


def write_table(place: Path, *lines: str) -> Path:
    """A table of these lines, the header first."""
    path = place / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def read_table(place: Path, *lines: str) -> Table:
    """What is read of it."""
    return read_measurements(write_table(place, *lines))
