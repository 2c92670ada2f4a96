"""Part 3: tokens a second and memory of the distillation, against TRL's trainers, and the share of the card's peak."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import TrainerCallback

from pipeline.config.distill import DistillConfig
from pipeline.examination.examiner import AcceptanceSummary
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.distributions import pack, sparsify
from pipeline.models.devices import synchronize
from pipeline.progress import Progress
from pipeline.speculation.settings import Sampling
from tests.device.kit.models import Setup, multiplied, parameters
from tests.fakes import tiny_tokenizer

DRAFTS, TEACHER = ("Qwen3-0.6B", "Qwen3-1.7B"), "Qwen3-8B"
ROWS, BATCH = 64, 8  # completions, and packed rows of a step
GKD_ROWS = 2  # at once, and four times a step: it holds several whole tensors of logits, 5 GB each for 8 rows
STEPS, SETTLING = 16, 4  # of a training, and those at its beginning that are not counted
# Dense bf16 tensor cores, FLOP/s, and bytes a second of memory, as the cards' data sheets say.
PEAKS = {
    "NVIDIA H100 80GB HBM3": (989e12, 3.35e12),
    "NVIDIA H200": (989e12, 4.8e12),
    "NVIDIA A100-SXM4-80GB": (312e12, 2.04e12),
    "NVIDIA L40S": (362e12, 0.86e12),
}


def measures(setup: Setup) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for draft in DRAFTS:
        for way, train in WAYS.items():
            yield f"{draft}, {way}", lambda draft=draft, train=train: _measure(setup, draft, train)


def _measure(setup: Setup, draft: str, train: "Train") -> dict[str, Any]:
    """Seconds of a step, between steps, so that nothing is timed that begins or ends a training; tokens a second; peak memory."""
    _free(setup)
    clock = Clock(setup)
    tokens = train(setup, draft, STEPS, clock) / STEPS
    step, peak = clock.seconds_a_step, peak_memory(setup)
    _free(setup)
    found = {
        "seconds_a_step": step,
        "tokens_a_step": tokens,
        "tokens_per_second": tokens / step,
        "parameters": (weights := parameters(setup.model(draft))),
        **peak,
        "settings": {"batch": BATCH, "tokens_a_row": setup.size(1024, 64), "bf16": True, "rows_at_once_gkd": GKD_ROWS},
    }
    if (peaks := peaks_of(setup)) is not None:
        # AdamW reads and writes fp32 weights, gradients and two moments.
        flops, moved = flops_a_step(draft, train, tokens, setup.tiny), 2 * weights * 16
        found |= {"share_of_peak": flops / step / peaks[0], "seconds_by_flops": flops / peaks[0]}
        found |= {"seconds_by_bytes": moved / peaks[1]}
    return found


def flops_a_step(draft: str, train: "Train", tokens: float, tiny: bool = False) -> float:
    """Of matrix products, attention left out: 6 for a weight of the draft and a token, and in GKD 2 for one of the teacher, whose
    forward is in each step."""
    teacher = 2 * multiplied(TEACHER, tiny) if train is _gkd else 0
    return (6 * multiplied(draft, tiny) + teacher) * tokens


class Clock(TrainerCallback):  # type: ignore[misc]
    """The median time from the beginning of a step to that of the next, after the first ones. Nothing else happens between."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._began = setup, list[float]()

    def on_step_begin(self, *args: Any, **more: Any) -> None:
        synchronize(self._setup.device)
        if len(self._began) == SETTLING and self._setup.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._setup.device)
        self._began.append(time.perf_counter())

    @property
    def seconds_a_step(self) -> float:
        between = [after - before for before, after in pairwise(self._began)]
        return median(between[SETTLING:])


Train = Callable[[Setup, str, int, Clock], int]  # of a shape, for so many steps; returns tokens


def _free(setup: Setup) -> None:
    """What earlier trainings left: their trainers refer to themselves."""
    gc.collect()
    if setup.device.type == "cuda":
        torch.cuda.empty_cache()


def completions(setup: Setup, name: str) -> list[StoredCompletion]:
    """Random texts with random sparse targets of 64 entries, each filling a row."""
    generator, vocabulary, length = np.random.default_rng(0), setup.vocabulary(name), setup.size(1024, 64)
    before, kept = length // 4, min(64, setup.vocabulary(name) // 2)
    made = []
    for number in range(ROWS):
        count = length - before
        some_NV = torch.rand(count, 4 * kept, generator=torch.Generator().manual_seed(number)).log_softmax(-1)
        stored = sparsify(some_NV, kept, "top_k", generator.random(count))
        made.append(
            StoredCompletion(
                id=f"p{number}",
                text_id=f"p{number}",
                conversation=f"p{number}",
                split="train",
                domain="random",
                sampling=Sampling(),
                prompt=generator.integers(2, vocabulary, before).astype(np.int32),
                tokens=generator.integers(2, vocabulary, count).astype(np.int32),
                length=count,
                stopped=False,
                log_p=np.zeros(count, np.float32),
                entries=pack(stored, vocabulary),
                certain=stored.certain_N,
                rest_log_p=stored.rest_log_p_N,
                vocabulary=vocabulary,
            )
        )
    return made


def _ours(optimizer: str, loss: str, compiled: bool = True) -> Train:
    """`compiled`: as trainings on a GPU are from 200 steps on."""

    def train(setup: Setup, name: str, steps: int, clock: Clock) -> int:
        rows, changes = completions(setup, name), {"loss": loss, "optimizer": optimizer}
        distill(setup, setup.model(name, torch.float32), name, rows, clock, steps, compiled, **changes)
        return _tokens(rows, steps)

    return train


