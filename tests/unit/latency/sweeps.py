"""Tables of measurements, as files."""

from pathlib import Path

from pipeline.latency.costs.measurements import Table, read_measurements


def write_table(place: Path, *lines: str) -> Path:
    """A table of these lines, the header first."""
    path = place / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def read_table(place: Path, *lines: str) -> Table:
    """What is read of it."""
    return read_measurements(write_table(place, *lines))
