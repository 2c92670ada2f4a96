"""`understudy compare`: two drafts, paired by prompt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, JsonOption, StorePath, TargetOfHead, TrustOption, path_option
from pipeline.progress import say_json
from pipeline.registry.draft_names import COMPARED_FORMS

if TYPE_CHECKING:
    from pipeline.acceptance.baseline import ExaminedCounts


def compare(
    one: Annotated[str, typer.Argument(metavar="A", help=f"{COMPARED_FORMS} (docs/naming.md).")],
    other: Annotated[str, typer.Argument(metavar="B", help="The same; differences are B minus A.")],
    domain: Annotated[str | None, typer.Option(metavar="D", help="Compare on the prompts of one domain.")] = None,
    completions: Annotated[
        Path | None,
        path_option(metavar="DIR", help="A generate artifact to compare on, in place of the one of A or B."),
    ] = None,
    target: TargetOfHead = None,
    store: StorePath = DEFAULT_STORE,
    as_json: JsonOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Compare two drafts, prompt by prompt, on one set of completions.

    What a run has examined is not examined again. Prompts that one of the drafts was trained on are left out.
    """
    from dataclasses import asdict

    from pipeline.commands.tables.compare import compare_examined, print_comparison
    from pipeline.errors import BrokenDraft, Refused
    from pipeline.registry.draft_names import File
    from pipeline.registry.finding import EXAMINED, draft_of, read_name
    from pipeline.store.artifacts import Store

    where = Store(store)
    drafts, baselines = {}, {}
    for text in (one, other):
        named = read_name(text, where, forms=COMPARED_FORMS)
        if isinstance(named, File):
            baselines[text] = _read(named.path, text)
        else:
            drafts[text] = draft_of(named, text, where, needs=EXAMINED)
    from pipeline.running.examined_drafts import Baseline, examine_drafts  # loads torch

    operands = [drafts.get(text) or Baseline(text, baselines[text]) for text in (one, other)]
    try:
        examined, gamma = examine_drafts(operands, where, completions, target, trust_remote_code)
    except BrokenDraft as error:
        raise Refused(f"no comparison: {error}") from None
    comparison = compare_examined(*examined, gamma=gamma, domain=domain)
    labels = [operand.label for operand in operands]
    if as_json:
        say_json({"a": labels[0], "b": labels[1], **asdict(comparison)})
    else:
        print_comparison(labels, comparison)


def _read(baseline: Path, text: str) -> "ExaminedCounts":
    from pipeline.acceptance.baseline import read_baseline
    from pipeline.store.files import read_user_json

    return read_baseline(read_user_json(baseline, f"give {COMPARED_FORMS}"), text)
