"""What a training reads of the completions of `generate`: by the stage, and by each of its processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.distillation.mixing import training_rows
from pipeline.distillation.scored_prompts import ScoredPrompts
from pipeline.distillation.segment_weights import segment_weights
from pipeline.distillation.settings import TrainingSettings
from pipeline.distillation.subset import subset
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.stored_completions import StoredCompletions
from pipeline.speculation.settings import Sampling


@dataclass(frozen=True)
class TrainingData:
    """Completions of a training."""

    train: Sequence[StoredCompletion]  # once each
    rows: Sequence[StoredCompletion]  # as often as they are trained on
    prompts: ScoredPrompts | None  # positions of prompts that are trained on too
    weights: Mapping[str, float]  # of a token in the loss, by its segment
    dev: Sequence[StoredCompletion]  # at the deployment's sampling


def training_data(
    completions: Path, settings: TrainingSettings, share: float | None = None, prompts: Path | None = None
) -> TrainingData:
    """What is trained on of all train completions, or of a `share` of them. A token weighs what it does in the whole: a part may
    lack a segment. `prompts`: where the target's distributions over prompts are."""
    distill = settings.distill
    train: Sequence[StoredCompletion] = StoredCompletions.open(completions, {"train"})
    dev = StoredCompletions.open(completions, {"dev"}, Sampling.from_config(settings.sampling))
    rows = training_rows(train, distill, settings.seed)
    weights = segment_weights(rows, distill.segment_shares)
    if share is not None:
        train = subset(train, share)
        rows = training_rows(train, distill, settings.seed)
    return TrainingData(train, rows, ScoredPrompts.read(prompts, distill.prompt_weight), weights, dev)
