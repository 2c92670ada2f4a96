"""`understudy decode`: speculative decoding in the terminal, with accepted and rejected tokens in colour."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.options import (
    DeviceOption,
    DraftName,
    DraftSamplingOption,
    DtypeOption,
    MinPOption,
    TargetName,
    TemperatureOption,
    TopKOption,
    TopPOption,
    TrustOption,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.models.named_pair import NamedPair
    from pipeline.speculation.batch import Completion
    from pipeline.speculation.draft_length import DraftLength
    from pipeline.speculation.settings import Sampling

_THRESHOLD = 0.5  # of --fallback, as long as nobody measured the break-even


def decode(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt; `-` reads it from standard input.")],
    target: TargetName,
    draft: DraftName,
    gamma: Annotated[int, typer.Option(max=64, help="The draft length: number of draft tokens per round.")] = 5,
    stop_drafting: Annotated[
        Literal["never", "confidence", "entropy"],
        typer.Option(help="Stop drafting early at a low top probability (below 0.4) or at a high entropy (SVIP)."),
    ] = "never",
    fallback: Annotated[
        bool,
        typer.Option(
            "--fallback",
            help="Draft fewer tokens, then none, while the acceptance rate of the last 200 verified draft tokens is below "
            "--threshold.",
        ),
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help=f"The break-even acceptance rate for --fallback, {_THRESHOLD} by default."),
    ] = None,
    verification: Annotated[
        Literal["token", "block"], typer.Option(help="Token-level rejection sampling or block verification.")
    ] = "token",
    temperature: TemperatureOption = 1.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    draft_sampling: DraftSamplingOption = "probabilistic",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The maximum length of the completion, in tokens.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="The random seed; the same seed gives the same text.")] = 0,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Apply the chat template to the prompt; by default if there is one."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode with the target alone too, and show both results.")
    ] = False,
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
) -> None:
    """Decode one prompt speculatively and print statistics.

    Accepted, corrected and bonus tokens are printed in different colours.
    """
    from pipeline.errors import UsageError

    text = sys.stdin.read() if prompt == "-" else prompt
    if not _is_text(text):
        raise UsageError("the prompt is not UTF-8 text")
    if not text:
        raise UsageError("the prompt is empty; there is nothing to continue")
    if gamma < 1:
        raise UsageError(f"--gamma {gamma}: draft at least 1 token per round; --compare shows the target alone")
    if threshold is not None and not fallback:
        raise UsageError("--threshold: works only with --fallback")
    from pipeline.models.named_pair import load_named_pair
    from pipeline.report.decode import Painter, print_statistics
    from pipeline.speculation.batch import Request
    from pipeline.speculation.decoder import Decoder, Decoding
    from pipeline.speculation.settings import GREEDY, Sampling

    pair = load_named_pair(target, [draft], dtype, device, trust_remote_code)
    request = Request(_tokens(pair, text, chat, max_new_tokens), max_new_tokens, seed)
    sampling = Sampling(temperature, top_k, top_p, min_p)

    def decoder(length: "int | DraftLength") -> Decoder:
        return Decoder(
            pair.target,
            next(iter(pair.drafts.values())) if length else None,
            sampling=sampling,
            draft_sampling=GREEDY if draft_sampling == "greedy" else None,
            vocabulary=pair.vocabulary,
            gamma=length,
            verification=verification,
            stop_tokens=pair.stop_tokens,
        )

    changes: list[str] = []  # of the draft length; printed after the text, not in the middle of it

    def length() -> "DraftLength":
        chosen = _length(gamma, stop_drafting)
        least = _THRESHOLD if threshold is None else threshold
        return _with_fallback(chosen, least, changes.append) if fallback else chosen

    speculating, plain = decoder(length()), decoder(0)
    if compare:  # warm-up, so that neither measurement includes the first use of the weights
        for one in (plain, speculating):
            one.decode([Request(request.prompt, min(8, max_new_tokens), seed)])
        speculating.length = length()  # with an empty window
    painter = Painter(pair.tokenizer)
    painter.begin(text)
    decoding = Decoding(speculating, [request])
    for round_ in decoding:
        painter.paint(round_.emitted[0], round_.accepted[0], round_.drafted[0])
    painter.end()
    for change in changes:
        painter.note(f"fallback: {change}")
    if fallback and not changes and (note := _too_short(speculating.length)):
        painter.note(note)
    alone = plain.decode([request])[0] if compare else None
    if alone is not None and alone.tokens == decoding.completions[0].tokens:
        painter.note("the target alone gives the same text, token by token")
    elif alone is not None:
        painter.plain(alone.tokens, _why_other(pair, request.prompt, decoding.completions[0], alone, sampling))
    print_statistics(decoding.completions[0], alone)


def _is_text(text: str) -> bool:
    """Whether the argument is UTF-8: Python turns bytes that are not into lone surrogates, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _length(gamma: int, stop_drafting: str) -> "DraftLength":
    from pipeline.speculation.draft_length import Certain, Confident, Fixed

    return {"never": Fixed, "confidence": Confident, "entropy": Certain}[stop_drafting](gamma)


def _with_fallback(chosen: "DraftLength", threshold: float, on_change: "Callable[[str], None]") -> "DraftLength":
    from pipeline.speculation.draft_length import Fallback

    return Fallback(chosen, break_even=threshold, on_change=on_change)


def _too_short(length: "int | DraftLength") -> str | None:
    """Why the fallback could not have changed anything; None if it could."""
    from pipeline.speculation.draft_length import Fallback

    if not isinstance(length, Fallback) or length.examined >= length.needed:
        return None
    return (
        f"fallback: nothing changed; {length.examined} draft tokens were verified and {length.needed} are needed "
        "(raise --max-new-tokens)"
    )


def _tokens(pair: "NamedPair", text: str, chat: bool | None, new: int) -> list[int]:
    from pipeline.corpus.rendering import Renderer
    from pipeline.corpus.rows import BadRow, ParsedPrompt
    from pipeline.errors import UsageError

    if chat and not pair.tokenizer.chat_template:
        raise UsageError("--chat: the target's tokenizer has no chat template")
    renderer = Renderer(pair.tokenizer, chat, {})
    try:
        rendered = renderer.text(ParsedPrompt(({"role": "user", "content": text},), True, "", None))
    except BadRow as reason:
        raise UsageError(f"the prompt: {reason}; --no-chat leaves out the chat template") from None
    tokens = renderer.token_ids([rendered])[0]
    if not tokens:
        raise UsageError("the prompt is empty; there is nothing to continue")
    if len(tokens) + new > pair.context:
        raise UsageError(
            f"the prompt's {len(tokens)} tokens and {new} new ones exceed the pair's context of {pair.context}; "
            "lower --max-new-tokens or shorten the prompt"
        )
    return tokens


def _why_other(
    pair: "NamedPair", prompt: "Sequence[int]", speculative: "Completion", alone: "Completion", sampling: "Sampling"
) -> str:
    """A title for the text of the target alone that says why it differs."""
    from pipeline.examination.cross_check import NEAR_TIE, first_divergence

    if not sampling.greedy:
        return "the target alone (another sample from the same distribution)"
    length = min(len(speculative.tokens), len(alone.tokens))
    found = first_divergence(pair.target, prompt, alone.tokens[:length], speculative.tokens[:length], pair.vocabulary)
    if found is None:
        return "the target alone (stopped at another length)"
    position, gap = found
    why = (
        "a tie within rounding error"
        if gap < NEAR_TIE
        else "more than fp32 rounding explains, common in lower precision"
    )
    return f"the target alone (differs from token {position}, where its two highest logits differ by {gap:.1e}: {why})"
