"""What a chat template wrote of an answer whose thinking or tool calls a server had parsed out of the text. Pure.

Some servers strip the white space around these parts, and others (vLLM) give it as the target wrote it. Some templates add
their own.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from pipeline.corpus.answer_forms import UnusableAnswer

_THINKING = ("reasoning_content", "reasoning", "thinking")  # templates differ in the name


def _bare(text: str) -> str:
    return text.strip()


def _bare_before(text: str) -> str:
    return text.lstrip()


def _whole(text: str) -> str:
    return text


def spellings(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The message without white space around thinking and content, then with more and more of what the log has there."""
    seen: list[Mapping[str, Any]] = []
    for thinking, content in product((_bare, _whole), (_bare, _bare_before, _whole)):
        written = dict.fromkeys(_THINKING, thinking) | {"content": content}
        spelled = {name: written[name](item) if name in written else item for name, item in message.items()}
        if spelled not in seen:
            seen.append(spelled)
            yield spelled


def end_of_parts(whole: str, begin: int, message: Mapping[str, Any], cut: bool) -> int:
    """The place where the last part of the message ends in `whole`, which a template wrote from the character `begin` on.

    UnusableAnswer unless `whole` has all of its parts, in order, with the white space that the log has around them; after the end
    of an answer that was cut there is none.
    """
    calls = message.get("tool_calls", [])
    if cut and calls:
        raise UnusableAnswer("tool calls that were cut off")
    if not cut and not calls and not message["content"].strip():
        raise UnusableAnswer("thinking without an answer, which may not have ended")  # the template ends it
    parts = [message.get("reasoning_content", ""), message["content"], *(call["function"]["name"] for call in calls)]
    parts = [part for part in parts if part.strip()]
    end = begin
    for number, part in enumerate(parts, start=1):  # a template may leave out thinking, or write it elsewhere
        before, core, after = _around(part)
        at = whole.find(core, end)
        if at < 0:
            raise UnusableAnswer("a chat template that writes thinking or tool calls otherwise")
        written_before, written_after = whole[end:at], whole[at + len(core) :]
        end = at + len(core)
        if before and before != written_before[len(written_before.rstrip()) :]:
            raise UnusableAnswer("white space that the chat template writes otherwise")
        open_end = cut and number == len(parts)
        if after and not open_end and after != written_after[: len(written_after) - len(written_after.lstrip())]:
            raise UnusableAnswer("white space that the chat template writes otherwise")
    return end


def _around(part: str) -> tuple[str, str, str]:
    """The white space before a text, the text, and that after it."""
    core = part.strip()
    begin = part.index(core)
    return part[:begin], core, part[begin + len(core) :]
