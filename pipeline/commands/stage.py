"""`understudy stage`: one stage of a run; what a scheduler's task calls."""

from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, ConfigPath, Overrides, StorePath
from pipeline.errors import UsageError
from pipeline.running.stage_list import STAGE_NAMES


def stage(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(STAGE_NAMES)}.")],
    config: ConfigPath,
    run_id: Annotated[
        str, typer.Option("--run", metavar="ID", help="The run this stage belongs to; the first stage starts it.")
    ],
    set_: Overrides = None,
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Run one stage of a run. Earlier stages must be done; state passes through the store and the run's id."""
    from pipeline.config.loading import load_config
    from pipeline.progress import Progress
    from pipeline.running.runner import Runner, begin
    from pipeline.store.artifacts import Store

    if name not in STAGE_NAMES:
        raise UsageError(f"{name}: not a stage; the stages are {', '.join(STAGE_NAMES)}")
    target, progress = Store(store), Progress()
    record = begin(load_config(config, set_ or ()), target, run_id, progress)
    Runner(target, record, progress).run(name, name)
