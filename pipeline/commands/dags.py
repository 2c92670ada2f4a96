"""`understudy dags`: the Airflow files of the installed version."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import path_option
from pipeline.progress import say


def dags(
    out: Annotated[
        Path, path_option(metavar="DIR", help="The directory to write: Airflow's DAG folder, or a folder in it.")
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that were changed since they were written.")
    ] = False,
) -> None:
    """Write the Airflow DAG files of this version.

    They retrain, watch, and verify what is served (docs/operations.md). A file of an earlier version is replaced; one that was
    changed since is an error.
    """
    from pipeline.planning.dag_files import write_dags

    for file in write_dags(out, overwrite):
        say(f"{file.path}: {file.what}" + (f" ({file.before})" if file.before else ""))
