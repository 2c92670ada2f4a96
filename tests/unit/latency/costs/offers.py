"""Reads a table as its user does, who copies the line that a message offers."""

import re
import shlex
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import Table, read_measurements


def line(message: str) -> dict[str, str]:
    """Columns by quantity in the line that is offered; empty if there is none."""
    said = re.findall(r"--column ('[^']*'|[^ ]+)", message)
    pairs = [shlex.split(one)[0].rstrip(".,;").split("=", 1) for one in said]
    return {name: column for name, column in pairs if column != "NAME"}


def offered(path: Path) -> dict[str, str]:
    """Of a table that is refused; empty for one that is read."""
    try:
        read_measurements(path)
    except UsageError as error:
        return line(str(error))
    return {}


def followed(path: Path) -> Table:
    """Read, if needed with the line that is offered."""
    return read_measurements(path, offered(path))
