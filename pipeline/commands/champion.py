"""`understudy champion`: the registered draft that is in use, and the ones before it."""

from typing import TYPE_CHECKING

import typer

from pipeline.commands.options import DEFAULT_STORE, ConfigPath, Overrides, StorePath

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.registry.registry import Registry


def rollback(config: ConfigPath, overrides: Overrides = None, store: StorePath = DEFAULT_STORE) -> None:
    """Make the previous champion the champion again. Without a previous one there is no champion afterwards.

    Later runs do not promote the draft that was rolled back, unless they are called with --force-promote.
    """
    registry = _registry(config, overrides, store)
    champion = registry.rollback()
    if champion is None:
        typer.echo(
            f"{registry.name} has no champion now: there was none before; the next candidate is compared with the base draft"
        )
    else:
        typer.echo(f"{registry.name}: version {champion.version} is champion again (draft {champion.digest})")
    typer.echo(
        "Later runs do not promote the draft that was rolled back, except with `understudy run CONFIG --force-promote`."
    )


def history(config: ConfigPath, overrides: Overrides = None, store: StorePath = DEFAULT_STORE) -> None:
    """List every promotion and rollback, the oldest first."""
    from pipeline.report.history import print_history

    registry = _registry(config, overrides, store)
    changes = registry.history()
    if not changes:
        typer.echo(f"{registry.name}: nothing was promoted yet")
    else:
        print_history(changes)


def _registry(config: "Path", overrides: list[str] | None, store: "Path") -> "Registry":
    from pipeline.config.loading import load_config
    from pipeline.errors import UsageError
    from pipeline.registry.mlflow_client import tracking_location
    from pipeline.registry.registry import registry_for
    from pipeline.store.artifacts import Store

    read = load_config(config, overrides or [])
    if not tracking_location(read, Store(store)).exists:
        raise UsageError(f"--store {store}: there is no registry here; name the store of the run that promoted")
    return registry_for(read, Store(store))
