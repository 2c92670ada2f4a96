"""A served target as an input of a run: pinned by the identity of its weights, which the store remembers. Torch-free."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.progress import Progress
from pipeline.servers.connect import identify, served_model_of
from pipeline.servers.identity import Identity
from pipeline.store.parsing import Format
from pipeline.store.state_files import StateFile

SERVED = StateFile(Format(name="list of served targets", content=list[Identity]), "served_targets")  # that it has seen


def identify_target(config: Config, known: Sequence[Identity]) -> Identity:
    """The identity of the target that the servers of `config` serve: one of `known`, or a new one. Raises as `identify`."""
    return _ask(config, known)


def require_identity(config: Config, facts: dict[str, Any]) -> None:
    """UsageError unless the servers still serve the target of `facts`."""
    pinned = Identity.from_facts(facts)
    if _ask(config, [pinned]).digest != pinned.digest:
        raise UsageError("generate.server: the target has changed since this run began; start a new run")


def require_answer(config: Config) -> None:
    """UnderstudyError unless a server answers and serves the model of `config`."""
    asyncio.run(served_model_of(config.generate.server, Progress()))


def _ask(config: Config, known: Sequence[Identity]) -> Identity:
    target = config.pair.target
    return asyncio.run(identify(config.generate.server, target.revision, target.dtype, known, Progress()))
