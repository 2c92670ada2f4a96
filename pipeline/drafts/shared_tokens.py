"""Which tokens of a target a draft with another tokenizer has too: by their bytes, by their role, or as the config states; and
the draft's tokens for the bytes of the others. Uses no model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UsageError
from pipeline.escaping.nearest import did_you_mean
from pipeline.models.token_bytes import TokenBytes, changed_text, read_token_bytes
from pipeline.models.tokenizers import columns_for

_ROLES = ("eos_token_id", "bos_token_id", "unk_token_id", "pad_token_id")  # the first that a token has is its role


@dataclass(frozen=True)
class SharedTokens:
    """Every id below the width of the target's logits is in exactly one of these."""

    copied: Mapping[int, int]  # to the draft's token with equal bytes
    special: Mapping[int, tuple[int, ...]]  # to the draft's tokens of its role, its name, or `pair.draft.tokens`
    others: tuple[int, ...]
    padded: tuple[int, ...]  # ids without a token
    unmatched: tuple[int, ...]  # of `others`, the special tokens: nothing states what they are in the draft's text

    def in_words(self, text: Mapping[int, int]) -> str:
        """How much of the target's vocabulary the draft has, for people. `text`: how often prompts have each token; empty where
        none is at hand."""
        known, total = self.copied.keys() | self.special.keys(), sum(text.values())
        share = f", {sum(text.get(token, 0) for token in known) / total:.1%} of your prompts' text" if total else ""
        count = len(known) + len(self.others)
        return f"{len(known):,} of {count:,} tokens are shared{share}; it must be trained afterwards"


