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


def require_expected(port: Port, actual: str, expected: str) -> None:
    """UnderstudyError if the champion `found` is not version `expected`; empty strings stand for no champion."""
    if actual != expected:
        raise UnderstudyError(
            f"{port.name}: the champion changed since the examination "
            f"(was version {expected or NONE}, is {actual or NONE}); run again"
        )


def make_change(port: Port, expected: str, facts: Mapping[str, str], plan: Callable[[Entry], list[Write]]) -> None:
    """Carry out the writes that `plan` decides on for the entry as it is read under the claim. `facts` are tags of the claim, for
    people. UnderstudyError if the champion is not version `expected`, another process holds the claim for too long, or a person
    moves the alias in the meantime."""
    with _claim(port, expected, facts) as (entry, claim):
        moved = False  # the alias that the change is about, its first one; the others follow from it
        for write in plan(entry):
            if isinstance(write, Alias) and claim.expired:
                raise UnderstudyError(
                    f"{port.name}: the claim {claim.model_name} took too long and may have been taken over; run again"
                )
            if isinstance(write, Alias) and not moved:
                _require_unmoved(port, write, entry, claim)
                moved = True
            port.write(write)
    claims.sweep(port, claim.change)


def _require_unmoved(port: Port, write: Alias, before: Entry, claim: claims.Claim) -> None:
    """The claim excludes other processes, and nothing excludes a person who moves the alias in MLflow: their move stays, and the
    announced change is marked as interrupted. What is moved between this read and the write that follows is overwritten."""
    now = port.aliases().get(write.name, "")
    was = before.aliases.get(write.name, "")
    if now in (was, write.version):
        return
    _complete(port, port.read(), claim)
    raise UnderstudyError(
        f"{port.name}: the alias {write.name} was moved by hand in the meantime (was version {was or NONE}, is {now or NONE}); "
        "that stays, and nothing was changed; run again"
    )


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
