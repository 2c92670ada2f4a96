"""`understudy show`: what a run did and found."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, JsonOption, StorePath, path_option
from pipeline.progress import say, say_block, say_json

if TYPE_CHECKING:
    from pipeline.commands.tables.summary import Summary
    from pipeline.store.artifacts import Store


def show(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="The run, by default the latest; or a registered draft, for the run that trained it (docs/naming.md).",
        ),
    ] = None,
    store: StorePath = DEFAULT_STORE,
    as_json: JsonOption = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the summary as Markdown, such as for the summary of a CI job.")
    ] = False,
    html: Annotated[
        Path | None, path_option(metavar="FILE", help="Write the review page here, in place of the summary.")
    ] = None,
) -> None:
    """Show the results of a run.

    Prints its jobs, the table of drafts, the decision, and the link to MLflow.
    """
    import dataclasses

    from pipeline.commands.tables.show import print_summary
    from pipeline.commands.tables.summary import summarise
    from pipeline.errors import UsageError
    from pipeline.registry.finding import find_run
    from pipeline.store.artifacts import Store

    forms = {"--json": as_json, "--markdown": markdown, "--html": html is not None}
    if len(given := [option for option, wanted in forms.items() if wanted]) > 1:
        raise UsageError(f"{' and '.join(given)}: each takes the place of the summary; give one of them")
    target = Store(store)
    if html is not None:
        from pipeline.review.run_page import run_page
        from pipeline.store.files import write_user_text

        write_user_text(html, run_page(target, find_run(run, target, needs=("gate",))), "--html")
        say(f"review page written to {html}")
        return
    if markdown:
        from pipeline.review.run_page import run_markdown

        say_block(run_markdown(target, find_run(run, target)))
        return
    summary = summarise(target, find_run(run, target))
    if as_json:
        say_json(dataclasses.asdict(summary))
    else:
        print_summary(summary)
        if run is None and (note := _of_latest(target, summary)):
            say(note)


def _of_latest(store: "Store", latest: "Summary") -> str:
    """That the latest run is shown, where it has no decision; empty where it has one."""
    from pipeline.errors import UsageError
    from pipeline.store.runs import require_run

    if latest.decision is not None:
        return ""
    try:
        decided = f"the latest with a decision: understudy show {require_run(store, None, ('gate',)).id}"
    except UsageError:
        decided = "no run here has one"
    return f"run {latest.run} is the latest, and has no decision ({latest.state}); {decided}"
