"""`understudy decode`: speculative decoding in the terminal, drafted tokens in colour."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.options import DeviceOption, DtypeOption, TrustOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.models.named_pair import NamedPair
    from pipeline.speculation.batch import Completion
    from pipeline.speculation.draft_length import DraftLength
    from pipeline.speculation.sampling import Sampling


def decode(
    prompt: Annotated[str, typer.Argument(help="What to continue; `-` reads it from standard input.")],
    target: Annotated[str, typer.Option("--target", metavar="T", help="Model directory or org/name@revision.")],
    draft: Annotated[str, typer.Option("--draft", metavar="D", help="The same, for the draft.")],
    gamma: Annotated[int, typer.Option(max=64, help="Tokens to draft a round.")] = 5,
    stop_drafting: Annotated[
        Literal["never", "confidence", "entropy"],
        typer.Option(help="End a block early where the draft is unsure (top probability below 0.4; SVIP)."),
    ] = "never",
    verification: Annotated[
        Literal["token", "block"], typer.Option(help="Token-level rejection sampling or block verification.")
    ] = "token",
    temperature: Annotated[float, typer.Option(min=0, help="0 is argmax.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 keeps all tokens.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0001, max=1, help="1 keeps all tokens.")] = 1.0,
    min_p: Annotated[float, typer.Option(min=0, max=1, help="0 keeps all tokens.")] = 0.0,
    draft_sampling: Annotated[
        Literal["probabilistic", "greedy"], typer.Option(help="How draft tokens are drawn when the target samples.")
    ] = "probabilistic",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Render the prompt by the chat template; by default where there is one."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run the target alone too, and show both.")] = False,
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    trust_remote_code: TrustOption = False,
) -> None:
    """Decode one prompt speculatively: accepted, corrected and bonus tokens in different colours, then the statistics."""
    from pipeline.errors import UsageError

    text = sys.stdin.read() if prompt == "-" else prompt
    if not _is_text(text):
        raise UsageError("the prompt is not UTF-8 text")
    if not text:
        raise UsageError("the prompt is empty; there is nothing to continue")
    if gamma < 1:
        raise UsageError(f"--gamma {gamma}: draft at least 1 token a round; --compare shows the target alone")
    from pipeline.models.named_pair import load_named_pair
    from pipeline.report.decode import Painter, print_statistics
    from pipeline.speculation.batch import Request
    from pipeline.speculation.decoder import Decoder, Decoding
    from pipeline.speculation.sampling import GREEDY, Sampling

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

    speculating, plain = decoder(_length(gamma, stop_drafting)), decoder(0)
    if compare:  # neither should pay for the first touch of its weights
        for one in (plain, speculating):
            one.decode([Request(request.prompt, min(8, max_new_tokens), seed)])
    painter = Painter(pair.tokenizer)
    painter.begin(text)
    decoding = Decoding(speculating, [request])
    for round_ in decoding:
        painter.paint(round_.emitted[0], round_.accepted[0], round_.drafted[0])
    painter.end()
    alone = plain.decode([request])[0] if compare else None
    if alone is not None and alone.tokens == decoding.completions[0].tokens:
        painter.note("the target alone says the same, token by token")
    elif alone is not None:
        painter.plain(alone.tokens, _why_other(pair, request.prompt, decoding.completions[0], alone, sampling))
    print_statistics(decoding.completions[0], alone, speculating.length.most)


def _is_text(text: str) -> bool:
    """Whether what the shell handed over can be encoded: bytes that are no UTF-8 come as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _length(gamma: int, stop_drafting: str) -> "DraftLength":
    from pipeline.speculation.draft_length import Certain, Confident, Fixed

    return {"never": Fixed, "confidence": Confident, "entropy": Certain}[stop_drafting](gamma)


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
        raise UsageError(f"the prompt: {reason}; --no-chat leaves the template out") from None
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
    """Why two texts differ, as far as it is known."""
    from pipeline.examination.cross_check import NEAR_TIE, first_divergence

    if not sampling.greedy:
        return "the target alone (another draw from the same distribution)"
    length = min(len(speculative.tokens), len(alone.tokens))
    found = first_divergence(pair.target, prompt, alone.tokens[:length], speculative.tokens[:length], pair.vocabulary)
    if found is None:
        return "the target alone (of another length)"
    position, gap = found
    why = "a tie, which a block rounds otherwise" if gap < NEAR_TIE else "too wide for rounding in fp32, usual below it"
    return f"the target alone (from token {position} on, where its two best logits are {gap:.1e} apart: {why})"
