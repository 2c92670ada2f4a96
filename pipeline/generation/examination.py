"""The examination over stored completions: what evaluate, distillation's dev figure and the regression check share."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.acceptance.examine import acceptance_probabilities, engine_sampling
from pipeline.acceptance.lookup import walk_all
from pipeline.acceptance.loops import in_loop
from pipeline.acceptance.profile import PromptCounts, count_completions
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.config.evaluate import EvaluateConfig
from pipeline.generation.store import Spoken
from pipeline.speculation.sampling import Sampling


def examine_stored(
    model: Any,
    spoken: Sequence[Spoken],
    sampling: Sampling,
    settings: EvaluateConfig,
    vocabulary: int,
    on_done: Callable[[int], None] = lambda count: None,
) -> list[PromptCounts]:
    """Per-prompt counts of a draft over completions that the target produced under `sampling`."""
    draft_sampling = engine_sampling(settings.convention, sampling, settings.draft_sampling)
    a = acceptance_probabilities(model, spoken, sampling, draft_sampling, vocabulary, settings.batch_tokens, on_done)
    return count_completions(
        [item.id for item in spoken],
        [item.domain for item in spoken],
        a,
        [item.length for item in spoken],
        [in_loop(item.tokens[: item.length].tolist()) for item in spoken],
        settings.max_gamma,
        CONVENTIONS[settings.convention],
    )


def acceptance_rate(
    model: Any, spoken: Sequence[Spoken], sampling: Sampling, settings: EvaluateConfig, vocabulary: int
) -> float:
    """The acceptance rate alone: cheap enough to be asked for while a draft trains."""
    draft_sampling = engine_sampling(settings.convention, sampling, settings.draft_sampling)
    a = acceptance_probabilities(model, spoken, sampling, draft_sampling, vocabulary, settings.batch_tokens)
    return float(np.concatenate([a_T[: item.length] for a_T, item in zip(a, spoken, strict=True)]).mean())


def look_up_stored(spoken: Sequence[Spoken], settings: EvaluateConfig) -> list[PromptCounts]:
    """Per-prompt counts of prompt-lookup. Which tokens are examined depends on gamma; settings.gamma speaks for the rate."""
    counts = []
    for item in spoken:
        tokens = item.tokens[: item.length].tolist()
        walks = walk_all(
            item.prompt.tolist(),
            tokens,
            range(1, settings.max_gamma + 1),
            settings.lookup_ngram,
            CONVENTIONS[settings.convention],
        )
        decisive = walks[settings.gamma - 1]
        counts.append(
            PromptCounts(
                item.id,
                item.domain,
                item.length,
                float(decisive.accepted),
                float(decisive.accepted + decisive.rejected),
                [float(walk.rounds) for walk in walks],
                [float(walk.calls) for walk in walks],
                [float(walk.accepted) for walk in walks],
                [float(value) for value in walks[-1].per_position],
                int(in_loop(tokens).sum()),
            )
        )
    return counts
