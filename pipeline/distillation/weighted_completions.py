"""What a phase of a training trains on: completions with weights, and positions of prompts, which `generate` stores as
completions of what comes before them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.engines.chat_markers import PROMPT
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.stored_completions import StoredCompletions, column


@dataclass(frozen=True, eq=False)
class ScoredPrompts:
    """Positions of prompts, and their weight in the loss."""

    scored: Sequence[StoredCompletion]  # one for each prompt that has any
    weight: float  # of a position, beside 1 for one of a completion

    @classmethod
    def read(cls, directory: Path | None, weight: float) -> "ScoredPrompts | None":
        """The positions in an artifact of `generate`; None without one."""
        return None if directory is None else cls(StoredCompletions.open(directory), weight)

    def get(self, place: int) -> StoredCompletion | None:
        """The positions of a prompt, as a completion of what comes before them; None for place -1."""
        if place < 0:
            return None
        scored = self.scored[place]
        return replace(scored, segments=np.zeros(scored.length, dtype=np.uint8), segment_names=(PROMPT,))

    def weights(self, place_N: NDArray[np.intp]) -> NDArray[np.float64]:
        """(N,): the weight of all positions of each prompt together."""
        length_P = np.append(column(self.scored, "length"), 0)  # the last is that of place -1
        return self.weight * length_P[place_N]

    def places(self, completions: Sequence[StoredCompletion]) -> NDArray[np.intp]:
        """(N,): of each completion the place of its prompt's positions in `scored`; -1 where there are none."""
        ids_P, wanted_N = column(self.scored, "id"), column(completions, "id")
        if not len(ids_P):
            return np.full(len(wanted_N), -1, dtype=np.intp)
        order_P = np.argsort(ids_P)
        found_N = order_P[np.searchsorted(ids_P, wanted_N, sorter=order_P).clip(max=len(ids_P) - 1)]
        return np.where(ids_P[found_N] == wanted_N, found_N, -1)


@dataclass(frozen=True, eq=False)
class WeightedCompletions:
    """Completions with stored distributions, and how much their tokens count in the loss."""

    completions: Sequence[StoredCompletion]
    vocabulary: int  # tokens that target and draft share
    weights: Mapping[str, float] = field(default_factory=dict)  # of a token in the loss, by its segment (`segments.py`)
    prompts: ScoredPrompts | None = None  # whose positions are trained on too, with their own weight

    @property
    def all_weights(self) -> Mapping[str, float]:
        """`weights`, with that of prompts where they are trained on."""
        return self.weights if self.prompts is None else {**self.weights, PROMPT: self.prompts.weight}
