"""`understudy init`: a commented config to start from."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import DraftName


def init(
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="T",
            help="The target model: a local directory, org/name@revision, or the URL of a server that runs it (vLLM, SGLang, "
            "llama.cpp).",
        ),
    ],
    draft: DraftName,
    prompts: Annotated[
        Path,
        typer.Option(
            "--prompts", metavar="F", help="Your prompts: a JSONL or Parquet file, or a `datasets` directory."
        ),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="K",
            help="With a URL as --target: its tokenizer, a local directory or org/name@revision.",
        ),
    ] = None,
) -> None:
    """Print a commented config for your models and prompts.

    Save it with `understudy init ... > my.yaml`. The comments explain each choice.
    """
    from pipeline.planning.starting_config import starting_config

    print(starting_config(target, draft, prompts, tokenizer), end="")
