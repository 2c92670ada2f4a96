"""The positions of train prompts that a draft is trained on too, as completions that the target only scores. Torch-free.

What most prompts of a domain begin and end with is left out: it is the chat template's, or a system prompt, and a draft never
proposes it.
"""

from collections import Counter, defaultdict
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

Tokens = tuple[int, ...]

_SAMPLE = 255  # prompts of a group by which it is decided what most of them share


@dataclass(frozen=True, eq=False)
class PromptPositions(Recorded):
    """Positions of P prompts, begin .. end - 1; none where end <= begin. `shared`: tokens that are left out."""

    prompts: Sequence[Prompt]
    begin_P: NDArray[np.int64]
    end_P: NDArray[np.int64]
    shared: int

    @classmethod
    def of(cls, prompts: Sequence[Prompt], most: int) -> "PromptPositions":
        """The last `most` positions of each prompt, without what it shares with most prompts of its domain and mode at its
        beginning and at its end. A prompt's first token is predicted from nothing, so it is none of them."""
        groups = defaultdict[tuple[str, str], list[Tokens]](list)
        for prompt in prompts:
            if len(group := groups[prompt.domain, prompt.mode]) < _SAMPLE:
                group.append(prompt.tokens)
        begins = {name: _usual(group) for name, group in groups.items()}
        ends = {name: _usual([tokens[::-1] for tokens in group]) for name, group in groups.items()}
        begin_P, end_P = np.zeros((2, len(prompts)), dtype=np.int64)
        shared = 0
        for place, prompt in enumerate(prompts):
            name, length = (prompt.domain, prompt.mode), len(prompt.tokens)
            begin, end = _equal(begins[name], prompt.tokens), length - _equal(ends[name], prompt.tokens[::-1])
            shared += min(begin + length - end, length)
            begin_P[place], end_P[place] = max(begin, 1, end - most), end
        return cls(prompts, begin_P, end_P, shared)

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


def _usual(some: list[Tokens]) -> Tokens:
    """The longest beginning that more than half of them share."""
    agreeing, length = some, 0
    while True:
        following = Counter(tokens[length] for tokens in agreeing if len(tokens) > length)
        token, count = following.most_common(1)[0] if following else (0, 0)
        if 2 * count <= len(some):
            return agreeing[0][:length]
        agreeing = [tokens for tokens in agreeing if len(tokens) > length and tokens[length] == token]
        length += 1


def _equal(one: Tokens, other: Tokens) -> int:
    """How many tokens both begin with."""
    differing = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


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
