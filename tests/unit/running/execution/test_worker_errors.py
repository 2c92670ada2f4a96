"""Errors on their way from a worker to the stage."""

import traceback

import pytest

from pipeline.errors import UsageError
from pipeline.running.execution.worker_errors import packed, unpacked


class _Unreadable(Exception):
    """It can be sent, and not read again."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class _Unsendable(Exception):
    """It holds what cannot be sent."""

    def __init__(self) -> None:
        super().__init__("not sent")
        self.held = lambda: None


def _sent(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return unpacked(*packed(raised))


def test_a_mistake_of_a_user_is_sent_as_it_is() -> None:
    """In one line, without the worker's traceback."""
    found = _sent(UsageError("batch = 9: does not fit"))

    assert (UsageError, "batch = 9: does not fit") == (type(found), str(found))
    assert found.__cause__ is None


@pytest.mark.parametrize(
    ("error", "kind", "last"),
    [
        (ZeroDivisionError("a bug"), ZeroDivisionError, "ZeroDivisionError: a bug"),
        (_Unreadable(1, 2), RuntimeError, "_Unreadable: 1 and 2"),
        (_Unsendable(), RuntimeError, "_Unsendable: not sent"),
    ],
    ids=["sent", "cannot be read", "cannot be sent"],
)
def test_a_bug_keeps_the_traceback_of_its_worker(error: Exception, kind: type[Exception], last: str) -> None:
    """Also where the error itself is one of a library that cannot be sent, as some of CUDA are."""
    found = _sent(error)
    said = "".join(traceback.format_exception(found))

    assert kind is type(found)
    assert last in said
    assert "in _sent" in said
