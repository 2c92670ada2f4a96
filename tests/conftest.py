"""Shared by every tier. Nothing here imports torch: the fast tests of the light paths must stay light."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator
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
# Each file of a store is synced, which takes milliseconds on a disk and nothing in memory. Passed tests leave nothing there
# (`tmp_path_retention_policy`), but for what a file of tests shares: 250 MB in all.
_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
    os.environ.setdefault("TMPDIR", str(_MEMORY))  # of links to models, several for each that is loaded
# A shell without job control starts background jobs with SIGINT ignored, which every process of a test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup


def _renew_threads() -> None:
    """A forked process makes torch's pool of threads anew at its first operation. Two threads whose first ones meet, as when a
    model is loaded, find none: "Invalid thread pool!", in 9 of 10 forks that begin with six threads."""
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):
        torch.set_num_threads(torch.get_num_threads())


os.register_at_fork(after_in_child=_renew_threads)

ROOT = Path(__file__).parents[1]
_MANY = 50  # modules: a heavy library has more
_known = 0  # modules that were imported when objects were frozen last


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()  # what is made of tests stays
    try:
        return (yield)
    finally:
        gc.freeze()  # before anything can look through it
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After a file, whose fixtures are gone: what commands and libraries have cached by then is a million objects in the end."""
    if nextitem is None or nextitem.path != item.path or len(sys.modules) > _known + _MANY:
        _freeze()


def _freeze() -> None:
    """Let the garbage collector pass over what stays: collected tests, imported libraries, caches. A full collection, of which
    accelerate asks for one in each training, takes up to a second with them and milliseconds without; and a forked process copies
    none of it."""
    global _known
    _known = len(sys.modules)
    gc.collect()
    gc.freeze()


@pytest.fixture
def configs() -> Path:
    """The shipped configs."""
    return ROOT / "configs"
