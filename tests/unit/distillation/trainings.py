"""Workers in the place of those of a training. They import nothing heavy."""

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path


def say_two(connection: Connection, task: Path) -> None:
    """In the place of a training's process."""
    print("noise of a library")
    connection.send(f"step {os.environ['RANK']}")


def wait_for_ever(connection: Connection, task: Path) -> None:
    connection.send("begun")
    time.sleep(600)


def end_without_reason(connection: Connection, task: Path) -> None:
    """The second of two, while the first waits."""
    if os.environ["RANK"] == "1":
        os.write(2, b"Fatal error\n")
        os._exit(3)
    time.sleep(600)
