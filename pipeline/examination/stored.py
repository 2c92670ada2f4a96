"""The examination over stored completions: what evaluate, distillation's dev figure and the regression check share.

Completions are read in windows, so that memory does not grow with their number. A window is a function of the store
alone: figures do not depend on what else a machine had to do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from pipeline.acceptance.examine import acceptance_probabilities, engine_sampling, examine
from pipeline.acceptance.figures import Tally
from pipeline.acceptance.profile import Completions, PromptCounts, count_completions, counts_json
from pipeline.acceptance.prompt_lookup import count_lookup_by_gamma
from pipeline.acceptance.repetition import repetition_mask
from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds
from pipeline.config.evaluate import EvaluateConfig
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.generation.completion_store import StoredCompletion
from pipeline.speculation.sampling import Sampling
from pipeline.store.row_files import RowFile

WINDOW = 1024  # completions in memory at once


def windows(spoken: Iterable[StoredCompletion]) -> Iterator[list[StoredCompletion]]:
    """Consecutive completions, WINDOW at a time. UnderstudyError for one without a prompt or without a token."""
    source = iter(spoken)
    while window := list(islice(source, WINDOW)):
        for item in window:
            if item.length < 1 or len(item.prompt) < 1:
                what = "completion" if item.length < 1 else "prompt"
                raise UnderstudyError(
                    f"prompt {item.id}: its stored {what} has no token; delete the generate artifact and run again"
                )
        yield window


def examine_stored(
    models: Mapping[str, Any],
    spoken: Iterable[StoredCompletion],
    sampling: Sampling,
    settings: EvaluateConfig,
    vocabulary: int,
    on_done: Callable[[int], None] = lambda count: None,
    count_as: str | None = None,
) -> Iterator[dict[str, list[PromptCounts] | BrokenDraft]]:
    """Per-prompt counts of each draft over completions that the target produced under `sampling`, window by window. They are
    counted as the settings' convention does, or as `count_as`.

    Completions are read, padded and searched for loops once for all drafts. A draft that cannot be examined gets the
    reason in place of its counts, in one window, and is not examined further.
    """
    draft_sampling = engine_sampling(settings.convention, sampling, settings.draft_sampling)
    whole, seen, counting = dict(models), 0, CONVENTIONS[count_as or settings.convention]
    for window in windows(spoken):
        completions = _completions(window)
        a = examine(
            whole,
            _judged(window, counting, settings.max_gamma),
            sampling,
            draft_sampling,
            vocabulary,
            settings.batch_tokens,
            on_done,
            first_number=seen,
        )
        seen += len(window)
        found: dict[str, list[PromptCounts] | BrokenDraft] = {}
        for name, values in a.items():
            if isinstance(values, BrokenDraft):
                found[name] = values
                del whole[name]
            else:
                found[name] = count_completions(completions, values, settings.max_gamma, counting)
        yield found
        if not whole:
            return


def _judged(window: Sequence[StoredCompletion], counting: Convention, max_gamma: int) -> list[StoredCompletion]:
    """The completions up to the last token that the convention judges: the draft need not read further."""
    past = 0 if counting.clipped else max_gamma - 1
    return [
        replace(item, tokens=item.tokens[: item.length + past], log_p=item.log_p[: item.length + past])
        for item in window
    ]


def examine_draft(
    model: Any,
    spoken: Iterable[StoredCompletion],
    sampling: Sampling,
    settings: EvaluateConfig,
    vocabulary: int,
    on_done: Callable[[int], None] = lambda count: None,
    count_as: str | None = None,
) -> Iterator[list[PromptCounts]]:
    """`examine_stored` of one draft. Raises BrokenDraft if it cannot be examined."""
    for found in examine_stored({"draft": model}, spoken, sampling, settings, vocabulary, on_done, count_as):
        counts = found["draft"]
        if isinstance(counts, BrokenDraft):
            raise counts
        yield counts


def tallied(counted: Iterable[list[PromptCounts]], max_gamma: int, spools: RowFile, name: str) -> Tally:
    """The figures of windows as they come in; their rows go to the spool `name`."""
    tally = Tally(max_gamma)
    for counts in counted:
        tally.add(counts)
        spools.add(name, counts_json(counts))
    return tally


def _completions(window: Sequence[StoredCompletion]) -> Completions:
    return Completions(
        [item.id for item in window],
        [item.domain for item in window],
        np.array([len(item.prompt) for item in window], dtype=np.int64),
        np.array([item.length for item in window], dtype=np.int64),
        [repetition_mask(item.tokens[: item.length].tolist()) for item in window],
    )


class DevFigures(NamedTuple):
    """What is asked of a draft while it trains."""

    acceptance: float
    omega: float  # tokens per target call at the gamma that decides


def dev_figures(
    model: Any, spoken: Sequence[StoredCompletion], sampling: Sampling, settings: EvaluateConfig, vocabulary: int
) -> DevFigures:
    """The examination in two numbers, cheap enough to be asked for while a draft trains. Calls are counted as for a user
    whatever the convention: dev completions end where they end. Raises BrokenDraft if the draft cannot be examined."""
    draft_sampling = engine_sampling(settings.convention, sampling, settings.draft_sampling)
    a = acceptance_probabilities(model, spoken, sampling, draft_sampling, vocabulary, settings.batch_tokens)
    lengths_B = np.array([item.length for item in spoken], dtype=np.int64)
    a_BT = np.zeros((len(spoken), lengths_B.max()))
    for row, (values_T, length) in enumerate(zip(a, lengths_B, strict=True)):
        a_BT[row, :length] = values_T[:length]
    calls_B = expected_rounds(a_BT, lengths_B, settings.gamma, CONVENTIONS["user"]).calls_B
    return DevFigures(float(a_BT.sum() / lengths_B.sum()), float(lengths_B.sum() / calls_B.sum()))


def look_up_stored(spoken: Iterable[StoredCompletion], settings: EvaluateConfig) -> Iterator[list[PromptCounts]]:
    """Per-prompt counts of prompt-lookup, window by window. Which tokens are examined depends on gamma; settings.gamma
    speaks for the rate."""
    for window in windows(spoken):
        yield [_looked_up(item, settings) for item in window]


def _looked_up(item: StoredCompletion, settings: EvaluateConfig) -> PromptCounts:
    tokens = item.tokens[: item.length].tolist()
    walks = count_lookup_by_gamma(
        item.prompt.tolist(),
        tokens,
        range(1, settings.max_gamma + 1),
        settings.lookup_ngram,
        CONVENTIONS[settings.convention],
        item.tokens[item.length :].tolist(),
    )
    decisive = walks[settings.gamma - 1]
    return PromptCounts(
        item.id,
        item.domain,
        item.length,
        float(decisive.accepted),
        float(decisive.accepted + decisive.rejected),
        [float(walk.rounds) for walk in walks],
        [float(walk.calls) for walk in walks],
        [0.0] * len(walks),  # given the completion, nothing is left to chance
        [float(walk.accepted) for walk in walks],
        [float(value) for value in walks[-1].per_position],
        int(repetition_mask(tokens).sum()),
        prompt_tokens=len(item.prompt),
    )
