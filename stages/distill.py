"""distill: trains the base draft on the target's completions and distributions."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.distillation.learning_curve import CURVE, CurvePoint, curve_json, subset
from pipeline.distillation.mixing import training_rows
from pipeline.distillation.segment_weights import segment_weights
from pipeline.distillation.training import Training
from pipeline.distillation.training_log import Log, best
from pipeline.errors import UnderstudyError
from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.models.draft_directory import TrainedOn, trained_on_before
from pipeline.models.files import model_digest
from pipeline.models.loading import load_tokenizer
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import DistillSettings
from pipeline.speculation.settings import Sampling
from pipeline.store.files import write_json


def run(context: StageContext[DistillSettings]) -> Outcome:
    """Train the base draft and write `draft/`, `training.json` and, if asked for, `learning_curve.json`.

    Inputs: the pair and the completions of `generate`. UnderstudyError if the trained weights are not finite.
    """
    settings, resources = context.settings.training, context.resources
    pair = read_pair(context.inputs["draft"], resources.models)
    completions, checkpoints = context.inputs["completions"], context.out / "checkpoints"
    train = list(read_completions(completions, {"train"}))
    dev = list(read_completions(completions, {"dev"}, Sampling.from_config(settings.sampling)))
    rows = training_rows(train, settings.distill, settings.seed)
    weights = segment_weights(rows, settings.distill.segment_shares)
    training = Training(settings, pair, dev, context.progress, resources.device, resources.trust_remote_code)
    model, log = training.run(rows, weights, checkpoints / "whole")
    # A base draft that Understudy made was trained on prompts before; they count as seen too.
    learnt = TrainedOn(*(frozenset(getattr(item, name) for item in train) for name in ("id", "text_id", "mode")))
    _save(context, model, pair, learnt.begun_from(trained_on_before(pair.path("draft"))))
    write_json(context.out / "training.json", log)
    figures = _figures(train, log)
    if settings.distill.learning_curve:
        curve = curve_json([*_parts(training, train, weights, checkpoints), _point(train, log)])
        write_json(context.out / CURVE, curve)
        figures |= {} if curve["next_doubling"] is None else {"next_doubling": curve["next_doubling"]}
    shutil.rmtree(checkpoints, ignore_errors=True)
    return Outcome(figures, {"draft": model_digest(context.out / "draft")})


def _parts(
    training: Training, train: list[StoredCompletion], weights: Mapping[str, float], checkpoints: Path
) -> list[CurvePoint]:
    """The learning curve: results of drafts trained on parts of the completions. The drafts are not kept. A token weighs what it
    does in the whole: a part may lack a segment."""
    settings, points = training.settings, []
    for share in settings.distill.learning_curve:
        some = subset(train, share)
        rows = training_rows(some, settings.distill, settings.seed)
        _, log = training.run(rows, weights, checkpoints / f"share-{share!r}")
        points.append(_point(some, log))
    return points


def _point(train: list[StoredCompletion], log: Log) -> CurvePoint:
    found = best(log)
    return CurvePoint(
        len(train),
        sum(item.length for item in train),
        found["dev_acceptance_rate"],
        found["dev_tokens_per_target_call"],
    )


def _figures(train: list[StoredCompletion], log: Log) -> dict[str, float]:
    found, losses = best(log), [entry["loss"] for entry in log if "loss" in entry]
    return {
        "dev_acceptance_rate_before": next(
            entry["dev_acceptance_rate"] for entry in log if "dev_tokens_per_target_call" in entry
        ),
        "dev_acceptance_rate_after": found["dev_acceptance_rate"],
        "dev_tokens_per_target_call_after": found["dev_tokens_per_target_call"],
        "best_step": found["step"],
        "train_completions": float(len(train)),
        "train_tokens": float(sum(item.length for item in train)),
    } | ({"last_loss": losses[-1]} if losses else {})  # a step with an examination on dev prompts logs no loss


def _save(context: StageContext[DistillSettings], model: Any, pair: Pair, trained_on: TrainedOn) -> None:
    """The draft as it is served: safetensors, the target's tokenizer and stop tokens, and the list of its training prompts."""
    import torch

    out, tokenizer = context.out / "draft", load_tokenizer(pair.tokenizer, context.resources.trust_remote_code)
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise UnderstudyError(
            "distill: the trained draft has weights that are NaN or infinite; lower distill.learning_rate"
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = pair.stop_tokens
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.to(getattr(torch, context.settings.training.dtype)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    trained_on.write(out)
