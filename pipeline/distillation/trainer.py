"""The trainer: TRL's SFTTrainer with distillation losses on stored distributions, and resumable checkpoints.

Handles completions and models, no stage. Training is deterministic for a seed, and a resumed run gives the same result as an
uninterrupted one. The result is the draft with the most tokens per target call on dev prompts, not the lowest loss.

In several processes (`processes.py`) each optimiser step has the rows that it has in one, and the first process writes. They may
divide the model (`sharding.py`).
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import DistributedType, PartialState
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from torch.utils.data import DataLoader, RandomSampler
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from pipeline.config.distill import DistillConfig
from pipeline.distillation.checkpoints import (
    history_of,
    is_finished,
    last_checkpoint,
    read_best,
    read_model,
    read_optimizer,
    step_of,
    write_model,
    write_optimizer,
)
from pipeline.distillation.chunked_loss import mean_loss, mean_loss_of_logits
from pipeline.distillation.compiled_layers import compiled_layers, compiles_loss
from pipeline.distillation.dataset import PackedCompletions, stored_targets
from pipeline.distillation.losses import LOSSES, MERGED, SparseTargets, cross_entropy, sparse_columns
from pipeline.distillation.muon import MuonWithAdamW
from pipeline.distillation.processes import count, from_first, inside_forward, number, wait_for_all
from pipeline.distillation.segments import SegmentLosses
from pipeline.distillation.sharding import complete, is_divided
from pipeline.distillation.smaller_batch import attempt, otherwise, remedy
from pipeline.distillation.sparse_log_probs import fused_log_probs, gather_log_probs
from pipeline.distillation.trained_head import TrainedHead
from pipeline.distillation.training_attention import fast_attention, supports_document_masking
from pipeline.distillation.training_callback import TrainingCallback
from pipeline.distillation.training_log import Log, kept
from pipeline.distillation.weighted_completions import WeightedCompletions
from pipeline.errors import UnderstudyError
from pipeline.examination.examiner import AcceptanceSummary
from pipeline.models.devices import computes_at_once, supports_bf16, upload
from pipeline.models.out_of_memory import batch_named
from pipeline.models.output_head import linear_head
from pipeline.progress import Progress
from pipeline.speculation.teacher_forced import at_positions

_DEVICE = "ACCELERATE_TORCH_DEVICE"
_LATER = "later"  # the key of a batch that is being made
_OF_EXPERTS = ("output_router_logits", "router_aux_loss_coef")  # keys of config.json


def distill(
    model: Any,
    tokenizer: Any,
    data: WeightedCompletions,
    settings: DistillConfig,
    *,
    seed: int,
    work: Path,
    examine: Callable[[Any], AcceptanceSummary],
    progress: Progress,
    may_diverge: bool = False,
) -> Log:
    """Train `model` in place; it ends with the weights that were best by `examine(model)`, which every process calls, and where
    it returns the same.

    Checkpoints are written to `work`, and training resumes from them. Returns the log: step with loss, or with
    dev_acceptance_rate and dev_tokens_per_target_call; where there are several segments also by segment. Raises UnderstudyError
    naming step and completions if the loss is not finite, but for a training that `may_diverge`.
    """
    with progress.track("distill", settings.max_steps, "steps") as track:
        checkpoint = from_first(lambda: last_checkpoint(work))
        if checkpoint is not None and is_finished(checkpoint, settings):
            history = history_of(checkpoint)
            track.advance(settings.max_steps)
        else:
            if checkpoint is not None:
                progress.line(f"distill: continues from step {step_of(checkpoint)} of {settings.max_steps}")
            trainer = _trainer(model, tokenizer, data, settings, seed, work)
            trainer.may_diverge = may_diverge
            trainer.add_callback(TrainingCallback(trainer, settings, trainer.by_segment, examine, track, work))
            tried = batch_named(
                "distill.batch",
                settings.batch,
                attempt(trainer, trainer.documents),
                remedy(settings),
                otherwise(model),
                tried=not is_divided(model),
            )
            with fast_attention(model, trainer.args.bf16), compiled_layers(model, settings), tried:
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            history = trainer.state.log_history
    wait_for_all()  # the first process has written the best weights
    read_best(model, work, history)
    model.config.use_cache = False  # as the trainer's library leaves it, also where a finished phase is only loaded
    return kept(history)


def _trainer(
    model: Any, tokenizer: Any, data: WeightedCompletions, settings: DistillConfig, seed: int, work: Path
) -> "_Trainer":
    if isinstance(model, TrainedHead):
        masks_documents, has_head = False, False
    else:
        with complete(model) as whole_model:
            masks_documents = supports_document_masking(whole_model, data.vocabulary)
            has_head = linear_head(whole_model) is not None
    documents = PackedCompletions(data.completions, masks_documents, data.prompts)
    device = torch.device(model.device)
    bf16 = supports_bf16(device) if settings.bf16 is None else settings.bf16
    text = model.config.get_text_config()
    of_experts = {name: getattr(text, name) for name in _OF_EXPERTS if hasattr(text, name)}
    trainer = _Trainer(
        model=model,
        args=_arguments(settings, seed, work, device, bf16),
        data_collator=_collator(documents, device),
        train_dataset=Dataset.from_dict({"row": np.arange(len(documents.rows))}),
        processing_class=tokenizer,
    )
    # SFTTrainer has models with experts add a loss of their router to each forward, which fails where there are no experts
    # (dense Granite 4), and writes that into the draft's config.
    for name, value in of_experts.items():
        setattr(text, name, value)
    by_segment = SegmentLosses(documents.segments, data.all_weights, device)
    trainer.prepare(documents, settings, data.vocabulary, by_segment, has_head)
    trainer.remove_callback(PrinterCallback)  # it prints a dictionary per step
    return trainer


def _collator(documents: PackedCompletions, device: torch.device) -> Callable[[Any], dict[str, Any]]:
    """Makes the batch of a step; for a device in a thread, while the step before is computed: accelerate asks for each batch one
    step ahead, and unpacking its distributions takes the host 20 ms, in which it would ask the device for nothing."""

    def collate(chosen: Any) -> dict[str, Any]:
        return documents.collate_part(chosen, number(), count())

    if computes_at_once(device):
        return collate
    thread = ThreadPoolExecutor(1)
    return lambda chosen: {_LATER: thread.submit(collate, chosen)}


def _collated(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The batch, on the device."""
    if _LATER not in batch:
        return batch
    made = batch[_LATER].result()
    return {name: upload(value, device) if isinstance(value, torch.Tensor) else value for name, value in made.items()}


