"""The trainer: TRL's SFTTrainer with our loss on stored distributions, and checkpoints that survive a kill.

Knows completions and models, no stage. Training is deterministic under its seed, and a resumed run ends as an unbroken one.
What is kept is the draft that did best on dev prompts, by tokens per target call: a loss is only a means to that.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_model, save_model
from transformers import PrinterCallback, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from trl import SFTConfig, SFTTrainer

from pipeline.config.distill import DistillConfig
from pipeline.distillation.chunked_loss import mean_loss, mean_loss_of_logits, plain_head
from pipeline.distillation.dataset import Documents, stored_targets
from pipeline.distillation.document_masking import supports_document_masking
from pipeline.distillation.losses import LOSSES, MERGED, Sparse, cross_entropy, sparse_columns
from pipeline.distillation.optimizer import MuonWithAdamW
from pipeline.distillation.precision import fast_attention
from pipeline.errors import UnderstudyError
from pipeline.examination.examiner import AcceptanceSummary
from pipeline.generation.completion_store import StoredCompletion
from pipeline.models.loading import multiplies_bf16
from pipeline.progress import Progress, Track

_COMPLETE = "checkpoint_complete"  # written last into a checkpoint: one without it was cut short by a kill


def distill(
    model: Any,
    tokenizer: Any,
    spoken: Sequence[StoredCompletion],
    settings: DistillConfig,
    seed: int,
    vocabulary: int,
    work: Path,
    examine: Callable[[Any], AcceptanceSummary],
    progress: Progress,
) -> list[dict[str, float]]:
    """Train `model` in place on `spoken` and leave it as it was when `examine(model)` said it was best.

    Checkpoints go to `work` and are picked up again. Returns the log: step with loss, or with dev_acceptance and dev_omega.
    Raises UnderstudyError naming step and completions if the loss is not finite.
    """
    _check_alone()
    documents, device = Documents(spoken, supports_document_masking(model, vocabulary)), torch.device(model.device)
    bf16 = multiplies_bf16(device) if settings.bf16 is None else settings.bf16
    with progress.track("distill", settings.max_steps, "steps") as track, fast_attention(model, bf16):
        trainer = _Trainer(
            model=model,
            args=_arguments(settings, seed, work, device, bf16),
            data_collator=documents.collate,
            train_dataset=Dataset.from_dict({"row": list(range(len(documents.rows)))}),
            processing_class=tokenizer,
        )
        trainer.prepare(documents, settings, vocabulary)
        trainer.remove_callback(PrinterCallback)  # prints a dictionary a step; progress is ours
        trainer.add_callback(_Watch(trainer, settings, examine, track, work))
        checkpoint = _last_checkpoint(work)
        if checkpoint is not None and _is_over(checkpoint, settings):
            trainer.restore(checkpoint)  # train() would take one step more
            track.advance(settings.max_steps)
        else:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        load_model(model, _best_file(work, _best_step(trainer.state.log_history)), device=str(model.device))
    kept = ("step", "loss", "dev_acceptance", "dev_omega")
    entries = [{name: entry[name] for name in kept if name in entry} for entry in trainer.state.log_history]
    return [entry for entry in entries if len(entry) > 1]


def _arguments(settings: DistillConfig, seed: int, work: Path, device: torch.device, bf16: bool) -> Any:
    # Transformers renamed it in the course of its fifth version; left out, TRL switches it on.
    checkpointing = next(
        field.name
        for field in fields(SFTConfig)
        if field.name in ("activation_checkpointing", "gradient_checkpointing")
    )
    arguments = SFTConfig(
        output_dir=str(work),
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=int(settings.warmup_share * settings.max_steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        adam_beta2=0.95,
        bf16=bf16,
        use_cpu=device.type == "cpu",
        seed=seed,
        data_seed=seed,
        logging_steps=_log_every(settings),
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=settings.save_every,
        save_total_limit=2,
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=device.type != "cpu",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        **{checkpointing: settings.gradient_checkpointing},
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # a draft is small: it is not spread over whatever GPUs there are
    return arguments


def _check_alone() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UnderstudyError(
            f"distill: a launcher started {os.environ['WORLD_SIZE']} processes (WORLD_SIZE), and a draft is trained in one: "
            "start `understudy` by itself"
        )


def _log_every(settings: DistillConfig) -> int:
    """About 50 losses a training, at steps that divide the checkpoints': so a resumed run averages over the same steps."""
    wanted = max(1, settings.max_steps // 50)
    return max(step for step in range(1, wanted + 1) if settings.save_every % step == 0)


class _Trainer(SFTTrainer):  # type: ignore[misc]
    """SFTTrainer with a loss of ours: on the positions the target spoke at, and on nothing else."""

    optimizer: Any
    loss_is_scaled_for_ga = True  # by the positions of all micro-batches of a step, below

    def prepare(self, documents: Documents, settings: DistillConfig, vocabulary: int) -> None:
        self._documents, self._settings, self._vocabulary = documents, settings, vocabulary
        self._head = plain_head(self.model)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], int]:
        """A step's micro-batches, and how many positions they learn at: each counts as much as any other, wherever it stands."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        return batches, sum(int(batch["predicts"].sum()) for batch in batches)

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        stored, loss_name = stored_targets(inputs), self._settings.loss

        def loss_of(logits_NV: torch.Tensor, where: slice) -> torch.Tensor:
            part = Sparse(*(column[where] for column in stored))
            if loss_name == "cross_entropy":
                return cross_entropy(logits_NV, part.tokens_N)
            return LOSSES[loss_name](sparse_columns(logits_NV, part, merged=loss_name in MERGED))

        # No attention mask: padding lies to the right, where no position that counts can see it, and positions that begin
        # anew keep documents apart, without a cache only.
        feed = {name: inputs[name] for name in ("input_ids", "position_ids") if name in inputs} | {"use_cache": False}
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
            if self._head is None:
                logits_NV = model(**feed).logits[..., : self._vocabulary][inputs["predicts"]]
                loss = mean_loss_of_logits(logits_NV, loss_of)
            else:
                hidden_NH = model.get_decoder()(**feed).last_hidden_state[inputs["predicts"]]
                loss = mean_loss(hidden_NH, self._head, self._vocabulary, loss_of)
        if not torch.isfinite(loss):
            ids = ", ".join(self._documents.spoken[number].id for number in inputs["documents"].tolist())
            raise UnderstudyError(
                f"distill: the loss is {loss.item()} at step {self.state.global_step + 1} on the batch of "
                f"prompts {ids}; lower distill.learning_rate or look at those prompts"
            )
        if num_items_in_batch is not None:
            loss = loss * (len(stored.tokens_N) / num_items_in_batch)
        return (loss, None) if return_outputs else loss

    def create_optimizer(self, model: Any = None) -> Any:
        if self._settings.optimizer == "muon" and self.optimizer is None:
            settings, betas = self._settings, (self.args.adam_beta1, self.args.adam_beta2)
            self.optimizer = MuonWithAdamW(self.model, settings.learning_rate, settings.weight_decay, betas)
        return super().create_optimizer(model)  # which takes the one that is there

    def restore(self, checkpoint: Path) -> None:
        """Take the weights and the log of a finished run's last checkpoint."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Checkpoints are ours to resume from, not to publish: no card."""


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Progress, figures on dev prompts, the best weights so far, and the mark that makes a checkpoint valid."""

    def __init__(
        self,
        trainer: _Trainer,
        settings: DistillConfig,
        examine: Callable[[Any], AcceptanceSummary],
        track: Track,
        work: Path,
    ) -> None:
        self._trainer, self._settings, self._examine_draft, self._track = trainer, settings, examine, track
        self._work, self._last = work, ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The library wraps the model's forward in autocast for good. Ours is within `compute_loss`; whoever examines, writes or
        # trains further wants the plain one.
        self._trainer.accelerator.unwrap_model(self._trainer.model, keep_fp32_wrapper=False)
        if state.global_step:
            self._track.advance(state.global_step)
        else:
            self._examine(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._settings.evaluate_every == 0 or state.global_step == state.max_steps:
            self._examine(control)
        self._track.advance(1, self._last)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _COMPLETE).touch()

    def _examine(self, control: Any) -> None:
        """The log is the memory: it comes back with a checkpoint, and names the step whose weights are the best."""
        model, state = self._trainer.model, self._trainer.state
        model.eval()
        found = self._examine_draft(model)
        model.train()
        self._last = f"dev acceptance {found.acceptance:.3f}"
        # Not by Trainer.log(): within a step it would take the place of that step's loss.
        state.log_history.append(
            {"step": state.global_step, "dev_acceptance": found.acceptance, "dev_omega": found.omega}
        )
        if _best_step(state.log_history) == state.global_step:
            self._work.mkdir(parents=True, exist_ok=True)
            partial = self._work / "best.partial"
            save_model(model, str(partial))
            partial.replace(_best_file(self._work, state.global_step))
        self._forget()
        if _out_of_patience(state.log_history, self._settings):
            control.should_training_stop = True

    def _forget(self) -> None:
        """Weights that were the best once, unless a resumed run might still need them: the last checkpoint's."""
        checkpoint, needed = _last_checkpoint(self._work), {_best_step(self._trainer.state.log_history)}
        needed |= {0} if checkpoint is None else {_best_step(_history(checkpoint))}
        for path in self._work.glob("best-*.safetensors"):
            if path not in {_best_file(self._work, step) for step in needed}:
                path.unlink()


def _best_file(work: Path, step: int) -> Path:
    return work / f"best-{step}.safetensors"


def _examined(history: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(entry["step"], entry["dev_omega"]) for entry in history if "dev_omega" in entry]


def _best_step(history: Sequence[dict[str, Any]]) -> int:
    """The first of the best; 0 before anything was examined."""
    return max(_examined(history), key=lambda one: one[1], default=(0, 0.0))[0]


def _out_of_patience(history: Sequence[dict[str, Any]], settings: DistillConfig) -> bool:
    best = _best_step(history)
    since = sum(step > best for step, _ in _examined(history))
    return settings.patience > 0 and since >= settings.patience


def _is_over(checkpoint: Path, settings: DistillConfig) -> bool:
    """Whether the run that left `checkpoint` had come to its end there."""
    return _step(checkpoint) >= settings.max_steps or _out_of_patience(_history(checkpoint), settings)


def _history(checkpoint: Path) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).log_history
    return history


def _last_checkpoint(work: Path) -> Path | None:
    """The newest checkpoint that was written to its end."""
    return max((path.parent for path in work.glob(f"checkpoint-*/{_COMPLETE}")), key=_step, default=None)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
