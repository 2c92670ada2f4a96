"""Drafts that are trained, examined and decoded with as runs do it, in this process."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.acceptance.profile import PromptCounts
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.plain import PlainDraft
from pipeline.examination.examiner import Examiner
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import Sampling


def trained(config: Any, models: Any, rows: Sequence[Any], dev: Sequence[Any]) -> Any:
    """A draft trained on these rows as `distill` does, the best on `dev`."""
    from pipeline.distillation.training import Training
    from pipeline.progress import Progress
    from pipeline.running.jobs import training_settings

    with tempfile.TemporaryDirectory() as folder:
        training = Training(
            training_settings(config), models, dev, Progress(), config.device, config.pair.trust_remote_code
        )
        model, _ = training.run(rows, {}, Path(folder) / "checkpoints")
    return model.eval()


def examined(
    draft: Any, stored: Any, vocabulary: int, settings: EvaluateConfig | None = None, sampling: Sampling | None = None
) -> list[PromptCounts]:
    """Counts of a draft over completions, as `evaluate` makes them; by default at temperature 1."""
    examiner = Examiner(sampling or Sampling(), settings or EvaluateConfig())
    return [item for window in examiner.counts(PlainDraft(draft, vocabulary), stored) for item in window]


def acceptance_rate(counts: Sequence[PromptCounts]) -> float:
    return float(sum(item.accepted for item in counts) / sum(item.examined for item in counts))


def decoder(target: Any, draft: Any, vocabulary: int, gamma: int, sampling: Sampling, **more: Any) -> Decoder:
    """Without the draft where `gamma` is 0. `more`: options of Decoder."""
    drafting = PlainDraft(draft if gamma else None, vocabulary)
    return Decoder(target, drafting, sampling=sampling, vocabulary=vocabulary, gamma=gamma, **more)
