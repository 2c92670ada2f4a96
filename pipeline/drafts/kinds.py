"""The kinds of drafts: what each is, and what it needs. Torch-free: the config and the table of engine facts read it.

A kind is a line here and a file beside this one, which answers what `speculation/drafter.py` asks. What differs between kinds is
an attribute here or a method there; nothing else asks which kind a draft is.
"""

from dataclasses import dataclass
from typing import Literal, get_args

KindName = Literal["plain", "prompt-lookup", "suffix-matching"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of draft. A draft proposes a chain of tokens, never a tree, and remembers nothing from one request to the next."""

    name: KindName
    summary: str
    has_weights: bool  # a checkpoint in a directory; otherwise its settings are all that it is
    # Whether q of a token depends on the text before it alone, and not on where the round starts: then one pass over a completion
    # gives every round, and the acceptance rate is the mean over all tokens. Otherwise it is over the tokens that were examined.
    by_token: bool
    depends_on_gamma: bool = False  # whether q depends on how many tokens the round drafts
    memory: Literal["none", "request"]  # what it remembers while a request is decoded


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="plain",
            summary="a smaller language model with the target's vocabulary, one forward pass a token",
            has_weights=True,
            by_token=True,
            memory="request",
        ),
        Kind(
            name="prompt-lookup",
            summary="the continuation of the longest n-gram that occurred before in the prompt or the completion; no model",
            has_weights=False,
            by_token=False,
            memory="request",
        ),
        Kind(
            name="suffix-matching",
            summary="what followed most often after the longest suffix of the text that occurred before in it; no model",
            has_weights=False,
            by_token=False,
            memory="request",
        ),
    )
}
PLAIN, LOOKUP, SUFFIX = KINDS["plain"], KINDS["prompt-lookup"], KINDS["suffix-matching"]
assert set(get_args(KindName)) == KINDS.keys()
