"""Shared by every tier. Nothing here imports torch: the fast tests of the light paths must stay light."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches a hub
os.environ.pop("MLFLOW_TRACKING_URI", None)

ROOT = Path(__file__).parents[1]


@pytest.fixture
def configs() -> Path:
    """The shipped configs."""
    return ROOT / "configs"
