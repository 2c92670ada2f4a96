"""The examination of prompt-lookup over stored completions. It has no model: given a completion, it is deterministic."""

from collections.abc import Iterable, Iterator

from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.prompt_lookup import count_lookup_by_gamma
from pipeline.acceptance.repetition import repetition_mask
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.acceptance.segments import count_walks
from pipeline.config.evaluate import EvaluateConfig
from pipeline.examination.windows import windows
from pipeline.generation.completion_store import StoredCompletion


def prompt_lookup_counts(
    completions: Iterable[StoredCompletion], settings: EvaluateConfig
) -> Iterator[list[PromptCounts]]:
    """Per-prompt counts of prompt-lookup, window by window. Which tokens are examined depends on gamma: the acceptance
    rate is the one at settings.gamma."""
    for window in windows(completions):
        yield [_counts(item, settings) for item in window]


def _counts(item: StoredCompletion, settings: EvaluateConfig) -> PromptCounts:
    tokens = item.tokens[: item.length].tolist()
    walks = count_lookup_by_gamma(
        item.prompt.tolist(),
        tokens,
        range(1, settings.max_gamma + 1),
        settings.lookup_ngram,
        CONVENTIONS[settings.convention],
        item.tokens[item.length :].tolist(),
    )
    at_gamma = walks[settings.gamma - 1]
    return PromptCounts(
        id=item.id,
        conversation=item.conversation,
        domain=item.domain,
        tokens=item.length,
        accepted=float(at_gamma.accepted),
        examined=float(at_gamma.accepted + at_gamma.rejected),
        rounds=[float(walk.rounds) for walk in walks],
        calls=[float(walk.calls) for walk in walks],
        rounds_variance=[0.0] * len(walks),  # given the completion, nothing is random
        accepted_drafts=[float(walk.accepted) for walk in walks],
        per_position=[float(value) for value in walks[-1].per_position],
        loop_tokens=int(repetition_mask(tokens).sum()),
        prompt_tokens=len(item.prompt),
        segments=count_walks(
            item.segments[: item.length], item.segment_names, [walk.walk for walk in walks], settings.gamma
        )
        if item.segments is not None
        else {},
    )
