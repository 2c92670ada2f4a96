"""The command line called inside the test's process: what a fresh process would print and return, without its 4 s of imports.

Everything that a command may leave behind is put back: environment, directory, arguments, standard streams, signal handlers,
log handlers, warning filters, random state and the registry's clients. What is cached by path or dtype inside the product stays.
A new MLflow database is a copy of one that was migrated before.
"""

import contextlib
import functools
import io
import logging
import multiprocessing
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO
from unittest import mock

import typer.main

from pipeline import cli
from pipeline.registry import mlflow_client, registry, sqlite_file
from tests.integration.mlflow_fixtures import copy_migrated


class _Stream(io.TextIOWrapper):
    """One object for all calls: a library's log handler keeps the stream that it met at import."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def taken(self) -> str:
        """What was written since the last call of this method."""
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        text = raw.getvalue().decode("utf-8")
        raw.seek(0)
        raw.truncate()
        return text


_OUT, _ERR = _Stream(), _Stream()
_TORCH_SEED = 67280421310721  # of torch in a fresh process
_command = functools.cache(typer.main.get_command)  # the parser of all commands is made once, not for each call


def call(arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `understudy` with `arguments`, called from `cwd`."""
    for stream in (_OUT, _ERR):
        stream.taken()  # what a library said between two calls
    with _as_in_a_fresh_process(arguments, cwd, environment):
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            traceback.print_exc(file=_ERR)
            code = 1
    return code, _OUT.taken(), _ERR.taken()


class Forked:
    """`call` in a process of its own that is forked from this one, so that nothing is imported again. Used like a `Popen`."""

    returncode: int | None

    def __init__(self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("fork")
        self._ended, says = context.Pipe(duplex=False)
        self._process = context.Process(target=_call_and_say, args=(says, arguments, cwd, environment))
        self._process.start()
        says.close()
        self.pid, self.returncode = self._process.pid or 0, None

    def poll(self) -> int | None:
        """A code as soon as it has ended: that of the process, which is the command's only after `communicate`."""
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Its stdout and stderr, once it has ended; `returncode` is the command's."""
        assert self._ended.poll(timeout), "the command has not ended"
        self.returncode, out, err = self._ended.recv()
        self._process.join()
        return out, err


def _call_and_say(says: Connection, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
    says.send(call(arguments, cwd, environment))


@contextlib.contextmanager
def _as_in_a_fresh_process(arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(environment))
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(_arguments(arguments))
        stack.enter_context(_streams())
        stack.enter_context(_signals())
        stack.enter_context(_log_handlers())
        stack.enter_context(_warnings())
        stack.enter_context(_random_state())
        stack.enter_context(_registry_clients())
        stack.enter_context(mock.patch.object(sqlite_file, "make", copy_migrated))
        stack.enter_context(mock.patch.object(typer.main, "get_command", _command))
        yield


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    _replace_environment(wanted)
    try:
        yield
    finally:
        _replace_environment(before)


def _replace_environment(wanted: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    os.environ.update(wanted)


@contextlib.contextmanager
def _arguments(arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["understudy", *arguments]
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _streams() -> Iterator[None]:
    before: tuple[TextIO, TextIO, TextIO] = sys.stdin, sys.stdout, sys.stderr
    with open(os.devnull) as nothing:
        sys.stdin, sys.stdout, sys.stderr = nothing, _OUT, _ERR
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """`main` ends on SIGTERM as on Ctrl-C; the test runner need not."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _log_handlers() -> Iterator[None]:
    """A warning that is logged goes to stderr, as it does for a user; what a command adds does not stay."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """A warning goes to stderr under Python's own filters: a test that expects an empty stderr notices it."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        yield


@contextlib.contextmanager
def _random_state() -> Iterator[None]:
    """A command draws what it draws in a fresh process, and takes no numbers from the test that called it."""
    own, torch = random.getstate(), sys.modules.get("torch")
    state = None if torch is None else torch.random.get_rng_state()
    if torch is not None:
        torch.manual_seed(_TORCH_SEED)
    try:
        yield
    finally:
        random.setstate(own)
        if torch is not None:
            torch.random.set_rng_state(state)


@contextlib.contextmanager
def _registry_clients() -> Iterator[None]:
    """A server that answered a moment ago may be gone for the next command."""
    try:
        yield
    finally:
        mlflow_client._clients.clear()
        mlflow_client._answered.clear()
        registry._registries.clear()
