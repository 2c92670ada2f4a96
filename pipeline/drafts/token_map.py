"""Which tokens of a target and of a draft with another tokenizer an engine takes for the same, and how it maps one to the other.

The rule is vLLM's (`v1/spec_decode/vocab_mapping.py`), not ours: it compares how tokens are written, not their bytes, once each
tokenizer's mark of a space is a space. So `<0x67>` is no `g`, and a control token is the one with the same name. Shapes: V tokens
of the target, D columns of the draft's logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipeline.errors import BrokenDraft

_MARKS = ("\u0120", "\u2581")  # of a space, where a tokenizer does not show its own


@dataclass(frozen=True)
class TokenMap:
    """`own_V`: the draft's token for each of the target's, of those that are not shared the one that it is fed in their place.
    `shared_V`: which are shared; the draft proposes no others."""

    own_V: torch.Tensor
    shared_V: torch.Tensor
    ambiguous: int  # shared spellings that two tokens of one tokenizer have: the engine takes either, here the first

    @property
    def shared(self) -> int:
        return int(self.shared_V.sum())

    def ids(self, ids: torch.Tensor) -> torch.Tensor:
        """The draft's ids, in the place of the target's."""
        return self.own_V[ids.to(self.own_V.device)].to(ids.device)

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """(..., V) of (..., D), which are on the map's device."""
        return logits[..., self.own_V].masked_fill(~self.shared_V, -torch.inf)

    def to(self, device: torch.device) -> "TokenMap":
        return replace(self, own_V=self.own_V.to(device), shared_V=self.shared_V.to(device))


def map_tokens(target: Any, own: Any, width: int, own_width: int) -> TokenMap:
    """The map of two tokenizers, and the columns of the logits of their models. BrokenDraft where the engine has nothing to
    feed the draft in the place of other tokens, or no token is shared."""
    other = own.eos_token_id if own.unk_token_id is None else own.unk_token_id
    if other is None:
        raise BrokenDraft(
            "its tokenizer has neither an unknown token nor an EOS to stand for tokens that are not shared"
        )
    (theirs, twice), (ours, own_twice) = _spellings(target), _spellings(own)
    own_V = torch.full((width,), int(other))
    shared_V = torch.zeros(width, dtype=torch.bool)
    both = [name for name in theirs if name in ours and theirs[name] < width and ours[name] < own_width]
    for name in both:
        own_V[theirs[name]], shared_V[theirs[name]] = ours[name], True
    if not both:
        raise BrokenDraft("no token of its tokenizer is written as one of the target's")
    return TokenMap(own_V, shared_V, len((twice | own_twice).intersection(both)))


def _spellings(tokenizer: Any) -> tuple[Mapping[str, int], set[str]]:
    """The first token of each spelling, and spellings of several tokens."""
    marks, spellings, twice = _marks(tokenizer), dict[str, int](), set[str]()
    for token, place in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]):
        mark = next((candidate for candidate in marks if token.startswith(candidate)), None)
        name = token if mark is None else f" {token.removeprefix(mark)}"
        if spellings.setdefault(name, place) != place:
            twice.add(name)
    return spellings, twice


def _marks(tokenizer: Any) -> tuple[str, ...]:
    """What stands in the place of a space, as the first token of " a" shows it."""
    ids = tokenizer.encode(" a", add_special_tokens=False)
    token = tokenizer.convert_ids_to_tokens(ids[0]) if ids else ""
    if len(token) > 1 and token.endswith("a") and token[0] not in " \t":
        return (token[:-1],)
    return _MARKS
