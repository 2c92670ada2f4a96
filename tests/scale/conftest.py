"""The smoke run of the integration tests, and what is made from it in several places. Minutes, no network."""

from tests.integration.conftest import loop, place, smoke
from tests.integration.test_execution import ungenerated

__all__ = ["loop", "place", "smoke", "ungenerated"]
