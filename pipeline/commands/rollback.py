"""`understudy rollback`: takes the champion off stage and puts back what it had replaced."""

from pathlib import Path
from typing import Annotated

import typer


def rollback(
    config: Annotated[Path, typer.Argument(help="The config of the loop; it says which registry entry is meant.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key.path=value; may be repeated.")] = None,
    store: Annotated[Path, typer.Option(help="The store that holds the default registry.")] = Path(".understudy"),
) -> None:
    """Put the previous champion back, or nobody if there was none: then the stock draft is the one to beat again."""
    from pipeline.config.loading import load_config
    from pipeline.registry.registry import registry_for
    from pipeline.store.artifacts import Store

    registry = registry_for(load_config(config, overrides or []), Store(store))
    champion = registry.rollback()
    if champion is None:
        typer.echo(f"{registry.name} has no champion now: there was none before, so the stock draft is the one to beat")
    else:
        typer.echo(f"{registry.name}: version {champion.version} is champion again (draft {champion.digest})")
