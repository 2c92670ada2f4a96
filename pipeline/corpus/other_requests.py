"""Rows that ask for something else than an answer to a text: with images or sounds beside the text, or on a route that gives no
text, such as that of embeddings. Pure.

A column of images alone is no evidence: tables have one for people. The text must have a place for it, or the message itself.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.escaping.terminal import printable

MEDIA = ("images", "image", "videos", "video", "audios", "audio")  # beside a text: of exports, Ollama and data sets
ROUTES = ("url", "path", "uri", "endpoint", "call_type")  # of batch files, gateways and LiteLLM
_PLACE = re.compile(r"<(?:image|img|video|audio)>|<\|(?:image|image_pad|video_pad|audio)\|>")
# A path of an API, not any word: tables have columns of these names too.
_KINDS = r"(?:embeddings?|rerank|moderations?|images/generations|audio/\w{1,20}|score|classify|tokenize)"
_OF_AN_API = r"(?:https?://[^/\s]{1,200})?(?:/[\w.-]{1,60}){0,4}/(?:v\d\w{0,8}|deployments/[\w.-]{1,60})/"
_PATH_WITHOUT_TEXT = re.compile(rf"(?:{_OF_AN_API}|/){_KINDS}/?(?:\?.{{0,200}})?")
_CALL_WITHOUT_TEXT = re.compile(r"a?(?:embedding|moderation|rerank|transcription|speech|image_generation)")


def media_of(message: Mapping[str, Any]) -> str | None:
    """The key of a message, or the column of a row, that holds images or sounds; None without one."""
    return next((name for name in MEDIA if message.get(name)), None)


def has_place(texts: Iterable[Any]) -> bool:
    """Whether a text has a place for an image or a sound."""
    return any(isinstance(text, str) and _PLACE.search(text) for text in texts)


def route_without_text(row: Mapping[str, Any]) -> str | None:
    """What a row reports of its route, where that gives no text; None where it does, or where the row does not state it."""
    for name in ROUTES:
        wanted = _CALL_WITHOUT_TEXT if name == "call_type" else _PATH_WITHOUT_TEXT
        if isinstance(said := row.get(name), str) and wanted.fullmatch(said.strip()):
            return f"`{name}` is {printable(said.strip()[:60])}"
    return None
