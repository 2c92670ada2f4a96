"""Carries out a change of the aliases: under the claim to its number, after an interrupted change has been completed."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from pipeline.errors import UnderstudyError
from pipeline.registry import aliases, claims
from pipeline.registry.aliases import Alias, Entry, Write
from pipeline.registry.history import NONE
from pipeline.registry.port import Port

_WAIT_SECONDS = 20.0  # wait for another change, which takes about 1 s


def require_expected(port: Port, found: str, expected: str) -> None:
    """UnderstudyError if the champion `found` is not version `expected`; empty strings stand for no champion."""
    if found != expected:
        raise UnderstudyError(
            f"{port.name}: the champion changed since the examination "
            f"(was version {expected or NONE}, is {found or NONE}); run again"
        )


def make_change(port: Port, expected: str, facts: Mapping[str, str], plan: Callable[[Entry], list[Write]]) -> None:
    """Carry out the writes that `plan` decides on for the entry as it is read under the claim. `facts` are tags of the claim, for
    people. UnderstudyError if the champion is not version `expected`, or another process holds the claim for too long."""
    with _claim(port, expected, facts) as (entry, claim):
        for write in plan(entry):
            if isinstance(write, Alias) and claim.expired:
                raise UnderstudyError(
                    f"{port.name}: the claim {claim.model_name} took too long and may have been taken over; run again"
                )
            port.write(write)
    claims.sweep(port, claim.change)


@contextlib.contextmanager
def _claim(port: Port, expected: str, facts: Mapping[str, str]) -> Iterator[tuple[Entry, claims.Claim]]:
    """Hold the exclusive claim to the next change, once an interrupted one is completed. Yields the entry as read under the
    claim."""
    give_up = time.monotonic() + _WAIT_SECONDS
    while True:
        entry = port.read()
        require_expected(port, entry.completed.champion, expected)
        claim = claims.take(port, entry.change + 1, {**facts, "champion": entry.champion or NONE})
        if isinstance(claim, claims.Held):
            if time.monotonic() > give_up:
                raise UnderstudyError(
                    f"{port.name}: another promotion or rollback is under way ({claim.holder}, held "
                    f"as {claim.model_name}); run again, an abandoned claim is taken over after "
                    f"{claims.STALE_SECONDS / 60:.0f} minutes"
                )
            time.sleep(0.2)
            continue
        try:
            entry = port.read()
            if entry.change + 1 != claim.change:
                continue  # another process has made this change
            if entry.announced is not None or claim.generation > 1:
                _complete(port, entry, claim)
                continue
            require_expected(port, entry.champion, expected)
            yield entry, claim
            return
        finally:
            claims.release(port, claim)


def _complete(port: Port, entry: Entry, claim: claims.Claim) -> None:
    """Do what the process that died had left to do. Its number is not used again."""
    for write in aliases.recovery(entry) or [aliases.numbered(claim.change)]:
        port.write(write)
