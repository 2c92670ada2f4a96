"""What a phase of a training trains on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.distillation.scored_prompts import ScoredPrompts
from pipeline.engines.chat_markers import PROMPT
from pipeline.generation.completion_store import StoredCompletion


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