@contextmanager
def _accelerate_on(device: torch.device) -> Iterator[None]:
    """Where the trainer's arguments are made here, accelerate trains on this device. By itself it takes the first GPU."""
    before = os.environ.get(_DEVICE)  # of somebody who imports this; a process of ours has none (`launchers.py`)
    os.environ[_DEVICE] = str(device)
    try:
        yield
    finally:
        del os.environ[_DEVICE]
        if before is not None:
            os.environ[_DEVICE] = before


def _arguments(settings: DistillConfig, seed: int, work: Path, device: torch.device, bf16: bool) -> Any:
    """The arguments of a training on the device of the draft, which need not be the first GPU."""
    with _accelerate_on(device):
        arguments = _config(settings, seed, work, device, bf16)
        if count() > 1 and arguments.distributed_state.distributed_type == DistributedType.NO:
            # accelerate does not handle devices of this kind, and would train in each process alone. It has DDP in processes on
            # CPUs; torch.distributed, which they have joined, exchanges tensors of this device.
            PartialState._reset_state()
            arguments.distributed_state = PartialState(cpu=True)
    # transformers takes the first GPU whatever accelerate has, and would move the draft there.
    if arguments.device != device:
        vars(arguments)["_setup_devices"] = device  # the value of a cached property
        torch.accelerator.set_device_index(device)
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # a process trains on one GPU
    return arguments