class Vocabularies:
    """The tokens of target and draft, by bytes. `width`, `own_width`: columns of their logits; None if they are not known."""

    def __init__(self, target: Any, own: Any, width: int | None, own_width: int | None) -> None:
        self._target, self._own = target, own
        self._width = columns_for(target) if width is None else width
        self._theirs = read_token_bytes(target, width, "pair.target")
        self._ours = read_token_bytes(own, own_width, "pair.draft")
        self._by_bytes = _by_bytes(self._ours)
        # A text is split as in the middle of another: at its beginning, many tokenizers add a space. After a line break, white
        # space may be one token with it, and after a letter the rest of a word.
        self._before = {sign: self._split(sign) for sign in ("\n", "a")}

    def shared(self, tokens: Mapping[str, str], stops: Sequence[int]) -> SharedTokens:
        """`tokens`: `pair.draft.tokens`; `stops`: the target's stop tokens, each of which has the role of EOS. UsageError for a
        token that the target does not have, or a text that the draft has no tokens for."""
        special = self._by_name() | self._by_role(stops) | self._by_config(tokens)
        equal = {place: self._by_bytes[text] for place, text in self._theirs.ordinary.items() if text in self._by_bytes}
        copied = {place: own for place, own in equal.items() if place not in special}
        ids = {place for place in self._target.get_vocab().values() if place < self._width}
        others = tuple(sorted(ids - copied.keys() - special.keys()))
        padded = tuple(place for place in range(self._width) if place not in ids)
        unmatched = tuple(place for place in others if place in self._theirs.special)
        return SharedTokens(copied, special, others, padded, unmatched)

    def pieces(self, place: int) -> list[int]:
        """The draft's tokens for the bytes of a token of the target. Empty for a special token, and where the draft has no token
        for some byte."""
        text = self._theirs.ordinary.get(place)
        if text is None:
            return []
        # The longest tokens of a text that the draft's tokenizer changes before it splits it, and of a part of a character.
        return self._written(text) or self._longest(text)

    def unwritten(self, places: Iterable[int]) -> tuple[int, ...]:
        """The ordinary ones of some tokens of the target whose bytes the draft's tokenizer writes in no text, because it changes
        them before it splits a text, or has no token for some byte."""
        texts = ((place, self._theirs.ordinary.get(place)) for place in places)
        return tuple(place for place, text in texts if text is not None and not self._can_write(text))

    def names(self, places: Sequence[int]) -> list[str]:
        """The target's tokens."""
        return [str(token) for token in self._target.convert_ids_to_tokens(list(places))]

    def _can_write(self, text: bytes) -> bool:
        return bool(self._written(text)) or (not _is_text(text) and bool(self._longest(text)))

    def _written(self, text: bytes) -> list[int]:
        """What the draft's tokenizer makes of a text in the middle of another; empty where that has other bytes."""
        if not _is_text(text):
            return []
        splits = self._in_the_middle(text.decode())
        return next(
            (ids for ids in splits if b"".join(self._ours.ordinary.get(token, b"") for token in ids) == text), []
        )

    def _in_the_middle(self, text: str) -> Iterator[list[int]]:
        for sign, before in self._before.items():
            ids = self._split(sign + text)
            if ids[: len(before)] == before:
                yield ids[len(before) :]

    def changed_text(self) -> list[str]:
        """What the draft's tokenizer loses of a text."""
        return changed_text(self._own, self._ours)

    def _split(self, text: str) -> list[int]:
        return list(self._own(text, add_special_tokens=False)["input_ids"])

    def _longest(self, text: bytes) -> list[int]:
        """The longest token at each place, whatever the merges are; empty where there is none."""
        pieces, at, longest = list[int](), 0, max(map(len, self._by_bytes), default=0)
        while at < len(text):
            ends = range(min(len(text), at + longest), at, -1)
            end = next((end for end in ends if text[at:end] in self._by_bytes), None)
            if end is None:
                return []
            pieces.append(self._by_bytes[text[at:end]])
            at = end
        return pieces

    def _by_name(self) -> dict[int, tuple[int, ...]]:
        """Special tokens of both with the same name."""
        ours = {name: place for place, name in self._ours.special.items()}
        return {place: (ours[name],) for place, name in self._theirs.special.items() if name in ours}

    def _by_role(self, stops: Sequence[int]) -> dict[int, tuple[int, ...]]:
        by_role: dict[int, tuple[int, ...]] = {}
        for role in _ROLES:
            own = getattr(self._own, role)
            theirs = {getattr(self._target, role), *(stops if role == _ROLES[0] else ())}
            if own in self._ours.special:
                by_role |= {place: (own,) for place in theirs if place in self._theirs.special and place not in by_role}
        return by_role

    def _by_config(self, tokens: Mapping[str, str]) -> dict[int, tuple[int, ...]]:
        known, by_config = self._target.get_vocab(), dict[int, tuple[int, ...]]()
        for token, text in tokens.items():
            if (place := known.get(token)) is None or place >= self._width:
                meant = did_you_mean(token, self._theirs.special.values())
                raise UsageError(
                    f"pair.draft.tokens.{token}: the target has no such token; correct or remove it{meant}"
                )
            ids = next(self._in_the_middle(text), self._split(text))
            if not ids or any(token not in self._ours.ordinary and token not in self._ours.special for token in ids):
                raise UsageError(
                    f"pair.draft.tokens.{token}: the draft's tokenizer has no tokens for {text!r}; give other text"
                )
            if self._own.unk_token_id in ids and text != self._own.unk_token:
                raise UsageError(
                    f"pair.draft.tokens.{token}: the draft's tokenizer has no token for {text!r}; give other text"
                )
            by_config[place] = tuple(ids)
        return by_config


def _is_text(text: bytes) -> bool:
    """Whether the bytes are text, which a part of a character is not."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _by_bytes(tokens: TokenBytes) -> dict[bytes, int]:
    """The token of some bytes; of several with equal bytes that which the tokenizer uses: `g`, not `<0x67>`, which is for
    characters without a token."""
    by_bytes: dict[bytes, int] = {}
    for place in sorted(tokens.ordinary, key=lambda token: (token in tokens.fallback, token)):
        by_bytes.setdefault(tokens.ordinary[place], place)
    return by_bytes
