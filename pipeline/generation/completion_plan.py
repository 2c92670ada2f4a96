"""Which completions are generated, in which order, and in which shards. Torch-free.

A plan holds indices, not prompts, so that its memory hardly grows with their number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pipeline.corpus.prompt_store import Prompt, PromptColumns
from pipeline.corpus.splits import SPLITS
from pipeline.generation.completion_store import StoredCompletion, canonical
from pipeline.speculation.settings import GREEDY, Sampling


@dataclass(frozen=True)
class CompletionRequest:
    """One completion to generate: which prompt, and with which sampling settings. A prompt may have several."""

    prompt: Prompt
    sampling: Sampling
    number: int = 0  # index among the prompt's completions with this sampling

    def stored(self, columns: Mapping[str, Any], length: int, stopped: bool, vocabulary: int) -> StoredCompletion:
        """This completion, of `length` tokens without the lookahead. `columns`: by name what is stored of each token."""
        prompt = self.prompt
        return StoredCompletion(
            id=prompt.id,
            text_id=prompt.text_id,
            conversation=prompt.conversation,
            mode=prompt.mode,
            split=prompt.split,
            domain=prompt.domain,
            sampling=self.sampling,
            prompt=np.array(prompt.tokens, dtype=np.int32),
            length=length,
            stopped=stopped,
            vocabulary=vocabulary,
            **{name: columns[name] for name in ("tokens", "log_p", "entries", "certain", "rest_log_p")},
        )


@dataclass(frozen=True, eq=False)
class CompletionPlan(Sequence[CompletionRequest]):
    """N requests, each made when it is asked for."""

    prompts: Sequence[Prompt]
    kinds: Sequence[Sampling]
    prompt_N: NDArray[np.int32]  # index in `prompts`
    kind_N: NDArray[np.int16]  # index in `kinds`
    number_N: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.prompt_N)

    @overload
    def __getitem__(self, place: int) -> CompletionRequest: ...
    @overload
    def __getitem__(self, place: slice) -> "CompletionPlan": ...
    def __getitem__(self, place: int | slice) -> "CompletionRequest | CompletionPlan":
        if isinstance(place, slice):
            return CompletionPlan(
                self.prompts, self.kinds, self.prompt_N[place], self.kind_N[place], self.number_N[place]
            )
        kind = self.kinds[self.kind_N[place]]
        return CompletionRequest(self.prompts[self.prompt_N[place]], kind, int(self.number_N[place]))

    def by_kind(self) -> list["CompletionPlan"]:
        """The requests of each sampling settings; they are sorted by them."""
        begins = np.flatnonzero(np.diff(self.kind_N, prepend=-1))
        return [self[begin:end] for begin, end in zip(begins, [*begins[1:], len(self)], strict=True)]


def plan_completions(
    prompts: Sequence[Prompt],
    deployed: Sampling,
    examination_samplings: Sequence[Sampling] = (),
    train_at: Sequence[Sampling] = (),
) -> CompletionPlan:
    """The completions to generate for `prompts`, sorted as by `sorted_plan`.

    - A train prompt has one for each entry of `train_at`; if `train_at` is empty, one with the settings `deployed`.
    - A dev prompt has one with the settings `deployed`.
    - An examination prompt has one with the settings `deployed`, a greedy one, and one for each entry of
      `examination_samplings`. Settings that occur twice are used once.
    """
    deployed, train_at = canonical(deployed), [canonical(sampling) for sampling in train_at or (deployed,)]
    examined = list(dict.fromkeys(map(canonical, (deployed, GREEDY, *examination_samplings))))
    kinds = list(dict.fromkeys([*examined, *train_at]))
    asked = {"train": train_at, "dev": [deployed], "examination": examined}
    columns = PromptColumns.of(prompts)
    parts = [
        (np.flatnonzero(columns.split == SPLITS.index(split)), kinds.index(sampling), samplings[:place].count(sampling))
        for split, samplings in asked.items()
        for place, sampling in enumerate(samplings)
    ]
    prompt_N = np.concatenate([rows for rows, _, _ in parts])
    kind_N = np.concatenate([np.full(len(rows), kind, np.int16) for rows, kind, _ in parts])
    number_N = np.concatenate([np.full(len(rows), number, np.int16) for rows, _, number in parts])
    return sorted_plan(prompts, kinds, prompt_N, kind_N, number_N)


def sorted_plan(
    prompts: Sequence[Prompt],
    kinds: Sequence[Sampling],
    prompt_N: NDArray[np.int_],
    kind_N: NDArray[np.int_],
    number_N: NDArray[np.int_],
) -> CompletionPlan:
    """N requests, sorted by sampling settings (in the order of `kinds`); then examination prompts before others; then by prompt
    length.

    The prompts of a batch then have similar lengths and need little padding.
    """
    columns = PromptColumns.of(prompts)
    is_other_N = columns.split[prompt_N] != SPLITS.index("examination")
    order_N = np.lexsort((number_N, columns.id[prompt_N], columns.length[prompt_N], is_other_N, kind_N))
    return CompletionPlan(
        prompts,
        kinds,
        prompt_N[order_N].astype(np.int32),
        kind_N[order_N].astype(np.int16),
        number_N[order_N].astype(np.int16),
    )


def shard_prefix(turn: int) -> str:
    """The prefix of the names of a turn's shards."""
    return "shard-" if turn == 1 else f"turn-{turn:03d}-shard-"


def shards_of(
    requests: Sequence[CompletionRequest], size: int, turn: int
) -> list[tuple[str, Sequence[CompletionRequest]]]:
    """Name and requests of each shard of at most `size` completions. All completions of a shard have the same sampling."""
    kinds: Sequence[Sequence[CompletionRequest]]
    if isinstance(requests, CompletionPlan):
        kinds = requests.by_kind()
    else:
        samplings = dict.fromkeys(item.sampling for item in requests)
        kinds = [[item for item in requests if item.sampling == sampling] for sampling in samplings]
    parts = [kind[begin : begin + size] for kind in kinds for begin in range(0, len(kind), size)]
    return [(f"{shard_prefix(turn)}{number:05d}", part) for number, part in enumerate(parts)]
