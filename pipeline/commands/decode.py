"""`understudy decode`: speculative decoding in the terminal, with accepted and rejected tokens in colour."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.options import (
    DEFAULT_STORE,
    DeviceOption,
    DraftName,
    DraftSamplingOption,
    DtypeOption,
    MessagesFieldOption,
    MinPOption,
    PromptFieldOption,
    PromptFormatOption,
    StorePath,
    TargetName,
    TemperatureOption,
    TopKOption,
    TopPOption,
    TrustOption,
    columns_of,
)
from pipeline.commands.sampling import of_options, of_runs
from pipeline.speculation.settings import Verification

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.config.corpus import PromptSource, SourceFormat
    from pipeline.examination.one_decode import OneDecode

_THRESHOLD = 0.5  # of --fallback, as long as nobody measured the break-even
_TURNS = 6

_Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The prompt; `-` reads it from standard input. Or give --prompts."),
]
_Prompts = Annotated[
    str | None,
    typer.Option(
        "--prompts",
        metavar="F",
        help="Decode a row of these prompts instead: a file, a directory, a glob, or a data set of the hub, "
        "org/name[@revision][:PATTERN] (docs/prompts.md).",
    ),
]
_Row = Annotated[int | None, typer.Option(min=1, help="With --prompts: which row. Default: the first.")]
_Gamma = Annotated[int, typer.Option(max=64, help="The draft length: number of draft tokens per round.")]
_StopDrafting = Annotated[
    Literal["never", "confidence", "entropy"],
    typer.Option(help="Stop drafting early at a low top probability (below 0.4) or at a high entropy (SVIP)."),
]
_Fallback = Annotated[
    bool,
    typer.Option(
        "--fallback",
        help="Draft fewer tokens, then none, while the acceptance rate of the last 200 verified draft tokens is below "
        "--threshold.",
    ),
]
_Threshold = Annotated[
    float | None,
    typer.Option(min=0, max=1, help=f"The break-even acceptance rate for --fallback, {_THRESHOLD} by default."),
]
_Verification = Annotated[Verification, typer.Option(help="Token-level rejection sampling or block verification.")]
_MaxNewTokens = Annotated[int, typer.Option(min=1, help="The maximum length of the completion, in tokens.")]
_Seed = Annotated[int, typer.Option(min=0, help="The random seed; the same seed gives the same text.")]
_Chat = Annotated[
    bool | None,
    typer.Option("--chat/--no-chat", help="Apply the chat template to the prompt; by default if there is one."),
]
_Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help=f"Decode with the target alone too, show both results, and tokens per second in {_TURNS} turns of each.",
    ),
]


def decode(
    target: TargetName,
    draft: DraftName,
    prompt: _Prompt = None,
    prompts: _Prompts = None,
    row: _Row = None,
    prompt_format: PromptFormatOption = None,
    prompt_field: PromptFieldOption = None,
    messages_field: MessagesFieldOption = None,
    gamma: _Gamma = 5,
    stop_drafting: _StopDrafting = "never",
    fallback: _Fallback = False,
    threshold: _Threshold = None,
    verification: _Verification = "token",
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    draft_sampling: DraftSamplingOption = "probabilistic",
    max_new_tokens: _MaxNewTokens = 128,
    seed: _Seed = 0,
    chat: _Chat = None,
    compare: _Compare = False,
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    store: StorePath = DEFAULT_STORE,
    trust_remote_code: TrustOption = False,
) -> None:
    """Decode one prompt speculatively and print statistics.

    Accepted, corrected and bonus tokens are printed in different colours.
    """
    columns = columns_of(prompt_format, prompt_field, messages_field)
    source = _source(prompt, prompts, row, columns)
    text = _checked(prompt or "", gamma, threshold if not fallback else None, source is None)
    from pipeline.registry.finding import find_draft
    from pipeline.store.artifacts import Store

    options = of_options(temperature, top_k, top_p, min_p)
    named = find_draft(draft, Store(store), "--draft")
    from pipeline.drafts.named_pair import load_named_pair
    from pipeline.examination.one_decode import DecodeSettings, OneDecode
    from pipeline.examination.one_prompt import of_row, of_text
    from pipeline.speculation.batch import Request
    from pipeline.speculation.deployed import FILE, StatedSettings, resolve

    known = [*of_runs({draft: named}, options), *options]
    pair = load_named_pair(target, {draft: named}, dtype, device, trust_remote_code)
    if source is None:
        chosen = of_text(pair, text, chat, max_new_tokens)
    else:
        chosen = of_row(pair, source, row or 1, chat, max_new_tokens)
    deployed = resolve([StatedSettings(FILE, pair.sampling_defaults), *chosen.sampling, *known])
    settings = DecodeSettings(
        sampling=deployed.sampling,
        greedy_draft=draft_sampling == "greedy",
        gamma=gamma,
        stop_drafting=stop_drafting,
        break_even=(_THRESHOLD if threshold is None else threshold) if fallback else None,
        verification=verification,
    )
    request = Request(chosen.tokens, max_new_tokens, seed, domain=chosen.domain)
    _show(OneDecode(pair, request, settings), chosen.text, compare, [*chosen.notes, *deployed.lines])


def _source(
    prompt: str | None, prompts: str | None, row: int | None, columns: "Mapping[str, str | None]"
) -> "PromptSource | None":
    """The source that --prompts names, whose files are on this machine then; None for a prompt that is a text. UsageError for
    both, for neither, and for options of rows without one."""
    from pipeline.config.corpus import named_source
    from pipeline.corpus.hub_data import named_prompts
    from pipeline.corpus.sources import find_files
    from pipeline.errors import UsageError

    if (prompt is None) == (prompts is None):
        raise UsageError("give either PROMPT, a text, or --prompts, of which a row is decoded")
    if prompts is None:
        given = {"row": row, **{name if "_" in name else "prompt_format": column for name, column in columns.items()}}
        if unused := [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]:
            raise UsageError(f"{unused[0]}: works only with --prompts; add it, or leave {unused[0]} out")
        return None
    wanted: SourceFormat = columns["format"] or "auto"  # type: ignore[assignment]
    path = named_prompts(prompts, "--prompts", wanted).path
    find_files(path, wanted, f"--prompts {prompts}")  # before torch is imported
    return named_source(path, columns)


def _checked(prompt: str, gamma: int, unused_threshold: float | None, needed: bool) -> str:
    """The prompt's text, which is `needed` without --prompts. UsageError for what needs no model to be seen."""
    from pipeline.errors import UsageError

    text = sys.stdin.read() if prompt == "-" else prompt
    if not _is_text(text):
        raise UsageError("the prompt is not UTF-8 text; convert it")
    if needed and not text:
        raise UsageError("the prompt is empty; there is nothing to continue")
    if gamma < 1:
        raise UsageError(f"--gamma {gamma}: draft at least 1 token per round; --compare shows the target alone")
    if unused_threshold is not None:
        raise UsageError("--threshold: works only with --fallback; add it, or leave --threshold out")
    return text


def _is_text(text: str) -> bool:
    """Whether the argument is UTF-8: Python turns bytes that are not into lone surrogates, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _show(decode: "OneDecode", text: str, compare: bool, about: list[str]) -> None:
    """The completion as it is decoded, then notes, with those `about` its sampling, and statistics."""
    from pipeline.commands.tables.decode import Painter, print_statistics

    if compare:
        decode.warm_up()
    painter = Painter(decode.pair.tokenizer)
    painter.begin(text)
    statistics, rounds = decode.begin()
    for round_ in rounds:
        painter.paint(round_.emitted[0], round_.accepted[0], round_.drafted[0])
    painter.end()
    for note in (*about, *decode.limits, *decode.notes):
        painter.note(note)
    if (unused := decode.too_short()) is not None:
        painter.note(unused)
    if not compare:
        print_statistics(statistics, painter.counts)
        return
    alone = decode.plain.decode([decode.request])[0]
    if alone.tokens == statistics.tokens:
        painter.note("the target alone gives the same text, token by token")
    else:
        painter.plain(alone.tokens, decode.why_other(statistics, alone))
    print_statistics(statistics, painter.counts, alone, decode.compare(_TURNS))