def _config(settings: DistillConfig, seed: int, work: Path, device: torch.device, bf16: bool) -> Any:
    # Transformers 5 renamed this argument. TRL enables it by default.
    checkpointing = next(
        field.name
        for field in fields(SFTConfig)
        if field.name in ("activation_checkpointing", "gradient_checkpointing")
    )
    return SFTConfig(
        output_dir=str(work),
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.batch,  # of all processes: see `collate_part`
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
        gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.peak_rate,
        lr_scheduler_type="linear",
        warmup_steps=int(settings.warmup_share * settings.max_steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        adam_beta2=0.95,
        bf16=bf16,
        use_cpu=computes_at_once(device),
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
        dataloader_pin_memory=not computes_at_once(device),
        accelerator_config={"non_blocking": not computes_at_once(device)},
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        **{checkpointing: settings.gradient_checkpointing},
    )


def _log_every(settings: DistillConfig) -> int:
    """Logging interval: about 50 losses per training. It divides `save_every`, so a resumed run averages over the same steps."""
    wanted = max(1, settings.max_steps // 50)
    return max(step for step in range(1, wanted + 1) if settings.save_every % step == 0)


class _Trainer(SFTTrainer):  # type: ignore[misc]
    """SFTTrainer with a distillation loss on the positions of completion tokens."""

    optimizer: Any
    may_diverge = False
    loss_is_scaled_for_ga = True  # `compute_loss` divides by the positions of all micro-batches of a step

    def prepare(
        self,
        documents: PackedCompletions,
        settings: DistillConfig,
        vocabulary: int,
        by_segment: SegmentLosses,
        has_head: bool,
    ) -> None:
        self.documents, self._settings, self._vocabulary, self.by_segment = documents, settings, vocabulary, by_segment
        self._head = self.model.get_output_embeddings() if has_head else None
        if is_divided(self.model):  # accelerate would wrap it in DDP
            self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)

    def get_train_dataloader(self) -> Any:
        """Every process goes through the same batches and takes its rows of each. accelerate would deal batches to the processes,
        and repeat rows where an epoch's last ones do not suffice for all."""
        if count() == 1:
            return super().get_train_dataloader()
        accelerator = self.accelerator
        loader = DataLoader(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            sampler=RandomSampler(self.train_dataset),
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return prepare_data_loader(
            loader,
            accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            non_blocking=self.args.dataloader_pin_memory,
            use_seedable_sampler=accelerator.use_seedable_sampler,
            data_seed=accelerator.dataloader_config.data_seed,
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], int]:
        """A step's micro-batches and their number of loss positions; every position has equal weight."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = [_collated(batch, self.args.device) for batch in batches]
        return batches, sum(batch["positions"] for batch in batches)

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        stored, loss_name, labels_N = stored_targets(inputs), self._settings.loss, inputs.get("segments")
        gather = fused_log_probs if compiles_loss(self.args.device, self._settings) else gather_log_probs

        def loss_of(logits_NV: torch.Tensor, where: slice, counts_N: torch.Tensor | None = None) -> torch.Tensor:
            part = SparseTargets(*(column[where] for column in stored))
            if loss_name == "cross_entropy":
                loss_N = cross_entropy(logits_NV, part.tokens_N)
            else:
                loss_N = LOSSES[loss_name](sparse_columns(logits_NV, part, loss_name in MERGED, gather))
            return loss_N if labels_N is None else self.by_segment.weigh(loss_N, labels_N[where], counts_N)

        # No attention mask is needed: padding is on the right, and restarted position_ids mask documents from each other
        # (only with use_cache=False).
        feed = {name: inputs[name] for name in ("input_ids", "position_ids") if name in inputs} | {"use_cache": False}

        def loss_in(model: Any) -> torch.Tensor:
            with torch.autocast(
                self.args.device.type, torch.bfloat16, enabled=self.args.bf16, cache_enabled=not is_divided(self.model)
            ):
                if isinstance(self.model, TrainedHead):
                    return self.model.loss(inputs, self._vocabulary, loss_of)
                if self._head is None:
                    logits_NV = at_positions(model(**feed).logits[..., : self._vocabulary], inputs["predicts"])
                    return mean_loss_of_logits(logits_NV, loss_of)
                hidden_NH = at_positions(model.get_decoder()(**feed).last_hidden_state, inputs["predicts"])
                return mean_loss(hidden_NH, self._head, self._vocabulary, loss_of)

        loss = inside_forward(model, self.model, loss_in)
        if not self.may_diverge and not torch.isfinite(loss):
            ids = ", ".join(self.documents.completions[number].id for number in inputs["documents"].tolist())
            raise UnderstudyError(
                f"distill: the loss is {loss.item()} at step {self.state.global_step + 1} on the batch of "
                f"prompts {ids}; lower distill.learning_rate or look at those prompts"
            )
        if num_items_in_batch is not None:
            # Of several processes the mean gradient is taken; the sum over all positions is meant.
            loss = loss * (int(inputs["counted"]) * count() / num_items_in_batch)
        return (loss, None) if return_outputs else loss

    def create_optimizer(self, model: Any = None) -> Any:
        if self._settings.optimizer == "muon" and self.optimizer is None:
            settings, betas = self._settings, (self.args.adam_beta1, self.args.adam_beta2)
            self.optimizer = MuonWithAdamW(self.model, settings.peak_rate, settings.weight_decay, betas)
        return super().create_optimizer(model)  # keeps `self.optimizer` if it is set

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The weights of a checkpoint."""
        assert output_dir is not None
        write_model(self.model, Path(output_dir))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        write_optimizer(self._own_optimizer, self.lr_scheduler, Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        read_model(self.model, Path(resume_from_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            read_optimizer(self._own_optimizer, self.lr_scheduler, Path(checkpoint))

    @property
    def _own_optimizer(self) -> Any:
        """The optimizer without accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """No model card: checkpoints are not published."""
