"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML config file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a config key, such as distill.max_steps=100."),
]
StorePath = Annotated[Path, typer.Option("--store", metavar="DIR", help="Where artifacts and runs are kept.")]
DEFAULT_STORE = Path(".understudy")
DtypeOption = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option("--dtype", help="Number format of target and drafts; as saved by default."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that ships with a model. Only if you have read it.")
]
