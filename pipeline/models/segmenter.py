"""Labels the tokens of a completion: which are thinking, tool calls, or the answer. Needs a tokenizer, no model.

Markers are looked for in the completion's text. One that is a token of its own, as `<think>` mostly is, counts only as that
token: a target may write the same characters about it. Both markers belong to their segment, and so does a token that a marker
begins or ends within. White space and special tokens alone between two segments belong to the one before.

A character that the tokenizer splits into bytes is in no text, so a marker with it is never found: it is refused at the start.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.segments import Marker, SegmentRule, SegmentsConfig
from pipeline.engines.chat_markers import ANSWER, STRUCTURED, Family, Marked, family_named, family_of
from pipeline.errors import UsageError
from pipeline.store.json_text import json_extent

_OPENING_TOKENS = 32  # at the end of a prompt, in which its template may have begun a segment
_GAP = -1
_BEFORE = ("", "a", " ", "\n", ". ")  # what a marker may follow: tokens of its first character depend on it
# Characters of a regular expression that a tokenizer may split into bytes, as they are or escaped.
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\x[89a-fA-F][0-9a-fA-F]")


def chat_templates(tokenizer: Any) -> list[str]:
    """The texts of the tokenizer's chat templates; a tokenizer may have several by name."""
    templates = tokenizer.chat_template
    return [
        template
        for template in (templates.values() if isinstance(templates, dict) else [templates])
        if isinstance(template, str)
    ]


def marked_by(tokenizer: Any, settings: SegmentsConfig) -> Family | None:
    """The family by whose markers completions are labelled; None without one."""
    if settings.markers == "auto":
        return family_of(chat_templates(tokenizer))
    return None if settings.markers == "none" else family_named(settings.markers)


class _Text(NamedTuple):
    """Tokens with the text of each: token i begins at character starts_T[i]."""

    tokens: Sequence[int]
    pieces: Sequence[str]
    text: str
    starts_T: NDArray[np.int64]

    def has_token(self, token: int, at: int) -> bool:
        """Whether `token` begins at this character."""
        place = int(np.searchsorted(self.starts_T, at, side="right")) - 1
        return place >= 0 and int(self.starts_T[place]) == at and self.tokens[place] == token


@dataclass(frozen=True)
class _Marker:
    pattern: re.Pattern[str]
    tokens: tuple[tuple[int, int], ...] = ()  # that a match must consist of: offset in it, and id
    first: bool = False  # only where nothing but white space is before

    def find(self, text: _Text, begin: int) -> tuple[int, int] | None:
        """The first characters of a match from `begin` on, and the one after it."""
        if self.first:
            blank = len(text.text) - len(text.text.lstrip())
            # The marker may begin with white space of its own.
            matches = (self.pattern.match(text.text, at) for at in range(begin, blank + 1))
            return next((match.span() for match in matches if match), None)
        for match in self.pattern.finditer(text.text, begin):
            if all(text.has_token(token, match.start() + offset) for offset, token in self.tokens):
                return match.span()
        return None


@dataclass(frozen=True)
class _Rule:
    label: int
    begin: _Marker
    ends: tuple[_Marker, ...]


