"""`understudy init`: a commented config to start from."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import DraftName, TargetName


def init(
    target: TargetName,
    draft: DraftName,
    prompts: Annotated[
        Path,
        typer.Option(
            "--prompts", metavar="F", help="Your prompts: a JSONL or Parquet file, or a `datasets` directory."
        ),
    ],
) -> None:
    """Print a commented config for your models and prompts.

    Save it with `understudy init ... > my.yaml`. The comments explain each choice.
    """
    from pipeline.planning.starting_config import starting_config

    print(starting_config(target, draft, prompts), end="")
