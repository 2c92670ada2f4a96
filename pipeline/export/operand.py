"""The draft that `champion export` is given: a config, whose champion it is, or a version of the registry."""

import re
from collections.abc import Callable
from pathlib import Path

from pipeline.config.loading import load_config
from pipeline.config.quantize import Variant
from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.errors import UsageError
from pipeline.registry.named import Draft, version_draft
from pipeline.registry.named_config import find_config
from pipeline.registry.registry import registry_for
from pipeline.running.operands import registered_draft
from pipeline.store.artifacts import Store
from pipeline.store.runs import require_run

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_VERSION = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(@(?P<alias>[a-z]+|\d+)|/(?P<version>\d+))")


def find_subject(
    given: str | None, store: Store, variant: Variant | None, require_registry: Callable[[Config, Store], None]
) -> Draft:
    """`given`: a config file, NAME, NAME@ALIAS or NAME/VERSION; None: the champion that the store's latest run compared with or
    made. UsageError if it names no draft."""
    if given is None or Path(given).expanduser().is_file() or _NAME.fullmatch(given):
        config = _latest(store) if given is None else find_config(given, (), store)
        require_registry(config, store)
        registry = registry_for(config, store)
        champion = registry.champion()
        if champion is None:
            raise UsageError(f"{registry.name} has no champion: nothing was promoted yet; run `understudy run CONFIG`")
        return version_draft(store, registry, champion, variant)
    found = _VERSION.fullmatch(given)
    if found is None:
        raise UsageError(f"{given}: no such config file, and no version; give CONFIG, NAME, NAME@ALIAS or NAME/VERSION")
    return version_draft(store, *registered_draft(found["name"], found["alias"] or found["version"], store), variant)


def changed_gamma(given: str | None, draft: Draft) -> list[str]:
    """A note if `given` is a config with another draft length than the run that trained the draft."""
    if given is None or not Path(given).expanduser().is_file():
        return []
    now, then = load_config(Path(given).expanduser()).evaluate.gamma, draft.config.evaluate.gamma
    if now == then:
        return []
    return [
        f"{given} has evaluate.gamma {now}, and the run that trained the draft had {then}, which is exported; --gamma {now} "
        "exports the other"
    ]


def _latest(store: Store) -> Config:
    record = require_run(store, None)
    return run_config(record)