class Segmenter:
    """Labels by the rules of a config and the markers of a family. `names[label]` is a segment's name; 0 is the answer.

    UsageError, naming the key, for a marker of the config that is found in no text of this tokenizer. Segments of a family with
    such a marker are left out: `unwritten` are their markers. Fine-tunes have a family's template without its added tokens.
    """

    def __init__(self, tokenizer: Any, settings: SegmentsConfig) -> None:
        self._tokenizer, self._pieces = tokenizer, dict[int, str]()
        self._added = {str(token): id for id, token in tokenizer.added_tokens_decoder.items() if str(token)}
        self._special = frozenset(
            [*tokenizer.all_special_ids, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)]
        )
        self.family = marked_by(tokenizer, settings)
        marked = self.family.marked if self.family else ()
        names = [
            ANSWER,
            *(rule.name for rule in settings.rules),
            *(marked_segment.segment for marked_segment in marked),
        ]
        self._structured = settings.structured and bool(chat_templates(tokenizer))
        self.names = tuple(dict.fromkeys([*names, *([STRUCTURED] if self._structured else [])]))
        of_config = [self._of_config(rule, f"generate.segments.rules.{n}") for n, rule in enumerate(settings.rules)]
        written = {marked_segment: self._of_family(marked_segment) for marked_segment in marked}
        self.unwritten = tuple(marked_segment.begin for marked_segment, rule in written.items() if rule is None)
        self._rules = [*of_config, *(rule for rule in written.values() if rule is not None)]

    def labels(self, prompt: Sequence[int], tokens: Sequence[int], stopped: bool) -> NDArray[np.uint8]:
        """The label of each of `tokens`, (T,). `prompt` is what is before them, as a template may begin a segment at its end.
        `stopped`: the completion ended by itself, and was not cut."""
        text = self._text(tokens)
        found_T = np.full(len(tokens), _GAP, dtype=np.int64)
        after = 0  # the segment before: a token of both is of that one
        for begin, end, label in self._spans(text, self._opened_by(prompt)):
            first = max(after, int(np.searchsorted(text.starts_T, begin, side="right")) - 1)
            after = int(np.searchsorted(text.starts_T, end))
            found_T[first:after] = label
        self._fill_gaps(found_T, text)
        if self._structured and self._is_json(text, found_T == 0, stopped):
            found_T[found_T == 0] = self.names.index(STRUCTURED)
        return found_T.astype(np.uint8)

    def _spans(self, text: _Text, opened: _Rule | None) -> Iterator[tuple[int, int, int]]:
        """Characters from, to, and label of each segment."""
        begin, rule, at = 0, opened, 0
        nearest: dict[int, tuple[int, int] | None] = {}
        while True:
            if rule is not None:
                ends = [place for end in rule.ends if (place := end.find(text, at))]
                # Of markers that end at one place, the longest.
                end = min(ends, key=lambda span: (span[0], -span[1]))[1] if ends else len(text.text)
                yield begin, end, rule.label
                at, rule = max(end, begin + 1), None  # a pattern may match no character
            for number, own in enumerate(self._rules):
                if number not in nearest or ((before := nearest[number]) is not None and before[0] < at):
                    nearest[number] = own.begin.find(text, at)
            begins = {number: place for number, place in nearest.items() if place is not None}
            if not begins:
                return
            chosen = min(begins, key=lambda number: (begins[number][0], -begins[number][1], number))
            (begin, at), rule = begins[chosen], self._rules[chosen]

    def _opened_by(self, prompt: Sequence[int]) -> _Rule | None:
        """The rule whose first marker ends the prompt, such as the `<think>` of a generation prompt."""
        text = self._text(prompt[-_OPENING_TOKENS:])
        for rule in self._rules:
            at = 0
            while not rule.begin.first and (place := rule.begin.find(text, at)):
                if not text.text[place[1] :].strip():
                    return rule
                at = place[1]
        return None

    def _fill_gaps(self, found_T: NDArray[np.int64], text: _Text) -> None:
        """Tokens of no rule are of the answer; white space and special tokens alone are of the segment before them, or after."""
        begin = 0
        for is_gap, run in groupby((found_T == _GAP).tolist()):
            end = begin + len(list(run))
            if is_gap:
                blank = all(text.tokens[t] in self._special or not text.pieces[t].strip() for t in range(begin, end))
                near = found_T[begin - 1] if begin else found_T[end] if end < len(found_T) else 0
                found_T[begin:end] = near if blank else 0
            begin = end

    def _is_json(self, text: _Text, chosen_T: NDArray[np.bool_], stopped: bool) -> bool:
        """Whether the chosen tokens are one JSON object or array, or the beginning of one that was cut."""
        answer = "".join(
            text.pieces[t] for t in np.flatnonzero(chosen_T).tolist() if text.tokens[t] not in self._special
        ).strip()
        if answer[:1] not in ("{", "["):
            return False
        extent = json_extent(answer)
        return extent == "whole" or (extent == "begun" and not stopped and len(answer) > 1)

    def _text(self, tokens: Sequence[int]) -> _Text:
        ids = [int(token) for token in tokens]
        pieces = [self._piece(token) for token in ids]
        starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        return _Text(ids, pieces, "".join(pieces), starts[:-1])

    def _piece(self, token: int) -> str:
        """The text of one token. It is decoded after another: alone, many tokenizers drop its leading space."""
        if token not in self._pieces:
            before = self._decode([0])
            self._pieces[token] = self._decode([0, token])[len(before) :]
        return self._pieces[token]

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _of_config(self, rule: SegmentRule, key: str) -> _Rule:
        begin = self._marker(rule.begin, rule.begin_pattern, f"{key}.begin")
        assert begin is not None  # the config has one of the two
        end = self._marker(rule.end, rule.end_pattern, f"{key}.end")
        return _Rule(self.names.index(rule.name), begin, (end,) if end else ())

    def _of_family(self, marked: Marked) -> _Rule | None:
        """The segmenter of a family; None where one of its markers is found in no text."""
        begin, *ends = (
            self._literal(text, first=marked.first and not number)
            for number, text in enumerate((marked.begin, *marked.ends))
        )
        never_found = [
            self._never_found(marker, text)
            for marker, text in zip((begin, *ends), (marked.begin, *marked.ends), strict=True)
        ]
        return None if any(never_found) else _Rule(self.names.index(marked.segment), begin, tuple(ends))

    def _marker(self, wanted: Marker | None, pattern: str | None, key: str) -> _Marker | None:
        if pattern is not None:
            for escape in _BEYOND_ASCII.findall(pattern):
                character = chr(int(escape[2:], 16)) if escape.startswith("\\") else escape
                self._require_found(_Marker(re.compile(re.escape(character))), character, f"{key}_pattern")
            return _Marker(re.compile(pattern))
        if isinstance(wanted, tuple):
            pieces = [self._piece(token) for token in wanted]
            offsets = np.cumsum([0, *map(len, pieces)])[:-1].tolist()
            marker = _Marker(re.compile(re.escape("".join(pieces))), tuple(zip(offsets, wanted, strict=True)))
            if not all(pieces) or marker.find(self._text(wanted), 0) is None:
                raise UsageError(
                    f"{key} = {list(wanted)}: not all of these token ids have a text in the target's tokenizer"
                )
            return marker
        if wanted is None:
            return None
        marker = self._literal(wanted)
        self._require_found(marker, wanted, key)
        return marker

    def _literal(self, text: str, first: bool = False) -> _Marker:
        """A marker by its text. The added tokens that are in it must be these tokens."""
        inside = sorted((content for content in self._added if content in text), key=len, reverse=True)
        matches = re.finditer("|".join(map(re.escape, inside)), text) if inside else ()
        return _Marker(
            re.compile(re.escape(text)), tuple((match.start(), self._added[match[0]]) for match in matches), first
        )

    def _require_found(self, marker: _Marker, text: str, key: str) -> None:
        """UsageError unless the marker is found where the tokenizer writes `text`."""
        if reason := self._never_found(marker, text):
            raise UsageError(f"{key}: {reason}, or another marker")

    def _never_found(self, marker: _Marker, text: str) -> str | None:
        """Why the marker is not found where the tokenizer writes `text`, alone and after other text; None if it is."""
        for before in ("",) if marker.first or marker.tokens else _BEFORE:
            ids = self._tokenizer(before + text, add_special_tokens=False)["input_ids"]
            if before and self._tokenizer.unk_token_id in ids:
                continue  # a tokenizer of whole words writes nothing that begins within one
            if marker.find(self._text(ids), 0) is None:
                where = f" after {before!r}" if before else ""
                return (
                    f"{text!r} is never found{where}: the target's tokenizer writes it as {''.join(self._text(ids).pieces)!r} (a "
                    f"character that it splits into bytes is in no token's text); give its token ids, {ids}"
                )
        return None
