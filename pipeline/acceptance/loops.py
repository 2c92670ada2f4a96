"""How much of a completion goes round in circles: small models loop at temperature 0, which flatters drafts."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WIDTH = 8


def in_loop(tokens: Sequence[int]) -> NDArray[np.bool_]:
    """For each token, whether it lies inside an 8-gram that the completion holds more than once."""
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for start in range(len(tokens) - WIDTH + 1):
        places[tuple(tokens[start : start + WIDTH])].append(start)
    inside = np.zeros(len(tokens), dtype=bool)
    for starts in places.values():
        if len(starts) > 1:
            for start in starts:
                inside[start : start + WIDTH] = True
    return inside
