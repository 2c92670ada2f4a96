"""`understudy compare`: two drafts, paired by prompt."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, JsonOption, StorePath, TrustOption
from pipeline.progress import say_json

_OPERAND = "A run, NAME@champion, NAME@VERSION, a model directory, org/name@revision or a baseline file."


def compare(
    one: Annotated[str, typer.Argument(metavar="A", help=_OPERAND)],
    other: Annotated[str, typer.Argument(metavar="B", help="The same; differences are B minus A.")],
    domain: Annotated[str | None, typer.Option(metavar="D", help="Compare on the prompts of one domain.")] = None,
    completions: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A generate artifact to compare on, in place of the one of A or B."),
    ] = None,
    store: StorePath = DEFAULT_STORE,
    as_json: JsonOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Compare two drafts, prompt by prompt, on one set of completions.

    What a run has examined is not examined again. Prompts that one of the drafts was trained on are left out.
    """
    from dataclasses import asdict

    from pipeline.errors import BrokenDraft, Refused
    from pipeline.report.compare import compare_examined, print_comparison
    from pipeline.running.operands import examine_operands, find_operand
    from pipeline.store.artifacts import Store

    operands = [find_operand(text, Store(store)) for text in (one, other)]
    try:
        examined = examine_operands(operands, completions, trust_remote_code)
    except BrokenDraft as error:
        raise Refused(f"no comparison: {error}") from None
    gamma = next((operand.settings.gamma for operand in operands if operand.settings is not None), 5)
    found = compare_examined(*examined, gamma=gamma, domain=domain)
    labels = [operand.label for operand in operands]
    if as_json:
        say_json({"a": labels[0], "b": labels[1], **asdict(found)})
    else:
        print_comparison(labels, found)
