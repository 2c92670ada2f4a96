"""The trainer: TRL's SFTTrainer with our loss on stored distributions, and checkpoints that survive a kill.

Knows completions and models, no stage. Training is deterministic under its seed, and a resumed run ends as an unbroken one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from trl import SFTConfig, SFTTrainer

from pipeline.config.distill import DistillConfig
from pipeline.distillation.dataset import Collator
from pipeline.distillation.losses import cross_entropy, forward_kl
from pipeline.errors import UnderstudyError
from pipeline.generation.store import Spoken
from pipeline.progress import Progress, Track

_COMPLETE = "checkpoint_complete"  # written last into a checkpoint: one without it was cut short by a kill


def distill(
    model: Any,
    tokenizer: Any,
    spoken: Sequence[Spoken],
    settings: DistillConfig,
    seed: int,
    vocabulary: int,
    work: Path,
    dev_acceptance: Callable[[Any], float],
    progress: Progress,
) -> list[dict[str, float]]:
    """Train `model` in place on `spoken`; `dev_acceptance(model)` is logged as it goes.

    Checkpoints go to `work` and are picked up again. Returns the log: step with loss or dev_acceptance.
    Raises UnderstudyError naming step and completions if the loss is not finite.
    """
    with progress.track("distill", settings.max_steps, "steps") as track:
        trainer = _Trainer(
            model=model,
            args=_arguments(settings, seed, work, torch.device(model.device)),
            data_collator=Collator(spoken),
            train_dataset=Dataset.from_dict({"row": list(range(len(spoken)))}),
            processing_class=tokenizer,
        )
        trainer.prepare(spoken, settings, vocabulary)
        trainer.remove_callback(PrinterCallback)  # prints a dictionary a step; progress is ours
        trainer.add_callback(_Watch(trainer, settings, dev_acceptance, track))
        checkpoint = _last_checkpoint(work)
        if checkpoint is not None and _step(checkpoint) >= settings.max_steps:
            trainer.restore(checkpoint)  # train() would take one step more
            track.advance(settings.max_steps)
        else:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    kept = ("step", "loss", "dev_acceptance")
    entries = [{name: entry[name] for name in kept if name in entry} for entry in trainer.state.log_history]
    return [entry for entry in entries if len(entry) > 1]


def _arguments(settings: DistillConfig, seed: int, work: Path, device: torch.device) -> Any:
    return SFTConfig(
        output_dir=str(work),
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=int(settings.warmup_share * settings.max_steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        adam_beta2=0.95,
        bf16=settings.bf16,
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
        activation_checkpointing=settings.gradient_checkpointing,
    )


def _log_every(settings: DistillConfig) -> int:
    """About 50 losses a training, at steps that divide the checkpoints': so a resumed run averages over the same steps."""
    wanted = max(1, settings.max_steps // 50)
    return max(step for step in range(1, wanted + 1) if settings.save_every % step == 0)


class _Trainer(SFTTrainer):  # type: ignore[misc]
    """SFTTrainer with a loss of ours: on the positions the target spoke at, and on nothing else."""

    def prepare(self, spoken: Sequence[Spoken], settings: DistillConfig, vocabulary: int) -> None:
        self._spoken, self._settings, self._vocabulary = spoken, settings, vocabulary

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        # No attention mask: padding lies to the right, where no position that counts can see it.
        output = model(input_ids=inputs["input_ids"], use_cache=False)
        predicts_BT = inputs["predicts"]
        logits_NV = output.logits[..., : self._vocabulary][predicts_BT].float()
        if self._settings.loss == "cross_entropy":
            loss = cross_entropy(logits_NV, inputs["next_tokens"][predicts_BT])
        else:
            loss = forward_kl(
                logits_NV,
                inputs["top_ids"][predicts_BT],
                inputs["top_log_p"][predicts_BT],
                inputs["tail_log_p"][predicts_BT],
                inputs["next_tokens"][predicts_BT],
            )
        if not torch.isfinite(loss):
            ids = ", ".join(self._spoken[row].id for row in inputs["rows"].tolist())
            raise UnderstudyError(
                f"distill: the loss is {loss.item()} at step {self.state.global_step + 1} on the batch of "
                f"prompts {ids}; lower distill.learning_rate or look at those prompts"
            )
        return (loss, output) if return_outputs else loss

    def restore(self, checkpoint: Path) -> None:
        """Take the weights and the log of a finished run's last checkpoint."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Checkpoints are ours to resume from, not to publish: no card."""


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Progress, acceptance on dev prompts, and the mark that makes a checkpoint valid."""

    def __init__(
        self, trainer: _Trainer, settings: DistillConfig, dev_acceptance: Callable[[Any], float], track: Track
    ) -> None:
        self._trainer, self._settings, self._dev_acceptance, self._track = trainer, settings, dev_acceptance, track
        self._last = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            self._track.advance(state.global_step)
        else:
            self._examine()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self._settings.evaluate_every == 0 or state.global_step == state.max_steps:
            self._examine()
        self._track.advance(1, self._last)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _COMPLETE).touch()

    def _examine(self) -> None:
        model = self._trainer.model
        model.eval()
        value = self._dev_acceptance(model)
        model.train()
        self._last = f"dev acceptance {value:.3f}"
        # Not by Trainer.log(): within a step it would take the place of that step's loss.
        state = self._trainer.state
        state.log_history.append({"step": state.global_step, "dev_acceptance": value})


def _last_checkpoint(work: Path) -> Path | None:
    """The newest checkpoint that was written to its end."""
    return max((path.parent for path in work.glob(f"checkpoint-*/{_COMPLETE}")), key=_step, default=None)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
