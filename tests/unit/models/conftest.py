"""A saved model with its tokenizer, and a copy of it to damage."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.fakes import saved_tiny_llama  # imports torch, which light tests do without

    return saved_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(directory: Path, tmp_path: Path) -> Path:
    return shutil.copytree(directory, tmp_path / "model")
