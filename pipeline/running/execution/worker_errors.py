"""Errors of a worker, sent to the process that runs the stage."""

import pickle
import traceback

from pipeline.errors import UnderstudyError
from pipeline.store.own_files import reads_own_files

Packed = tuple[bytes, str]


@reads_own_files("an error of a worker, in its own process")
def packed(error: Exception) -> Packed:
    """An error to send, and its traceback as text, which is all that is left of one that cannot be sent."""
    text = "".join(traceback.format_exception(error))
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:  # pickle raises what the error's own methods raise
        return b"", text
    return content, text


@reads_own_files("an error of a worker, through a pipe or Ray")
def unpacked(content: bytes, text: str) -> Exception:
    """The error, to be raised. That of a user is shown in one line, as elsewhere; any other has the worker's traceback as its
    cause."""
    error = pickle.loads(content) if content else RuntimeError("in a worker")
    if not isinstance(error, UnderstudyError):
        error.__cause__ = RuntimeError(f"in a worker:\n{text}")
    assert isinstance(error, Exception)
    return error
