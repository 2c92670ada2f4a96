"""The bytes that each token of a tokenizer stands for, so that tokens of different tokenizers can be compared. Uses no model.

Vocabularies write the same bytes in different ways: byte-level BPE in an alphabet of its own, SentencePiece with a mark in place
of a space and with `<0x67>` for a single byte, WordPiece with `##` before a part that continues a word.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UsageError
from pipeline.models.tokenizers import tokens_below
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files

_MARK = "\u2581"  # of SentencePiece, in place of a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_IN_PARTS = ("normalizer", "pre_tokenizer", "decoder")
# What a tokenizer may change before it splits a text: the text, what it becomes (None: anything else), and what that is called.
_CHANGES = (
    ("A", "a", "capital letters"),
    ("\u00e9", "e", "accents"),
    ("\ufb01", "fi", "compatibility characters (NFKC), such as \ufb01"),
    ("a\nb", None, "line breaks"),
    ("a  b", None, "several spaces in a row"),
)


@dataclass(frozen=True)
class TokenBytes:
    """The tokens of a tokenizer by id. A token of neither kind, such as an empty one, stands for nothing that is known."""

    ordinary: Mapping[int, bytes]  # of text
    special: Mapping[int, str]  # control tokens, whose meaning is not their text
    fallback: frozenset[int]  # of the ordinary, single bytes for characters without a token


@reads_own_files("text of a tokenizer that was loaded")
def read_token_bytes(tokenizer: Any, width: int | None, whose: str) -> TokenBytes:
    """The bytes of the tokens with an id below `width`; of all without one. UsageError naming `whose` tokenizer it is, if it does
    not state how its tokens are written."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(
            f"{whose}: the bytes of its tokens are not known, because its tokenizer is no tokenizer.json; save it as one "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...)), or choose another draft"
        )
    spec = parse_json(backend.to_str(), foreign=True)
    write, single = _writing(spec, whose), _writes_single_bytes(spec)
    added, roles = tokenizer.added_tokens_decoder, {*tokenizer.all_special_ids, _unknown(spec, tokenizer)}
    ordinary, special, fallback = dict[int, bytes](), dict[int, str](), set[int]()
    for token, place in tokens_below(tokenizer, width).items():
        if place in roles or (place in added and (added[place].special or not token.isspace())):
            # An added token that is no control token for the tokenizer, such as `<think>`, is one for the model. Runs of spaces
            # are added by tokenizers of code, and are text.
            special[place] = token
        elif place in added:
            ordinary[place] = token.encode()
        elif single and (match := _BYTE.fullmatch(token)) is not None:
            ordinary[place] = bytes([int(match[1], 16)])
            fallback.add(place)
        elif (text := write(token)) is not None and text:
            ordinary[place] = text
    return TokenBytes(ordinary, special, frozenset(fallback))


def changed_text(tokenizer: Any, tokens: TokenBytes) -> list[str]:
    """What is lost of a text before this tokenizer splits it, such as capital letters."""
    lost = []
    for text, becomes, name in _CHANGES:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        decoded = b"".join(tokens.ordinary.get(place, b"") for place in ids).decode(errors="replace")
        decoded = unicodedata.normalize("NFC", decoded)
        if text not in decoded and (becomes is None or becomes in decoded):
            lost.append(name)
    return lost


def _writing(spec: Mapping[str, Any], whose: str) -> Callable[[str], bytes | None]:
    """How a token is written: from its spelling to its bytes, None for a spelling that has none."""
    model, kinds = spec["model"], {part["type"] for part in _parts(spec)}
    if model.get("end_of_word_suffix") or (model["type"] == "BPE" and model.get("continuing_subword_prefix")):
        raise UsageError(
            f"{whose}: its tokens mark where words end, and have no bytes of their own ({model['type']} with "
            f"{model.get('end_of_word_suffix') or model['continuing_subword_prefix']!r}); choose another draft"
        )
    if "ByteLevel" in kinds:
        return _of_byte_level
    marks = {part["replacement"] for part in _parts(spec) if part["type"] == "Metaspace"}
    marks |= {_MARK for part in _parts(spec) if part["type"] in ("Replace", "Prepend") and _MARK in str(part)}
    if marks:
        return lambda token: _unmarked(token, marks).encode()
    if model["type"] == "WordPiece" or "WordPiece" in kinds:
        inside = model.get("continuing_subword_prefix") or "##"
        return lambda token: _of_word_piece(token, inside)
    return str.encode


def _writes_single_bytes(spec: Mapping[str, Any]) -> bool:
    return bool(spec["model"].get("byte_fallback")) or any(part["type"] == "ByteFallback" for part in _parts(spec))


def _parts(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a text goes through before the model and after it; sequences taken apart."""
    waiting = [spec[name] for name in _IN_PARTS if spec.get(name)]
    while waiting:
        part = waiting.pop()
        yield part
        for name in ("normalizers", "pretokenizers", "decoders"):
            waiting += part.get(name, [])


def _unknown(spec: Mapping[str, Any], tokenizer: Any) -> int | None:
    """The id of the model's own token for unknown text, which a tokenizer need not name as a special one."""
    model = spec["model"]
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    token = model.get("unk_token")
    return tokenizer.get_vocab().get(token) if token else None


def _alphabet() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable bytes of Latin-1 are themselves, the others are characters from 256 on, in their
    order."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + number): byte for number, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _of_byte_level(token: str) -> bytes | None:
    return bytes(_ALPHABET[sign] for sign in token) if all(sign in _ALPHABET for sign in token) else None


def _unmarked(token: str, marks: set[str]) -> str:
    for mark in marks:
        token = token.replace(mark, " ")
    return token


def _of_word_piece(token: str, inside: str) -> bytes:
    """A token that begins a word stands behind a space, which WordPiece has no token for. A punctuation mark or a Chinese
    character is a word of its own wherever it stands."""
    if token.startswith(inside) and token != inside:
        return token.removeprefix(inside).encode()
    alone = len(token) == 1 and not (token.isalnum() and not _is_ideograph(token))
    return token.encode() if alone else f" {token}".encode()


def _is_ideograph(sign: str) -> bool:
    return unicodedata.name(sign, "").startswith("CJK UNIFIED IDEOGRAPH")
