"""The positions of train prompts that a draft is trained on too, as completions that the target only scores. Torch-free.

What all prompts of a domain begin and end with is left out: it is the chat template's, or a system prompt, and a draft never
proposes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from pipeline.corpus.prompt_store import Prompt, PromptColumns
from pipeline.generation.completion_plan import CompletionPlan, sorted_plan
from pipeline.generation.logged import LoggedCompletion, Recorded
from pipeline.speculation.settings import Sampling


@dataclass(frozen=True, eq=False)
class PromptPositions(Recorded):
    """Of P prompts, positions begin .. end - 1; none where end <= begin."""

    prompts: Sequence[Prompt]
    begin_P: NDArray[np.int64]
    end_P: NDArray[np.int64]

    @classmethod
    def of(cls, prompts: Sequence[Prompt], most: int) -> "PromptPositions":
        """The last `most` positions of each prompt, without what is common to all prompts of its domain and mode. A prompt's
        first token is predicted from nothing, so it is none of them."""
        groups = dict[tuple[str, str], _Common]()
        group_P = np.zeros(len(prompts), dtype=np.int64)
        for place, prompt in enumerate(prompts):
            name = (prompt.domain, prompt.mode)
            groups.setdefault(name, _Common(len(groups), prompt.tokens)).add(prompt.tokens)
            group_P[place] = groups[name].number
        begins, ends = (np.array([getattr(one, name) for one in groups.values()]) for name in ("begin", "end"))
        end_P = PromptColumns.of(prompts).length - ends[group_P]
        return cls(prompts, np.maximum(np.maximum(begins[group_P], 1), end_P - most), end_P)

    @property
    def requests(self) -> CompletionPlan:
        """A request for each prompt that has positions: the prompt up to the first of them. `get` has the others."""
        places = np.flatnonzero(self.end_P > self.begin_P)
        zeros = np.zeros(len(places), dtype=np.int64)
        return replace(
            sorted_plan(self.prompts, [Sampling()], places, zeros, zeros),
            prompts=_Beginnings(self.prompts, self.begin_P),
        )

    def get(self, prompt: str, sampling: Sampling, number: int = 0) -> LoggedCompletion:
        place = self._places[prompt]
        tokens = self.prompts[place].tokens[self.begin_P[place] : self.end_P[place]]
        return LoggedCompletion(np.array(tokens, dtype=np.int32), stopped=False, exact=True, is_answer=False)

    @cached_property
    def _places(self) -> dict[str, int]:
        ids = PromptColumns.of(self.prompts).id.astype(str)
        return {name: place for place, name in enumerate(ids.tolist())}


class _Common:
    """How many tokens the prompts of a group have in common at their beginning and at their end."""

    def __init__(self, number: int, tokens: Sequence[int]) -> None:
        self.number, self._tokens, self.begin, self.end = number, tokens, len(tokens), len(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        self.begin = _equal(self._tokens[: self.begin], tokens)
        self.end = _equal(self._tokens[len(self._tokens) - self.end :][::-1], tokens[::-1])


def _equal(some: Sequence[int], others: Sequence[int]) -> int:
    return next(
        (n for n, (one, other) in enumerate(zip(some, others, strict=False)) if one != other),
        min(len(some), len(others)),
    )


class _Beginnings(Sequence[Prompt]):
    """Prompts up to a position."""

    def __init__(self, prompts: Sequence[Prompt], length_P: NDArray[np.int64]) -> None:
        self._prompts, self._length_P = prompts, length_P

    def __len__(self) -> int:
        return len(self._prompts)

    @overload
    def __getitem__(self, place: int) -> Prompt: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, place: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        prompt = self._prompts[place]
        return replace(prompt, tokens=prompt.tokens[: self._length_P[place]], chat=None)
