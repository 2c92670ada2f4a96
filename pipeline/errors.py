"""What can go wrong for a user, with the exit code each kind ends in. Standard library only.

An `UnderstudyError` is shown as one line (what, where, what to do); anything else that escapes is a bug of ours
and keeps its traceback.
"""

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130


class UnderstudyError(Exception):
    """Something a user can act on failed; the message says what, where and what to do."""

    exit_code = EXIT_FAILURE


class UsageError(UnderstudyError):
    """A wrong command line, config or input file: nothing was run."""

    exit_code = EXIT_USAGE


class Refused(UnderstudyError):
    """The gate refused a draft, or a regression check found one worse than its baseline."""

    exit_code = EXIT_REFUSED


class RegistryUnavailable(UnderstudyError):
    """The model registry cannot be reached. Tracking may go on without it; promotion never does."""


class BrokenDraft(UnderstudyError):
    """A draft cannot be examined: its logits are no numbers, or it does not fit the pair. An examination writes it down,
    and the gate refuses it."""
