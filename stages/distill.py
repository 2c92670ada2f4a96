"""distill: trains the base draft on the target's completions and distributions."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.distillation.launchers import processes_here
from pipeline.distillation.learning_curve import CURVE, CurvePoint, curve_json
from pipeline.distillation.settings import TrainingTask
from pipeline.distillation.task import training_of
from pipeline.distillation.trained_head import TrainedHead
from pipeline.distillation.training_log import PEAK, RATE, Log, best, examinations
from pipeline.distillation.workers import train_in_processes
from pipeline.drafts.directory import TrainedOn, trained_on_before
from pipeline.drafts.made_heads import save_head
from pipeline.errors import UnderstudyError
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.stored_completions import column, distinct
from pipeline.models.devices import choose_device
from pipeline.models.files import model_digest
from pipeline.models.loading import load_tokenizer
from pipeline.models.saving import save_model, save_tokenizer
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import DistillSettings
from pipeline.store.files import write_json


def run(context: StageContext[DistillSettings]) -> Outcome:
    """Train the base draft and write `draft/`, `training.json` and, if asked for, `learning_curve.json`.

    Inputs: the pair and the completions of `generate`. UnderstudyError if the trained weights are not finite.
    """
    pair = read_pair(context.inputs["draft"], context.resources.models)
    checkpoints = context.out / "checkpoints"
    processes = _processes(context)
    if context.resources.shard and processes == 1:
        context.progress.line("distill: one process trains, so distill.shard has nothing to divide")
    model, log, train = _train(context, pair, processes, None, checkpoints / "whole")
    # A base draft that Understudy made was trained on prompts before; they count as seen too.
    learnt = TrainedOn(*(distinct(train, name) for name in ("id", "text_id", "mode")))
    _save(context, model, pair, learnt.begun_from(trained_on_before(pair.path("draft"))))
    write_json(context.out / "training.json", log)
    figures = _figures(train, log) | {
        "processes": float(processes),
        "shard": float(context.resources.shard and processes > 1),
    }
    if shares := context.settings.training.distill.learning_curve:
        # The drafts that are trained on parts of the completions are not kept.
        parts = [_train(context, pair, processes, share, checkpoints / f"share-{share!r}")[1:] for share in shares]
        curve = curve_json([_point(some, of_part) for of_part, some in [*parts, (log, train)]])
        write_json(context.out / CURVE, curve)
        figures |= {} if curve["next_doubling"] is None else {"next_doubling": curve["next_doubling"]}
    shutil.rmtree(checkpoints, ignore_errors=True)
    return Outcome(figures, {"draft": model_digest(context.out / "draft")})


def _processes(context: StageContext[DistillSettings]) -> int:
    training, resources = context.settings.training, context.resources
    alone = training.rounds is not None and resources.target_device_map is not None
    return processes_here(resources.processes, training.distill.batch, choose_device(resources.device), alone)


def _train(
    context: StageContext[DistillSettings], pair: Pair, processes: int, share: float | None, work: Path
) -> tuple[Any, Log, Sequence[StoredCompletion]]:
    """The draft trained on the completions, or on a share of them; its log, and these completions. Several processes leave a
    finished training in `work`, which is then only loaded."""
    resources = context.resources
    task = TrainingTask(
        settings=context.settings.training,
        pair=context.inputs["draft"].absolute(),
        places=resources.models,
        completions=context.inputs["completions"].absolute(),
        share=share,
        prompts=context.inputs["prompts"].absolute() if "prompts" in context.inputs else None,
        work=work.absolute(),
        device=choose_device(resources.device).type,
        trust_remote_code=resources.trust_remote_code,
        shard=resources.shard,
    )
    train_in_processes(task, processes, context.progress)
    training, data = training_of(
        task, pair, resources.device, context.progress, target_device_map=resources.target_device_map
    )
    if processes == 1:
        training.require_memory()
    model, log = training.run(data.rows, data.weights, work)
    return model, log, data.train


def _point(train: Sequence[StoredCompletion], log: Log) -> CurvePoint:
    best_entry = best(log)
    return CurvePoint(
        len(train),
        int(column(train, "length").sum()),
        best_entry["dev_acceptance_rate"],
        best_entry["dev_tokens_per_target_call"],
    )


def _figures(train: Sequence[StoredCompletion], log: Log) -> dict[str, float]:
    best_entry, losses = best(log), [entry["loss"] for entry in log if "loss" in entry]
    figures = {
        "dev_acceptance_rate_before": examinations(log)[0][RATE],
        "dev_acceptance_rate_after": best_entry["dev_acceptance_rate"],
        "dev_tokens_per_target_call_after": best_entry["dev_tokens_per_target_call"],
        "best_step": best_entry["step"],
        "train_completions": float(len(train)),
        "train_tokens": float(column(train, "length").sum()),
    }
    if losses:  # a step with an examination on dev prompts logs no loss
        figures["last_loss"] = losses[-1]
    if rates := [entry[PEAK] for entry in log if PEAK in entry]:
        figures["learning_rate"] = rates[0]
    return figures


def _save(context: StageContext[DistillSettings], model: Any, pair: Pair, trained_on: TrainedOn) -> None:
    """The draft as it is served: safetensors, the target's tokenizer and stop tokens, and the list of its training prompts."""
    import torch

    out, tokenizer = context.out / "draft", load_tokenizer(pair.tokenizer, context.resources.trust_remote_code)
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise UnderstudyError(
            "distill: the trained draft has weights that are NaN or infinite; lower distill.learning_rate"
        )
    dtype = getattr(torch, context.settings.training.dtype)
    if isinstance(model, TrainedHead):
        save_head(model.head.to(dtype), out)
    else:
        save_model(model.to(dtype), out, pair.stop_tokens, tokenizer.pad_token_id)
        save_tokenizer(tokenizer, out)
    trained_on.write(out)
