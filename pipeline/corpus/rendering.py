"""Renders prompts to the target's token ids with its chat template. Uses few tokenizer methods; opens no files."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date, datetime
from typing import Any, Protocol

from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answer_store import StoredAnswer
from pipeline.corpus.answers import LoggedAnswer
from pipeline.corpus.as_served import with_parts
from pipeline.corpus.foreign_texts import transcript
from pipeline.corpus.parsed_parts import end_of_parts, spellings
from pipeline.corpus.redaction import has_private
from pipeline.corpus.request_fields import LONGEST
from pipeline.corpus.row_facts import RowFacts
from pipeline.corpus.rows import BadRow, ParsedPrompt
from pipeline.corpus.template_clock import CALL, clock_at, install, moment_of, noon_of
from pipeline.corpus.template_limits import CHARACTERS, TemplateLimits, TemplateStopped
from pipeline.corpus.template_names import TemplateNames
from pipeline.corpus.traces import MessageTraces
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

# Reasons for which an answer is not used: the deployment renders prompts otherwise than the config states.
OTHER_PROMPT = "other prompt_token_ids"
TRANSCRIPT = "chat with its roles in one text"
NO_TIME = "without a time (time_field), and the chat template writes the date"
NOT_ALL = "a text of fewer tokens than usage.completion_tokens"
COMPLETES = "of the completions API, which applies no chat template"

# A target may write a text with more tokens than it is tokenised into, and some tokens have no text.
_MOST_COUNTED, _FEW_COUNTED = 1.25, 8
_MOMENTS = (datetime(2001, 1, 31, 3, 4, 5), datetime(2022, 10, 8, 16, 47, 58))  # that differ in every part
_TEMPLATE = "chat_template"  # an argument that transformers takes in place of the tokenizer's template
_REMEDY = "correct the template, or set corpus.chat_template false for plain prompts"


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that are used."""

    chat_template: Any
    eos_token_id: int | None

    def convert_ids_to_tokens(self, ids: int) -> Any: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def __call__(self, text: list[str], *, add_special_tokens: bool, verbose: bool) -> Mapping[str, Any]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool, **arguments: Any
    ) -> str: ...


