"""Texts that are not what somebody said: a whole chat with its roles written out, the chunks of a stream, JSON in base64, and
what a logger has cut. Pure.

Files and logs hold them where a prompt or an answer belongs. They are known by how they begin, or by a logger's own mark: a text
that quotes such a thing, or asks about it, is an ordinary text.
"""

import base64
import re
from collections.abc import Mapping

from pipeline.corpus.json_values import decoded
from pipeline.escaping.terminal import printable

STREAM = "the chunks of a stream that were not joined"
BASE64 = "JSON in base64"

# How the user's part of a chat begins where its roles are written out, after the special token of a beginning.
_ASKS = re.compile(
    r"(?:<\|im_start\|>|<\|start_header_id\|>|<\|(?:user|system|prompter)\|>|<start_of_turn>|<\|turn>|<\uff5cUser\uff5c>"
    r"|<\|start\|>(?:user|system|developer)|\[INST\]|###? ?(?:Human|User|Instruction|System|Input) ?:"
    r"|(?:Human|User|USER|Instruct) ?:|Below is an instruction that describes a task)"
)
_STARTS = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>")
_ANSWERS = re.compile(  # how the assistant's begins, in the same forms
    r"<\|im_start\|>assistant|assistant<\|end_header_id\|>|<\|assistant\|>|<start_of_turn>model|<\|turn>model"
    r"|<\uff5cAssistant\uff5c>|<\|start\|>assistant|\[/INST\]|### ?(?:Assistant|Response|Output|Answer) ?:"
    r"|\sASSISTANT ?:|\n[ \t]{0,8}(?:Assistant|AI|Output) ?:"
)
_CHUNKS = re.compile(r"\s*(?:event: ?[\w.]{1,60}\r?\n)?data: ?(\{[^\n]*|\[DONE\])")
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_CUT = re.compile(  # marks of LiteLLM, Langfuse and others
    r"\((?:litellm_)?truncated \d{1,12} chars\)|<truncated due to size|(?:\[truncated\]|\(truncated\))\Z", re.IGNORECASE
)


def transcript(text: str) -> str | None:
    """The mark of the assistant in a text that is a whole chat; None for another text."""
    bare = text.lstrip()
    for start in _STARTS:
        bare = bare.removeprefix(start).lstrip()
    if not _ASKS.match(bare) or not (mark := _ANSWERS.search(bare)):
        return None
    return printable(mark.group().strip())


def encoded(text: str) -> str | None:
    """STREAM or BASE64 for a text that is a request or an answer in such a form; None for another text."""
    if (chunk := _CHUNKS.match(text)) and (chunk[1] == "[DONE]" or isinstance(decoded(chunk[1]), Mapping)):
        return STREAM
    bare = text.strip()
    if not _ENCODED.fullmatch(bare):
        return None
    try:
        text_within = base64.b64decode(bare.translate({0x2D: "+", 0x5F: "/"}), validate=True).decode("utf-8")
    except ValueError:
        return None
    return BASE64 if isinstance(decoded(text_within), Mapping | list) else None


def is_cut(text: str) -> bool:
    """Whether a logger left its mark where it cut the text."""
    return "truncated" in text.lower() and _CUT.search(text) is not None  # most texts are not searched
