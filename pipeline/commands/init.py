"""`understudy init`: a commented config to start from."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import (
    PROMPTS_HELP,
    DomainFieldOption,
    MessagesFieldOption,
    PromptFieldOption,
    PromptFormatOption,
    TrustOption,
    columns_of,
    path_option,
)
from pipeline.drafts.kinds import HeadKindName
from pipeline.progress import say_block


def init(
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="T",
            help="The target model: a local directory, org/name, org/name@revision, or the URL of a server that runs it "
            "(vLLM, SGLang, llama.cpp).",
        ),
    ],
    draft: Annotated[
        str,
        typer.Option(
            "--draft",
            metavar="D",
            help="The draft: a local directory (a model, or an EAGLE-3 or Medusa head), org/name, org/name@revision, or "
            "`target`: some of the target's layers.",
        ),
    ],
    prompts: Annotated[
        str,
        typer.Option("--prompts", metavar="F", help=f"Your prompts: {PROMPTS_HELP}"),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="K",
            help="With a URL as --target: its tokenizer, a local directory, org/name or org/name@revision.",
        ),
    ] = None,
    draft_kind: Annotated[
        HeadKindName | None,
        typer.Option(
            "--draft-kind",
            help="With `--draft target`: an untrained head on its hidden states, instead of some of its layers.",
        ),
    ] = None,
    prompt_format: PromptFormatOption = None,
    prompt_field: PromptFieldOption = None,
    messages_field: MessagesFieldOption = None,
    domain_field: DomainFieldOption = None,
    out: Annotated[
        Path | None,
        path_option("--out", metavar="FILE", help="Write the config to this new file. Default: standard output."),
    ] = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Make a commented config for your models and prompts.

    It is printed, or written to --out. The comments explain each choice.
    """
    if out is not None:
        _check_new(out)
    _check_models(target, draft, draft_kind)
    from pipeline.corpus.hub_data import named_prompts
    from pipeline.corpus.sources import find_files

    chosen = named_prompts(prompts, "--prompts", prompt_format or "auto")
    find_files(chosen.path, prompt_format or "auto", f"--prompts {prompts}")  # before torch is imported
    from pipeline.planning.starting_config import starting_config

    columns = columns_of(prompt_format, prompt_field, messages_field, domain_field)
    text = starting_config(
        target, draft, chosen.path, tokenizer, columns, trust_remote_code, prompts_name=chosen.name, head=draft_kind
    )
    if out is None:
        say_block(text)
        return
    from pipeline.store.files import write_user_text

    write_user_text(out, text, "--out")
    say_block(f"written to {out}; next: understudy plan {out} --measure\n")


def _check_models(target: str, draft: str, draft_kind: str | None) -> None:
    """UsageError for what needs no model to be seen: names that can be no model, and a kind where no head is made."""
    from pipeline.errors import UsageError
    from pipeline.models.names import local_directory

    if draft_kind is not None and draft != "target":
        raise UsageError(
            f"--draft-kind {draft_kind}: it is of a draft that is made for the target (--draft target); leave it out, the kind "
            "of a checkpoint is found in its config.json"
        )
    for role, name in (("target", target), ("draft", draft)):
        if "://" not in name and name != "target":
            local_directory(name, role)


def _check_new(out: Path) -> None:
    """UsageError for a file that is there already or cannot be written: what somebody edited is not written over."""
    from pipeline.errors import UsageError
    from pipeline.store.files import check_user_file

    check_user_file(out, "--out")
    if out.exists():
        raise UsageError(f"--out {out}: it is there already; remove it, or name another file")
