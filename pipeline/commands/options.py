"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML config file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a config key, such as distill.max_steps=100."),
]
StorePath = Annotated[Path, typer.Option("--store", metavar="DIR", help="Where artifacts and runs are kept.")]
DEFAULT_STORE = Path(".understudy")
