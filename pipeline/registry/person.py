"""Who runs a command: for the history of the champion, and for MLflow's list of runs."""

import getpass
import os


def acting_person() -> str:
    """The user of MLflow, else of this machine."""
    if name := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return f"user {os.getuid()}"
