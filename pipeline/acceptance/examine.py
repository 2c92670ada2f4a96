"""Examination without decoding: which tokens of stored completions of the target would have been accepted from a draft.

The draft states what probability q it gives to each token (`speculation/drafter.py`); min(1, q / p), and what an engine does to
q, are here. Does not read files. Shapes: T tokens of a completion, P places of a block.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.rounds import Acceptance, Floats
from pipeline.errors import BrokenDraft
from pipeline.speculation.drafter import DraftScores, LoadedDraft
from pipeline.speculation.hidden_states import Features
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch, TokenizedCompletion, batches


class ScoredCompletion(TokenizedCompletion, Protocol):
    """The fields of a stored completion that the examination reads."""

    @property
    def log_p(self) -> NDArray[np.float32]: ...  # of each token, under the target's sampling settings


def acceptance_probabilities(
    draft: LoadedDraft,
    completions: Sequence[ScoredCompletion],
    sampling: Sampling,
    draft_sampling: Sampling,
    batch_tokens: int,
) -> list[Floats]:
    """a_t of every token of every completion, for a draft of which it does not depend on the start of the round. Arguments as of
    `examine`. Raises BrokenDraft if it cannot be examined."""
    assert draft.kind.by_token
    acceptance = examine({"draft": draft}, completions, sampling, draft_sampling, batch_tokens, 1)["draft"]
    if isinstance(acceptance, BrokenDraft):
        raise acceptance
    return [scores.at(1) for scores in acceptance]


def examine(
    drafts: Mapping[str, LoadedDraft],
    completions: Sequence[ScoredCompletion],
    sampling: Sampling,
    draft_sampling: Sampling,
    batch_tokens: int,
    max_gamma: int,
    on_done: Callable[[int], None] = lambda count: None,
    first_number: int = 0,
) -> dict[str, list[Acceptance] | BrokenDraft]:
    """The acceptance of every token of every completion, in the given order, for each draft and for gamma 1 to `max_gamma`.

    a_t = min(1, q(x_t) / p(x_t)); if the target or the draft is greedy, a_t = 1 if argmax q = x_t, else 0
    (`pipeline/acceptance/rounds.py` computes target calls from it). `sampling` are the settings of the target's log_p,
    `draft_sampling` those that the engine applies to the draft, unless its kind is greedy. Batches depend only on the
    completions; each is built once for all drafts. For a draft that cannot be examined (NaN logits, a smaller vocabulary, a
    context too short) the result is a BrokenDraft that names the completion; other drafts are not affected. Completions are
    numbered from `first_number`.
    """
    by_draft: dict[str, list[Acceptance]] = {name: [Acceptance(())] * len(completions) for name in drafts}
    broken: dict[str, BrokenDraft] = {}
    for numbers in batches([len(item.prompt) + len(item.tokens) for item in completions], batch_tokens):
        batch = PaddedBatch([completions[number] for number in numbers])
        left = {name: draft for name, draft in drafts.items() if name not in broken}
        features = _features(left.values(), batch)
        for name, draft in left.items():
            try:
                applied = GREEDY if sampling.greedy or draft.kind.greedy else draft_sampling
                values = _examine_batch(draft, batch, applied, max_gamma, features.get(draft.states))
            except BrokenDraft as error:
                broken[name] = BrokenDraft(f"{error} (completion {first_number + numbers[-1]})")
                continue
            for number, acceptance in zip(numbers, values, strict=True):
                if not all(np.isfinite(a).all() for a in acceptance.a):
                    broken[name] = BrokenDraft(
                        f"the draft returned NaN logits on completion {first_number + number}: its weights are damaged"
                    )
                    break
                by_draft[name][number] = acceptance
        if len(broken) == len(drafts):
            break
        on_done(len(numbers))
    return {name: broken.get(name, by_draft[name]) for name in drafts}


def _features(drafts: Iterable[LoadedDraft], batch: PaddedBatch) -> dict[TargetStates | None, Features]:
    """The hidden states that drafts read, of each of their targets: one pass for all drafts of it."""
    layers = dict[TargetStates, set[int]]()
    for draft in drafts:
        if draft.states is not None:
            layers.setdefault(draft.states, set()).update(draft.layers)
    return {states: states.features(batch, wanted) for states, wanted in layers.items()}


def _examine_batch(
    draft: LoadedDraft, batch: PaddedBatch, sampling: Sampling, max_gamma: int, features: Features | None
) -> list[Acceptance]:
    gammas = range(1, max_gamma + 1) if draft.kind.depends_on_gamma else [max_gamma]
    by_gamma = [draft.examine(batch, sampling, gamma, features) for gamma in gammas]
    acceptances = []
    for number, row in enumerate(batch.rows):
        a = [_accepted(scores, number, row) for scores in by_gamma]
        drafted = [scores.drafted[number] for scores in by_gamma if scores.drafted is not None]
        acceptances.append(Acceptance(a, drafted or None))
    return acceptances


def _accepted(scores: DraftScores, number: int, row: Any) -> Floats:
    values, tokens = scores.values[number], len(row.tokens)
    if values.ndim == 2:
        values = _by_token_and_place(values[:tokens])
    if scores.hits:  # by place they stay as small as they are: there are as many for each token as places
        return values.astype(np.float64, copy=False) if values.ndim == 1 else values
    log_p_T = row.log_p if values.ndim == 1 else row.log_p[:, None]
    accepted: Floats = np.exp(np.minimum(values - log_p_T, 0.0))
    return accepted


def _by_token_and_place(values_SP: NDArray[Any]) -> NDArray[Any]:
    """Entry [t, j] is that of start t - j and place j: 0, or probability 0, where there is no such start."""
    none = 0 if values_SP.dtype.kind in "iub" else -np.inf
    found_TP = np.full_like(values_SP, none)
    for place in range(min(values_SP.shape)):
        found_TP[place:, place] = values_SP[: len(values_SP) - place, place]
    return found_TP


def engine_sampling(convention: str, deployed: Sampling, draft_sampling: str) -> Sampling:
    """The sampling settings that the engine applies to the draft: only the temperature in vLLM, the target's settings in
    the others; argmax if the draft or the target is sampled greedily."""
    if draft_sampling == "greedy" or deployed.greedy:
        return GREEDY
    return Sampling(temperature=deployed.temperature) if convention == "vllm" else deployed
