"""Repetition: which tokens lie in repeated n-grams. Small models repeat at temperature 0, which inflates acceptance."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WIDTH = 8


def repetition_mask(tokens: Sequence[int]) -> NDArray[np.bool_]:
    """Whether each token lies inside an 8-gram that occurs more than once in the completion."""
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for start in range(len(tokens) - WIDTH + 1):
        places[tuple(tokens[start : start + WIDTH])].append(start)
    inside = np.zeros(len(tokens), dtype=bool)
    for starts in places.values():
        if len(starts) > 1:
            for start in starts:
                inside[start : start + WIDTH] = True
    return inside
