"""What a mistyped name may mean: the end of a message."""

import difflib
from collections.abc import Collection

from pipeline.escaping.terminal import printable

_SHOWN = 3


def did_you_mean(typed: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """A hint at those of `known` that begin with `typed`, else at the nearest one; empty if there is none."""
    begin = sorted(name for name in known if typed and name.startswith(typed))
    near = begin or difflib.get_close_matches(typed, list(known), n=1, cutoff=cutoff)
    if not near:
        return ""
    more = f", ... ({len(near):,})" if len(near) > _SHOWN else ""
    return f"; did you mean {printable(', '.join(near[:_SHOWN]))}{more}?"
