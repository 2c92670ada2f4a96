"""A lock in the registry: MLflow's aliases have no compare-and-swap, but a name in it can be created only once.

A claim is an MLflow prompt `<name>--claim-<change number>` without a text. Prompts and registered models share their names in
MLflow, but a prompt is in no list of models and sends no `registered_model.created`, so nobody takes a claim for a draft.

The process that created a claim may move the aliases of `<name>`, and deletes the claim afterwards. A claim whose process has
ended (same machine), or that is older than STALE_SECONDS, is taken over by creating the next generation, `...-<n>.2`. That too
succeeds only once, so of two processes that find the same stale claim only one gets it. Ages compare the server's clock with the
local one: they must agree within a few minutes.
"""

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.registry.mlflow_client import EXISTS, MISSING, error_code

STALE_SECONDS = 600.0
_TAG = "understudy.claim."
_IS_PROMPT = "tags.`mlflow.prompt.is_prompt` = 'true'"
_MOST_GENERATIONS = 100


@dataclass(frozen=True)
class Claim:
    """The right to make change number `change` to the aliases of `name`."""

    name: str
    change: int
    generation: int
    taken_at: float

    @property
    def model_name(self) -> str:
        return _model_name(self.name, self.change, self.generation)

    @property
    def expired(self) -> bool:
        """True from half the age at which others take the claim over; the other half is left for the remaining writes."""
        return time.time() - self.taken_at > STALE_SECONDS / 2


@dataclass(frozen=True)
class Held:
    """The live claim of another process."""

    model_name: str
    holder: str


def take(client: Any, name: str, change: int, facts: Mapping[str, str]) -> Claim | Held:
    """Claim change number `change` of `name`, or return the claim of its holder. `facts` become tags, for people to read."""
    for generation in range(1, _MOST_GENERATIONS):
        if _create(client, name, change, generation, facts):
            return Claim(name, change, generation, time.time())
        held = _get(client, _model_name(name, change, generation))
        if held is None:
            return Held(_model_name(name, change, generation), "released just now")
        later = _get(client, _model_name(name, change, generation + 1))
        if later is None and not _is_stale(held):
            holder, at = (held.tags.get(_TAG + key, "unknown") for key in ("holder", "at"))
            return Held(held.name, f"{holder} since {at}")
    return Held(_model_name(name, change, _MOST_GENERATIONS), "too many abandoned claims")


def release(client: Any, claim: Claim) -> None:
    """Delete the claim. Older generations are deleted first: as long as the newest exists, no other process can start."""
    for generation in range(1, claim.generation + 1):
        _delete(client, _model_name(claim.name, claim.change, generation))


def sweep(client: Any, name: str, change: int) -> bool:
    """Delete the claims that killed processes left behind for changes up to `change`; True if there were any."""
    found = False
    pattern = re.compile(re.escape(f"{name}--claim-") + r"(\d+)(\.\d+)?$")
    listed = f"name LIKE '{name}--claim-%' AND {_IS_PROMPT}"
    for model in client.search_registered_models(listed, max_results=100):
        match = pattern.match(model.name)
        if match and int(match.group(1)) <= change and _is_stale(model):
            _delete(client, model.name)
            found = True
    return found


def _model_name(name: str, change: int, generation: int) -> str:
    return f"{name}--claim-{change}" + (f".{generation}" if generation > 1 else "")


def _create(client: Any, name: str, change: int, generation: int, facts: Mapping[str, str]) -> bool:
    from mlflow.exceptions import MlflowException

    tags = {
        _TAG + "machine": _machine(),
        _TAG + "process": _process(os.getpid()),
        _TAG + "holder": f"{socket.gethostname()} process {os.getpid()}",
        _TAG + "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    tags |= {_TAG + key: value for key, value in facts.items()}
    try:
        client.create_prompt(
            _model_name(name, change, generation),
            tags=tags,
            description=f"Not a prompt: a promotion or rollback of {name} is under way. Taken over when older than "
            f"{STALE_SECONDS / 60:.0f} minutes; safe to delete after that.",
        )
    except MlflowException as error:
        if error_code(error) in (EXISTS, MISSING):  # MISSING: deleted while the server handled the request
            return False
        raise
    return True


def _get(client: Any, model_name: str) -> Any | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_prompt(model_name)
    except MlflowException as error:
        if error_code(error) == MISSING:
            return None
        raise


def _delete(client: Any, model_name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.delete_prompt(model_name)
    except MlflowException as error:
        if error_code(error) != MISSING:
            raise


def _is_stale(model: Any) -> bool:
    if time.time() - int(model.creation_timestamp) / 1000 > STALE_SECONDS:
        return True
    process = model.tags.get(_TAG + "process", "")
    return bool(process) and model.tags.get(_TAG + "machine") == _machine() and not _is_alive(process)


def _machine() -> str:
    """Identifies the set of visible process ids: host, boot and process namespace. Unique where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown {time.time_ns()}"  # equal to no other: then only the age decides


def _process(pid: int) -> str:
    """A process id with its start time, so that a reused id is recognised as another process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else f"{pid} {fields[19]}"


def _is_alive(process: str) -> bool:
    return _process(int(process.split()[0])) == process
