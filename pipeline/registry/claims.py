"""A lock in the registry: MLflow's aliases have no compare-and-swap, but a name in it can be created only once.

A claim is an MLflow prompt `<name>--claim-<change number>` without a text. Prompts and registered models share their names in
MLflow, but a prompt is in no list of models and sends no `registered_model.created`, so nobody takes a claim for a draft.

The process that created a claim may move the aliases of `<name>`, and deletes the claim afterwards. A claim whose process has
ended (same machine), or that is older than STALE_SECONDS, is taken over by creating the next generation, `...-<n>.2`. That too
succeeds only once, so of two processes that find the same stale claim only one gets it. Whether it is old enough is decided by
the server's clock alone, which dates all generations: one that was created too early, by a machine whose clock is ahead, is
deleted again, and where its process is killed before, it opens no way past those before it. A clock that is behind the server's
waits for longer.
"""

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.registry.port import Port, RegistryPrompt
from pipeline.store.processes import has_ended, machine, running_process

STALE_SECONDS = 600.0
_TAG = "understudy.claim."
_MOST_GENERATIONS = 100


@dataclass(frozen=True)
class Claim:
    """The right to make change number `change` to the aliases of `name`."""

    name: str
    change: int
    generation: int
    taken_at: float
    ticks: float  # of `_ticks`, at that time

    @property
    def model_name(self) -> str:
        return _model_name(self.name, self.change, self.generation)

    @property
    def expired(self) -> bool:
        """True from half the age at which others take the claim over; the other half is left for the remaining writes."""
        passed = max(time.time() - self.taken_at, _ticks() - self.ticks)
        return passed > STALE_SECONDS / 2


@dataclass(frozen=True)
class Held:
    """The live claim of another process."""

    model_name: str
    holder: str


def take(port: Port, change: int, facts: Mapping[str, str]) -> Claim | Held:
    """Claim change number `change` of the port's model, or return the claim of its holder. `facts` become tags, for people to
    read."""
    earlier: list[RegistryPrompt] = []  # generations
    for generation in range(1, _MOST_GENERATIONS):
        name = _model_name(port.name, change, generation)
        if _create(port, name, facts):
            own = port.prompt(name) if earlier else None
            live = next((claim for claim in earlier if not _may_take_over(claim, own)), None)
            if live is None:
                return Claim(port.name, change, generation, time.time(), _ticks())
            port.delete_prompt(name)
            return _held(live)
        held = port.prompt(name)
        if held is None:
            return Held(name, "released just now")
        later = port.prompt(_model_name(port.name, change, generation + 1))
        if later is None and not _is_stale(held):
            return _held(held)
        earlier.append(held)
    return Held(_model_name(port.name, change, _MOST_GENERATIONS), "too many abandoned claims")


def release(port: Port, claim: Claim) -> None:
    """Delete the claim. Older generations are deleted first: as long as the newest exists, no other process can start."""
    for generation in range(1, claim.generation + 1):
        port.delete_prompt(_model_name(claim.name, claim.change, generation))


def is_abandoned(port: Port, change: int) -> bool:
    """Whether each process that claimed change number `change` has died, or its claim is gone. False while one is at work."""
    for generation in range(1, _MOST_GENERATIONS):
        held = port.prompt(_model_name(port.name, change, generation))
        if held is None and generation > 1:
            break
        if held is not None and not _is_stale(held):
            return False
    return True


def sweep(port: Port, change: int) -> None:
    """Delete the claims that killed processes left behind for changes up to `change`."""
    prefix = f"{port.name}--claim-"
    pattern = re.compile(re.escape(prefix) + r"(\d+)(\.\d+)?$")
    for prompt in port.prompts(prefix):
        match = pattern.match(prompt.name)
        if match and int(match.group(1)) <= change and _is_stale(prompt):
            port.delete_prompt(prompt.name)


def _model_name(name: str, change: int, generation: int) -> str:
    return f"{name}--claim-{change}" + (f".{generation}" if generation > 1 else "")


def _create(port: Port, name: str, facts: Mapping[str, str]) -> bool:
    tags = {
        _TAG + "machine": machine(),
        _TAG + "process": running_process(os.getpid()),
        _TAG + "holder": f"{socket.gethostname()} process {os.getpid()}",
        _TAG + "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    description = (
        f"Not a prompt: a promotion or rollback of {port.name} is under way. Taken over when older than "
        f"{STALE_SECONDS / 60:.0f} minutes; safe to delete after that."
    )
    return port.create_prompt(name, tags | {_TAG + key: value for key, value in facts.items()}, description)


def _ticks() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the process or the machine is stopped."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _held(claim: RegistryPrompt) -> Held:
    holder, at = (claim.tags.get(_TAG + key, "unknown") for key in ("holder", "at"))
    return Held(claim.name, f"{holder} since {at}")


def _is_stale(held: RegistryPrompt) -> bool:
    return time.time() - held.created > STALE_SECONDS or _has_died(held)


def _may_take_over(held: RegistryPrompt, own: RegistryPrompt | None) -> bool:
    """Whether a claim was stale when `own`, of the next generation, was created."""
    return _has_died(held) or (own is not None and own.created - held.created > STALE_SECONDS)


def _has_died(held: RegistryPrompt) -> bool:
    is_here = held.tags.get(_TAG + "machine") == machine()
    return is_here and has_ended(held.tags.get(_TAG + "process", "")) is True
