"""From requests to the token ids that the target is given. Knows the tokenizer's few methods; holds no files."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.corpus.rows import BadRow, Request
from pipeline.errors import UsageError

_OURS = ("conversation", "messages", "tokenize", "add_generation_prompt", "return_dict", "return_tensors")


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any

    def __call__(self, text: list[str], *, add_special_tokens: bool, verbose: bool) -> Mapping[str, Any]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool, **arguments: Any
    ) -> str: ...


class Renderer:
    """Requests to token ids, by the target's own template.

    `wanted` is config.corpus.chat_template: None renders plain prompts where there is a template, False never, True
    always (UsageError where there is none). Chats always need one.
    """

    def __init__(self, tokenizer: Tokenizer, wanted: bool | None, arguments: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._arguments = arguments
        self.has_template = bool(tokenizer.chat_template)
        self._template_for_plain = self.has_template if wanted is None else wanted
        if wanted and not self.has_template:
            raise UsageError(
                "corpus.chat_template = true: the target's tokenizer has no chat template; set it to false or null"
            )
        taken = sorted(set(arguments) & set(_OURS))
        if taken:
            raise UsageError(f"corpus.chat_template_arguments.{taken[0]}: Understudy sets this argument; remove it")

    def text(self, request: Request) -> tuple[str, bool]:
        """What is tokenised, and whether the tokenizer has to add its special tokens (a template brings its own).

        BadRow where the template refuses the chat; UsageError for a chat without a template.
        """
        if request.plain and not self._template_for_plain:
            return request.messages[0]["content"], True
        if not self.has_template:
            raise UsageError(
                "chats and turns need a chat template and the target's tokenizer has none; use prompts of "
                "plain text (prompt_field)"
            )
        from jinja2.exceptions import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in request.messages],
                tokenize=False,
                add_generation_prompt=True,
                **self._arguments,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise BadRow("chat template failed", " ".join(str(error).split())[:160]) from None
        return text, False

    def token_ids(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]:
        """Ids of what `text` gave, in its order."""
        ids: list[list[int]] = [[] for _ in texts]
        for special in (False, True):
            places = [place for place, (_, wants) in enumerate(texts) if wants is special]
            for place, found in zip(places, self._encode([texts[place][0] for place in places], special), strict=True):
                ids[place] = found
        return ids

    def bare_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without template or special tokens: what near-duplicates are compared by."""
        return self._encode(list(texts), False)

    def _encode(self, texts: list[str], special: bool) -> list[list[int]]:
        if not texts:
            return []
        # verbose=False: a prompt beyond the tokenizer's model_max_length is ours to count, not a warning.
        return list(self._tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"])
