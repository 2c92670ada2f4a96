"""Shared by every tier. Nothing here imports torch: the fast tests of the light paths must stay light."""

import os
import signal
from pathlib import Path

import pytest

from tests.shared_cache import COMPILED

# Models of tests are tiny: a second thread gains nothing and waits for a core that another worker uses. Set before torch is
# imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches a hub
os.environ["XDG_CACHE_HOME"] = str(COMPILED)  # each variant of our C code is compiled once, whoever needs it first
for _name in ("MLFLOW_TRACKING_URI", "COLUMNS", "FORCE_COLOR"):  # pytest-xdist sets the second
    os.environ.pop(_name, None)
# A shell without job control starts background jobs with SIGINT ignored, which every process of a test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]


@pytest.fixture
def configs() -> Path:
    """The shipped configs."""
    return ROOT / "configs"
