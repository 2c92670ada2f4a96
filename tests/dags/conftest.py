"""Airflow for these tests: a home, a database and a log folder of its own, gone afterwards.

Run in Airflow's environment (`make test-dags`), which lacks Understudy's own libraries; `--confcutdir=tests/dags` keeps
other conftest files out. Airflow reads its settings when first imported, so they are set here, before any test module.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

DAGS = Path(__file__).resolve().parents[2] / "dags"
_HOME = tempfile.mkdtemp(prefix="understudy-airflow-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

# Defaults are tested as shipped, whatever the caller's environment; the real command is kept aside for the real runs.
REAL_COMMAND = os.environ.pop("UNDERSTUDY_BIN", None)
for _name in [name for name in os.environ if name.startswith(("AIRFLOW", "UNDERSTUDY_", "MLFLOW_"))]:
    del os.environ[_name]
os.environ |= {
    "AIRFLOW_HOME": _HOME,
    "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME}/airflow.db",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "no_proxy": "*",  # macOS looks proxies up in a way that a forked process does not survive
}


@pytest.fixture(scope="session", autouse=True)
def database() -> Path:
    """Airflow's tables, made once: the database file."""
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)
    return Path(_HOME) / "airflow.db"


@pytest.fixture(scope="session")
def real_command() -> str:
    """The console command of the environment that Understudy is installed in."""
    if REAL_COMMAND is None:
        pytest.skip("UNDERSTUDY_BIN is not set: it names the real `understudy` command; `make test-dags` sets it")
    return REAL_COMMAND
