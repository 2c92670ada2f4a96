"""A small pair that agrees often and not always, for tests that decode."""

from typing import Any

import pytest


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    from tests.fakes import tiny_pair  # imports torch, which light tests do without

    return tiny_pair(11, 0.08)


@pytest.fixture(scope="module")
def target(pair: tuple[Any, Any]) -> Any:
    return pair[0]


@pytest.fixture(scope="module")
def draft(pair: tuple[Any, Any]) -> Any:
    return pair[1]
