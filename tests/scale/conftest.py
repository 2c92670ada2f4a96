"""The smoke run and the chats of the integration tests, and what is made from them in several places. Minutes, no network."""

from tests.integration.conftest import loop, place, smoke
from tests.integration.test_execution import ungenerated
from tests.integration.test_turns import chats, unanswered

__all__ = ["chats", "loop", "place", "smoke", "unanswered", "ungenerated"]