def distill(
    setup: Setup,
    model: Any,
    name: str,
    rows: list[StoredCompletion],
    clock: Clock,
    steps: int = STEPS,
    compiled: bool = True,
    **changes: Any,
) -> None:
    """Train as `distill` does, with a clock; `name`: the shape whose vocabulary the rows have."""
    from pipeline.distillation import trainer
    from pipeline.distillation.weighted_completions import WeightedCompletions

    on_card, made = setup.device.type == "cuda", trainer._trainer
    settings = DistillConfig(
        bf16=None if on_card else False,
        max_steps=steps,
        batch=BATCH,
        learning_rate=1e-5,
        evaluate_every=steps,
        save_every=steps,
        compile=compiled and on_card,
        **changes,
    )

    def with_clock(*args: Any) -> Any:
        found = made(*args)
        found.add_callback(clock)
        return found

    with tempfile.TemporaryDirectory(dir=setup.work) as work, patch.object(trainer, "_trainer", with_clock):
        trainer.distill(
            model,
            tiny_tokenizer(),
            WeightedCompletions(rows, setup.vocabulary(name)),
            settings,
            seed=0,
            work=Path(work),
            examine=lambda model: AcceptanceSummary(0.5, 1.0),
            progress=Progress(terminal=False),
        )


def _tokens(rows: list[StoredCompletion], steps: int) -> int:
    return steps * BATCH * (len(rows[0].prompt) + rows[0].length)


def _sft(setup: Setup, name: str, steps: int, clock: Clock) -> int:
    return _trl_sft(setup, name, steps, clock)


def _sft_compiled(setup: Setup, name: str, steps: int, clock: Clock) -> int:
    """Its layers compiled as ours are."""
    return _trl_sft(setup, name, steps, clock, setup.device.type == "cuda")


def _trl_sft(setup: Setup, name: str, steps: int, clock: Clock, compiled: bool = False) -> int:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = completions(setup, name)
    data = [
        {
            "input_ids": [*row.prompt.tolist(), *row.tokens.tolist()],
            "completion_mask": [0] * len(row.prompt) + [1] * row.length,
        }
        for row in rows
    ]
    model = setup.model(name, torch.float32)
    for layer in model.model.layers if compiled else ():
        layer.compile()
    with tempfile.TemporaryDirectory(dir=setup.work) as work:
        SFTTrainer(
            model=model,
            args=_arguments(SFTConfig, setup, work, steps, completion_only_loss=True),
            train_dataset=Dataset.from_list(data),
            processing_class=tiny_tokenizer(),
            callbacks=[clock],
        ).train()
    return _tokens(rows, steps)


def _gkd(setup: Setup, name: str, steps: int, clock: Clock) -> int:
    """No text of the draft's own, forward KL, the teacher's forward in each step."""
    from datasets import Dataset
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    rows = completions(setup, name)

    def collate(chosen: list[dict[str, int]]) -> dict[str, torch.Tensor]:
        some = [rows[one["row"]] for one in chosen]
        ids_BT = torch.tensor(np.stack([np.concatenate([row.prompt, row.tokens]) for row in some]), dtype=torch.long)
        labels_BT = ids_BT.clone()
        labels_BT[:, : len(some[0].prompt)] = -100
        return {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT), "labels": labels_BT}

    with tempfile.TemporaryDirectory(dir=setup.work) as work:
        GKDTrainer(
            model=setup.model(name, torch.float32),
            teacher_model=setup.model(TEACHER),
            args=_arguments(GKDConfig, setup, work, steps, GKD_ROWS, lmbda=0.0, beta=0.0, temperature=1.0),
            data_collator=collate,
            train_dataset=Dataset.from_dict({"row": list(range(len(rows)))}),
            processing_class=tiny_tokenizer(),
            callbacks=[clock],
        ).train()
    return _tokens(rows, steps)


def _arguments(kind: Any, setup: Setup, work: str, steps: int, rows: int = BATCH, **more: Any) -> Any:
    on_card = setup.device.type == "cuda"
    return kind(
        output_dir=work,
        max_steps=steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=BATCH // rows,
        learning_rate=1e-5,
        bf16=on_card,
        gradient_checkpointing=False,
        max_length=None,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=on_card,
        use_cpu=not on_card,
        **more,
    )


WAYS: dict[str, Train] = {
    "ours, lk_hybrid, AdamW": _ours("adamw", "lk_hybrid"),
    "TRL SFT": _sft,
    "TRL GKD": _gkd,
    "ours, lk_hybrid, Muon": _ours("muon", "lk_hybrid"),
    "TRL SFT, layers compiled": _sft_compiled,
    "ours, lk_hybrid, AdamW, not compiled": _ours("adamw", "lk_hybrid", False),
}


def reset_peak(setup: Setup) -> None:
    if setup.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(setup.device)


def peak_memory(setup: Setup) -> dict[str, float]:
    if setup.device.type != "cuda":
        return {}
    return {"peak_gib": torch.cuda.max_memory_allocated(setup.device) / 2**30}


def peaks_of(setup: Setup) -> tuple[float, float] | None:
    if setup.device.type != "cuda":
        return None
    return PEAKS.get(torch.cuda.get_device_name(setup.device))
