"""Errors that a user can cause, with their exit codes. Imports nothing heavy.

An `UnderstudyError` is printed as one line (what, where, what to do). Any other exception is a bug in Understudy and keeps its
traceback.
"""

from pipeline.escaping.secrets import without_secrets
from pipeline.escaping.terminal import printable

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130


_MOST_CHARACTERS = 1_000  # of a line; a longer one quotes the content of a file


class UnderstudyError(Exception):
    """A failure that a user can act on; the message says what, where and what to do. Each argument is a line. It may quote a
    damaged file: line breaks and control characters in it are printed as escapes, and the middle of a very long line is left out.
    """

    exit_code = EXIT_FAILURE

    def __str__(self) -> str:
        return "\n".join(_short(printable(without_secrets(str(line)))) for line in self.args)


def _short(line: str) -> str:
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:600]} ... {line[-300:]}"


def labelled(label: str, text: str) -> str:
    """`label: text`. Errors of a job often begin with its name or its stage's already, which is not said twice."""
    for own in (label, label.partition("/")[0]):
        text = text.removeprefix(f"{own}: ")
    return f"{label}: {text}"


class UsageError(UnderstudyError):
    """A wrong command line, config or input file: nothing was run."""

    exit_code = EXIT_USAGE


class Refused(UnderstudyError):
    """The gate refused a draft, or a regression check found one worse than its baseline."""

    exit_code = EXIT_REFUSED


class RegistryUnavailable(UnderstudyError):
    """The model registry cannot be reached (exit code 1). Tracking continues without it; gate and promotion do not."""


class RegistryDown(RegistryUnavailable):
    """The server of the registry does not answer; otherwise it answers, and with an error."""


class BrokenDraft(UnderstudyError):
    """A draft cannot be examined: its logits are not finite, or it does not fit the pair. The examination records it, and
    the gate refuses the draft."""
