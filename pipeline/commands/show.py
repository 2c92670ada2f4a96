"""`understudy show`: what a run did and found."""

from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, StorePath


def show(
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run's id; the latest by default.")] = None,
    run_option: Annotated[str | None, typer.Option("--run", metavar="ID", help="The same as the argument.")] = None,
    store: StorePath = DEFAULT_STORE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Show stages, the table of drafts, the decision, and where to look in MLflow."""
    import dataclasses
    import json

    from pipeline.report.run import print_summary
    from pipeline.report.summary import summarise
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import require_run

    target = Store(store)
    summary = summarise(target, require_run(target, run_id or run_option))
    if as_json:
        print(json.dumps(dataclasses.asdict(summary), indent=1, allow_nan=False))
    else:
        print_summary(summary)
