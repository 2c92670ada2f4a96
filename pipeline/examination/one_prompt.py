"""The prompt of `understudy decode`: a text, or a row of prompts that are read like those of `probe`. Decodes nothing."""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import stated_sampling
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.rows import BadRow, ParsedPrompt, parse_row
from pipeline.drafts.named_pair import NamedPair
from pipeline.errors import UsageError
from pipeline.speculation.deployed import StatedSettings, of_log


@dataclass(frozen=True)
class OnePrompt:
    """A prompt as token ids, and as it is shown: its text, or the rendered chat."""

    tokens: list[int]
    text: str
    domain: str = ""
    notes: list[str] = field(default_factory=list)
    sampling: list[StatedSettings] = field(default_factory=list)  # what its row states of the deployment's


def of_text(pair: NamedPair, text: str, chat: bool | None, new: int) -> OnePrompt:
    """UsageError if it is empty, or with `new` tokens does not fit the pair's context."""
    try:
        return _rendered(
            pair, _renderer(pair, chat), ParsedPrompt(({"role": "user", "content": text},), True, "", None), new
        )
    except BadRow as reason:
        raise UsageError(f"the prompt: {reason}; --no-chat leaves out the chat template") from None


def of_row(pair: NamedPair, source: PromptSource, number: int, chat: bool | None, new: int) -> OnePrompt:
    """Row `number`, from 1, of the files of a source, in their order. UsageError where it is not there or is no prompt, or as for
    a text."""
    path = Path(source.path)
    reader, renderer = SourceReader(0, source, path, option="--prompts"), _renderer(pair, chat)
    row = next(islice(reader, number - 1, None), None)
    if row is None:
        raise UsageError(f"--row {number}: {path} has {sum(1 for _ in reader):,} rows; name one of them")
    place = f"--prompts {path}: {reader.unit} {row.number}"
    try:
        rendered = _rendered(pair, renderer, parse_row(row.value, reader.source, renderer.names), new)
    except BadRow as reason:
        raise UsageError(f"{place}: {reason}; take another one (--row)") from None
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    stated = Counter[tuple[tuple[str, float], ...]]()
    if reader.columns.foreign_answers is None:
        with contextlib.suppress(UnusableAnswer):  # values that cannot be
            stated[tuple(stated_sampling(row.value).items())] += 1
    notes = [f"{reader.unit} {row.number} of {path}: {reader.summary}"]
    return OnePrompt(rendered.tokens, rendered.text, rendered.domain, notes, of_log(stated))


def _renderer(pair: NamedPair, chat: bool | None) -> Renderer:
    if chat and not pair.tokenizer.chat_template:
        raise UsageError("--chat: the target's tokenizer has no chat template; leave the option out")
    return Renderer(pair.tokenizer, chat, {}, pair.vocabulary)


def _rendered(pair: NamedPair, renderer: Renderer, prompt: ParsedPrompt, new: int) -> OnePrompt:
    """BadRow for what the template refuses; UsageError for a length."""
    rendered = renderer.text(prompt)
    tokens = renderer.token_ids([rendered])[0]
    renderer.check_ids(tokens, prompt.facts)
    if not tokens:
        raise UsageError("the prompt is empty; there is nothing to continue")
    if len(tokens) + new > pair.context:
        raise UsageError(
            f"the prompt's {len(tokens)} tokens and {new} new ones exceed the pair's context of {pair.context}; "
            "lower --max-new-tokens or shorten the prompt"
        )
    text = str(prompt.messages[0]["content"]) if prompt.plain else rendered[0]
    return OnePrompt(tokens, text, prompt.domain)
