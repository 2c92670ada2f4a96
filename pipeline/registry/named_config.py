"""The config that a command about the champion is given: a file, or the registered name of a draft, by its latest run."""

import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.loading import load_config
from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.registry.registry import registered_name
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, read_runs

_NAME = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(@champion)?")


def find_config(given: str, overrides: Sequence[str], store: Store, lacking: str = "no such config file") -> Config:
    """`given`: a config file, or a name such as `quickstart-draft`. A name stands for the config of the latest run in `store`
    that promotes under it. UsageError, which begins with what is `lacking`, if it is neither."""
    path, found = Path(given).expanduser(), _NAME.fullmatch(given)
    if path.is_file() or found is None or path.suffix in (".yaml", ".yml"):
        return load_config(path, overrides)
    if overrides:
        raise UsageError(f"--set: {given} is a registered name, whose config is that of its run; give a config file")
    known = dict[str, Config]()
    for record in reversed(read_runs(store)):
        named = _named(record)
        if named is not None:
            known.setdefault(*named)
        if found["name"] in known:
            return known[found["name"]]
    names = f"there are {', '.join(known)}" if known else "it has no runs"
    raise UsageError(f"{given}: {lacking}, and no run in {store.root} promotes under this name: {names}")


def _named(record: RunRecord) -> tuple[str, Config] | None:
    """None for a run of another version, or one that names no target."""
    try:
        config = run_config(record)
        return registered_name(config), config
    except UnderstudyError:
        return None