class Renderer:
    """Requests to token ids, by the target's own template.

    `wanted` is config.corpus.chat_template. Plain prompts are rendered with the template: None, if there is one; False,
    never; True, always (UsageError if there is none). Chats always need a template. `arguments` are those of the template; what a
    prompt states itself goes before them. `vocabulary`: tokens that the models of the pair share; None: all of the tokenizer.
    `day`: on which prompts without a time of their own are rendered, if the template writes the date; None: the machine's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        wanted: bool | None,
        arguments: Mapping[str, Any],
        vocabulary: int | None = None,
        day: date | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._arguments, self._vocabulary = arguments, vocabulary
        self._limits = TemplateLimits()
        self.names = TemplateNames(self._sources(arguments))
        self._traces = MessageTraces(self._rendered, self.names)
        self.has_template = bool(tokenizer.chat_template)
        self.has_clock = any(CALL in source for source in self._sources(arguments))
        self._noon = None if day is None else noon_of(day)
        if self.has_clock:
            install()
        self.template_for_plain = self.has_template if wanted is None else wanted
        self.check_arguments(arguments, "corpus.chat_template_arguments")
        if wanted and not self.has_template:
            raise UsageError(
                "corpus.chat_template = true: the target's tokenizer has no chat template; set it to false or null"
            )

    def check_arguments(self, arguments: Mapping[str, Any], key: str) -> None:
        """UsageError for an argument, stated under `key` of the config, that the template does not read."""
        templates = "\n".join(self._sources({**self._arguments, **arguments}))
        for name in arguments:
            if name != _TEMPLATE and not re.search(rf"\b{re.escape(name)}\b", templates):
                raise UsageError(
                    f"{key}.{name}: the target's chat template does not read this argument; correct or remove it"
                )

    def _sources(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The texts of the tokenizer's templates, and of one in `arguments`."""
        own = self._tokenizer.chat_template
        templates = [*(own.values() if isinstance(own, Mapping) else [own]), arguments.get(_TEMPLATE)]
        return tuple(str(template) for template in templates if template is not None)

    def text(self, prompt: ParsedPrompt) -> tuple[str, bool]:
        """The text to tokenise, and whether the tokenizer must add special tokens (a template contains its own).

        BadRow if the template raises an error or does not write a message; UsageError for a chat without a template.
        """
        if prompt.plain and not self.template_for_plain:
            if prompt.tools:
                raise BadRow("tools without a chat template", "tools are part of a rendered chat")
            return prompt.messages[0]["content"], True
        if prompt.plain and (mark := transcript(prompt.messages[0]["content"])):
            raise BadRow(TRANSCRIPT, f"the prompt holds the assistant's part too, after '{mark}'")
        if not self.has_template:
            raise UsageError(
                "chats and turns need a chat template, and the target's tokenizer has none; use plain-text prompts "
                "(prompt_field)"
            )
        arguments = {**self._arguments, **prompt.arguments}
        if prompt.tools:
            arguments.pop("tools", None)
        with self._clock(prompt):
            self._traces.check(prompt, arguments)
            return self._rendered(prompt.messages, _with_tools(arguments, prompt)), False

    def answer_ids(self, prompt: ParsedPrompt, ids: Sequence[int], answer: LoggedAnswer) -> StoredAnswer:
        """The token ids of the recorded answer to `prompt`, whose own are `ids`. UnusableAnswer where they are not known exactly.

        Prompt and answer are tokenised together: alone, an answer may begin with another token.
        """
        text, special = self.text(prompt)
        if answer.prompt_tokens is not None and answer.prompt_tokens != tuple(ids):
            raise UnusableAnswer(OTHER_PROMPT)
        if answer.prompt_tokens is None and answer.completes and not special:
            raise UnusableAnswer(COMPLETES)
        if answer.prompt_tokens is None and prompt.facts.time is None and not special and self._is_dated(prompt):
            raise UnusableAnswer(NO_TIME)
        if answer.tokens is not None:
            if answer.redacted and has_private(self._tokenizer.decode(answer.tokens)):
                raise UnusableAnswer("redacted")  # the texts beside them may have said less, or nothing
            return StoredAnswer(answer.tokens, answer.cut, answer.stated)
        if answer.message is not None:
            whole = self._with_message(prompt, text, special, answer.message, answer.cut)
        elif answer.cut or special:
            whole = text + answer.text
        else:
            whole = self._with_end(prompt, text, answer.text)
        (encoded,) = self._encode([whole], special)
        if special and not answer.cut:
            if self._tokenizer.eos_token_id is None:
                raise UnusableAnswer("a tokenizer without an end-of-sequence token")
            if encoded[-1] != self._tokenizer.eos_token_id:
                encoded = [*encoded, self._tokenizer.eos_token_id]
        if encoded[: len(ids)] != list(ids):
            raise UnusableAnswer("a token of both prompt and answer")
        # Where a text was cut, its last token may be another one than the target's.
        tokens = encoded[len(ids) : -1] if answer.cut else encoded[len(ids) :]
        if not tokens:
            raise UnusableAnswer("no text")
        if answer.counted is not None and answer.counted > _MOST_COUNTED * len(tokens) + _FEW_COUNTED:
            raise UnusableAnswer(NOT_ALL)
        return StoredAnswer(tuple(tokens), answer.cut, answer.stated, exact=False)

    def _with_end(self, prompt: ParsedPrompt, text: str, answer: str) -> str:
        """The rendered prompt `text` with its answer and what the template writes at the end of one."""
        whole = self._answered(prompt, {"role": "assistant", "content": answer})
        if not whole.startswith(text + answer):  # the template strips answers, or adds to them, such as empty reasoning
            raise UnusableAnswer("another chat template")
        return whole

    def _with_message(
        self, prompt: ParsedPrompt, text: str, special: bool, message: Mapping[str, Any], cut: bool
    ) -> str:
        """The message with thinking and tool calls that a server parsed out of the target's text: as the template writes them."""
        if special:
            raise UnusableAnswer("thinking or tool calls without a chat template")
        why = UnusableAnswer("another chat template")
        for spelled in spellings(message):
            whole = self._answered(prompt, spelled)
            if not whole.startswith(text):
                continue
            try:
                end = end_of_parts(whole, len(text), message, cut)
            except UnusableAnswer as reason:
                why = reason
                continue
            return whole[:end] if cut else whole
        raise why

    def _answered(self, prompt: ParsedPrompt, message: Mapping[str, Any]) -> str:
        """The rendered prompt with an answer; empty where the template fails."""
        arguments = _with_tools({**self._arguments, **prompt.arguments}, prompt)
        try:
            with self._clock(prompt):
                return self._rendered((*prompt.messages, message), arguments, open_answer=False)
        except BadRow:
            return ""

    def _is_dated(self, prompt: ParsedPrompt) -> bool:
        """Whether the template writes the time into this prompt: it may only name the clock, in a branch that is not taken."""
        if not self.has_clock:
            return False
        texts, arguments = set[str](), _with_tools({**self._arguments, **prompt.arguments}, prompt)
        for moment in _MOMENTS:
            with clock_at(moment):
                texts.add(self._rendered(prompt.messages, arguments))
        return len(texts) > 1

    def _clock(self, prompt: ParsedPrompt) -> AbstractContextManager[None]:
        """The clock at the time of the prompt's row, as the server rendered it, or else on the stated day."""
        own = None if prompt.facts.time is None else moment_of(prompt.facts.time)
        return clock_at(self._noon if own is None else own) if self.has_clock else nullcontext()

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], open_answer: bool = True
    ) -> str:
        def render() -> str:
            return self._tokenizer.apply_chat_template(
                [with_parts(message) if self.names.over_parts else dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=open_answer,
                **arguments,
            )

        try:
            text = self._limits.call(render)
        except TemplateStopped as stopped:
            raise UsageError(f"the chat template of the target's tokenizer {stopped}; {_REMEDY}") from None
        except Exception as error:  # a template is a program, and fails as one
            why = " ".join(str(error).split())[:160] or type(error).__name__
            raise BadRow("chat template failed", why) from None
        if not isinstance(text, str) or len(text) > CHARACTERS:
            raise UsageError(
                f"the chat template of the target's tokenizer renders a prompt to more than {CHARACTERS:,} characters; {_REMEDY}"
            )
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise BadRow("chat template failed", "it writes half of a character (a lone surrogate)") from None
        return text

    def token_ids(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Token ids of the results of `text`, in order."""
        ids: list[list[int]] = [[] for _ in texts]
        for special in (False, True):
            places = [place for place, (_, wants) in enumerate(texts) if wants is special]
            for place, encoded in zip(
                places, self._encode([texts[place][0] for place in places], special), strict=True
            ):
                ids[place] = encoded
        return ids

    def check_ids(self, ids: Sequence[int], facts: RowFacts) -> None:
        """BadRow for token ids of a prompt that a model of the pair cannot read, such as the token of an image, and for more of
        them than the server has read."""
        if facts.longest is not None and len(ids) > facts.longest:
            raise BadRow(f"request with {LONGEST}", f"its prompt of {len(ids):,} tokens was cut to {facts.longest:,}")
        if self._vocabulary is not None and ids and (largest := max(ids)) >= self._vocabulary:
            token = str(self._tokenizer.convert_ids_to_tokens(largest))
            raise BadRow("token that the models do not share", f"id {largest}, '{printable(token[:40])}'")

    def bare_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids without template and special tokens, for near-duplicate detection."""
        return self._encode(list(texts), False)

    def _encode(self, texts: list[str], special: bool) -> list[list[int]]:
        if not texts:
            return []
        # verbose=False: no warning for prompts beyond model_max_length; too long prompts are counted by the first pass.
        return list(self._tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"])


def _with_tools(arguments: Mapping[str, Any], prompt: ParsedPrompt) -> dict[str, Any]:
    return {**arguments, "tools": [dict(tool) for tool in prompt.tools]} if prompt.tools else dict(arguments)
