#!/usr/bin/env python3
"""Restarts the engine with what the link `champion` points to: the `restart` command of docs/examples/reload_engine.py.

Its argument is a JSON file: `arguments` (added to launch.sh), `environment`, `served` (the directory of the link), `place` (log,
process id, and a line for each start). If `place` has a file `wrong`, the directory that it names is served in place of the
champion, once. Standard library only.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 60.0  # for the engine to end


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    place = Path(settings["place"])
    stop(place)
    directory, wrong = (Path(settings["served"]) / "champion").resolve(), place / "wrong"
    if wrong.exists():
        directory = Path(wrong.read_text())
        wrong.unlink()
    with (place / "engine.log").open("ab") as log:
        process = subprocess.Popen(
            [str(directory / "launch.sh"), *settings["arguments"]],
            env=os.environ | settings["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (place / "engine.pid").write_text(str(process.pid))
    with (place / "starts.jsonl").open("a") as starts:
        starts.write(json.dumps({"time": time.time(), "serves": directory.name}) + "\n")


def stop(place: Path) -> None:
    """End the engine with its workers, if it runs."""
    file = place / "engine.pid"
    if not file.exists():
        return
    group = int(file.read_text())
    for how in (signal.SIGTERM, signal.SIGKILL):
        ends = time.monotonic() + SECONDS
        while is_alive(group) and time.monotonic() < ends:
            try:
                os.killpg(group, how)
            except ProcessLookupError:
                break
            time.sleep(1)
    file.unlink()


def is_alive(group: int) -> bool:
    """Whether a process of the group runs; one that has ended and was not waited for does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has just ended
        if int(its_group) == group and state != "Z":
            return True
    return False


if __name__ == "__main__":
    main()
