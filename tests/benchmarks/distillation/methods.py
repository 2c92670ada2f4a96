"""Ways to train the draft: ours, and what people use today. Each takes steps, a seed and a learning rate.

All have the same prompts and completions, 16 rows a step (TRL's of one completion each, the others' packed where two fit), AdamW
(betas 0.9, 0.95, weight decay 0.1), 5% warm-up then linear to 0, gradients clipped at 1, bfloat16 autocast on fp32 weights, the
loss on completion tokens alone, and no checkpointing of activations.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pipeline.distillation.training_attention import fast_attention
from pipeline.drafts.plain import PlainDraft
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.distributions import SparseDistribution, pack, unpack
from pipeline.speculation.teacher_forced import at_positions
from tests.benchmarks.distillation.data import Regime
from tests.benchmarks.distillation.pair import PRUNED_LAYERS, make_alone

BATCH = 16
_LARGE_VOCABULARY = 152_000
_TRIALS = 0.1  # of a training's steps, at most: `distill.learning_rate: auto`
_WARMUP, _DECAY, _BETAS, _CLIP = 0.05, 0.1, (0.9, 0.95), 1.0


class Trained(NamedTuple):
    model: Any
    seconds: float
    tokens: float  # seen, padding left out
    rate: float | None = None  # that was found


Method = Callable[[Regime, int, int, float], Trained]  # steps, seed, learning rate


def stock(regime: Regime) -> Any:
    return regime.load(regime.draft)


def pruned(regime: Regime) -> Any:
    """As many of the target's layers as the base draft has."""
    from pipeline.drafts.surgery import prune_layers

    return prune_layers(regime.load(regime.target), PRUNED_LAYERS)[0]


def alone(regime: Regime) -> Any:
    """The shape of `pruned`, trained on text from random weights."""
    return regime.load(make_alone())


def ours(
    loss: str,
    optimizer: str = "adamw",
    begin: Callable[[Regime], Any] = stock,
    stored: Callable[[StoredCompletion], StoredCompletion] = lambda item: item,
) -> Method:
    """Understudy's trainer on stored distributions, examinations on dev prompts included."""

    def train(regime: Regime, steps: int, seed: int, rate: float) -> Trained:
        from pipeline.distillation.dataset import PackedCompletions
        from pipeline.distillation.trainer import distill
        from pipeline.distillation.weighted_completions import WeightedCompletions
        from pipeline.examination.examiner import Examiner
        from pipeline.progress import Progress
        from pipeline.speculation.settings import Sampling

        completions, dev = [stored(item) for item in regime.read("train")], regime.read("dev")
        examiner = Examiner(Sampling(), regime.config.evaluate, count_as="user")
        model = begin(regime)
        config = regime.config.distill.model_copy(
            update={
                "loss": loss,
                "optimizer": optimizer,
                "max_steps": steps,
                "batch": BATCH,
                "learning_rate": rate,
                "evaluate_every": math.ceil(steps / 2),
                "save_every": steps,
            }
        )
        with tempfile.TemporaryDirectory() as work:
            began = time.perf_counter()
            distill(
                model,
                regime.tokenizer,
                WeightedCompletions(completions, regime.vocabulary),
                config,
                seed=seed,
                work=Path(work),
                examine=lambda draft: examiner.summary(PlainDraft(draft, regime.vocabulary), dev),
                progress=Progress(terminal=False),
            )
            took = time.perf_counter() - began
        rows = PackedCompletions(completions).rows
        return Trained(model, took, _mean_length(completions) * len(completions) / len(rows) * BATCH * steps)

    return train


def shipped(prompts: bool = True) -> Method:
    """As a config that sets nothing of the training but the optimizer, Muon: the rate is found by trials, which are part of the
    steps, unless one is given. `prompts`: whether their positions are trained on, as `understudy init` writes it."""

    def train(regime: Regime, steps: int, seed: int, rate: float) -> Trained:
        from pipeline.distillation.dataset import PackedCompletions
        from pipeline.distillation.rate_trials import find_rate
        from pipeline.distillation.trainer import distill
        from pipeline.distillation.weighted_completions import ScoredPrompts, WeightedCompletions
        from pipeline.examination.examiner import Examiner
        from pipeline.progress import Progress
        from pipeline.speculation.settings import Sampling

        completions, dev, model = regime.read("train"), regime.read("dev"), regime.load(regime.draft)
        examiner, began = Examiner(Sampling(), regime.config.evaluate, count_as="user"), time.perf_counter()
        whole = math.floor(steps / (1 + _TRIALS))
        config = regime.config.distill.model_copy(
            update={
                "optimizer": "muon",
                "max_steps": whole,
                "batch": BATCH,
                "learning_rate": "auto",
                "evaluate_every": math.ceil(whole / 2),
                "save_every": whole,
            }
        )

        scored = ScoredPrompts.read(regime.prompts, config.prompt_weight) if prompts else None

        def phase(settings: Any, place: Path) -> Any:
            return distill(
                model,
                regime.tokenizer,
                WeightedCompletions(completions, regime.vocabulary, {}, scored),
                settings,
                seed=seed,
                work=place,
                examine=lambda draft: examiner.summary(PlainDraft(draft, regime.vocabulary), dev),
                progress=Progress(terminal=False),
                may_diverge=True,
            )

        with tempfile.TemporaryDirectory() as work:
            if rate:
                found = rate
            else:
                hidden = int(model.get_input_embeddings().weight.shape[-1])
                found, _ = find_rate(model, config, hidden, phase, Path(work) / "rates", Progress(terminal=False))
            phase(config.model_copy(update={"learning_rate": found}), Path(work) / "whole")
        took = time.perf_counter() - began
        rows = PackedCompletions(completions).rows
        tokens = _mean_length(completions) * len(completions) / len(rows) * BATCH * whole
        return Trained(model, took, tokens, found)

    return train


def trl_sft(regime: Regime, steps: int, seed: int, rate: float) -> Trained:
    """TRL's SFTTrainer on the target's text."""
    from datasets import Dataset
    from trl import SFTTrainer

    completions, model = regime.read("train"), regime.load(regime.draft)
    data = [
        {
            "input_ids": [*map(int, item.prompt), *map(int, item.tokens[: item.length])],
            "completion_mask": [0] * len(item.prompt) + [1] * item.length,
        }
        for item in completions
    ]
    with tempfile.TemporaryDirectory() as work:
        trainer = SFTTrainer(
            model=model,
            args=_arguments(work, steps, seed, rate, completion_only_loss=True),  # or the mask is not read
            train_dataset=Dataset.from_list(data),
            processing_class=regime.tokenizer,
        )
        assert trainer.train_dataset[0]["labels"][: len(completions[0].prompt)] == [-100] * len(completions[0].prompt)
        began = time.perf_counter()
        trainer.train()
        took = time.perf_counter() - began
    return Trained(model, took, _mean_length(completions) * BATCH * steps)


def trl_gkd(regime: Regime, steps: int, seed: int, rate: float) -> Trained:
    """TRL's GKDTrainer, lmbda 0 (no text of the draft's own), beta 0 (forward KL), the target's forward pass in each step."""
    from datasets import Dataset
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    completions, model = regime.read("train"), regime.load(regime.draft)

    def collate(rows: list[dict[str, int]]) -> dict[str, torch.Tensor]:
        some = [completions[row["row"]] for row in rows]
        width = max(len(item.prompt) + item.length for item in some)
        batch = {name: torch.zeros(len(some), width, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
        labels = torch.full((len(some), width), -100)
        for row, item in enumerate(some):
            first, end = len(item.prompt), len(item.prompt) + item.length
            ids = torch.tensor([*map(int, item.prompt), *map(int, item.tokens[: item.length])])
            batch["input_ids"][row, :end] = ids
            batch["attention_mask"][row, :end] = 1
            labels[row, first:end] = ids[first:]
        return batch | {"labels": labels}

    with tempfile.TemporaryDirectory() as work:
        trainer = GKDTrainer(
            model=model,
            teacher_model=regime.load(regime.target),
            args=_arguments(work, steps, seed, rate, GKDConfig, lmbda=0.0, beta=0.0, temperature=1.0),
            data_collator=collate,
            train_dataset=Dataset.from_dict({"row": list(range(len(completions)))}),
            processing_class=regime.tokenizer,
        )
        began = time.perf_counter()
        trainer.train()
        took = time.perf_counter() - began
    return Trained(model, took, _mean_length(completions) * BATCH * steps)


def coarse(item: StoredCompletion) -> StoredCompletion:
    """As a vocabulary of 152,000 would have it stored: an id takes 18 of an entry's 24 bits and leaves its log p 6."""
    ids_NK, log_p_NK = unpack(item.entries, item.certain, item.rest_log_p, item.vocabulary)
    kept = SparseDistribution(ids_NK.astype(np.int32), log_p_NK, item.certain, item.rest_log_p)
    return replace(item, entries=pack(kept, _LARGE_VOCABULARY), vocabulary=_LARGE_VOCABULARY)


def bare_loop(regime: Regime, steps: int, seed: int, rate: float) -> Trained:
    """A torch loop with cross-entropy and nothing else: the limit."""
    from torch.nn import functional

    def loss_of(logits_NV: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(logits_NV.float(), batch["tokens"])

    return _loop(regime, steps, seed, rate, loss_of)


def online(regime: Regime, steps: int, seed: int, rate: float) -> Trained:
    """Forward KL over the whole vocabulary, the target's forward pass in each step: what no store can beat."""
    from pipeline.distillation.losses import forward_kl, full_columns

    target = regime.load(regime.target)

    def loss_of(logits_NV: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            log_p_NV = _logits(target, batch).float().log_softmax(-1)
        return forward_kl(full_columns(logits_NV.float().log_softmax(-1), log_p_NV)).mean()

    return _loop(regime, steps, seed, rate, loss_of)


def online_top(regime: Regime, steps: int, seed: int, rate: float) -> Trained:
    """The same on the target's likeliest tokens and the mass of the rest, as floats: what a top-k store without rounding says."""
    from pipeline.distillation.losses import SparseTargets, forward_kl, sparse_columns

    target, kept = regime.load(regime.target), regime.config.generate.stored_tokens

    def loss_of(logits_NV: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            top = _logits(target, batch).float().log_softmax(-1).topk(kept)
            rest_N = (1 - top.values.exp().sum(-1)).clamp(min=1e-7).log()
            certain_N = torch.full_like(rest_N, kept, dtype=torch.int64)
        stored = SparseTargets(top.indices, top.values, certain_N, rest_N, batch["tokens"])
        return forward_kl(sparse_columns(logits_NV.float(), stored)).mean()

    return _loop(regime, steps, seed, rate, loss_of)


def _loop(
    regime: Regime,
    steps: int,
    seed: int,
    rate: float,
    loss_of: Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor],
) -> Trained:
    completions, model = regime.read("train"), regime.load(regime.draft).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=_BETAS, weight_decay=_DECAY, fused=True)
    warmup = max(1, int(_WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: step / warmup if step < warmup else (steps - step) / (steps - warmup),
    )
    tokens, began = 0.0, time.perf_counter()
    for _, batch in zip(range(steps), _batches(completions, seed), strict=False):
        with fast_attention(model, bf16=True), torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(_logits(model, batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += sum(len(completions[n].prompt) + completions[n].length for n in batch["documents"].tolist())
    return Trained(model, time.perf_counter() - began, tokens)


def _logits(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of the positions to learn at alone, (N, V)."""
    feed = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    hidden_BTH = model.model(**feed, use_cache=False).last_hidden_state
    logits_NV: torch.Tensor = model.lm_head(at_positions(hidden_BTH, batch["predicts"]))
    return logits_NV


def _batches(completions: Any, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    from pipeline.distillation.dataset import PackedCompletions

    documents, generator = PackedCompletions(completions), torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(documents.rows), generator=generator).tolist()
        for begin in range(0, len(order) - BATCH + 1, BATCH):
            yield documents.collate([{"row": row} for row in order[begin : begin + BATCH]])


def _arguments(work: str, steps: int, seed: int, rate: float, kind: Any = None, **more: Any) -> Any:
    from trl import SFTConfig

    return (kind or SFTConfig)(
        output_dir=work,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=rate,
        lr_scheduler_type="linear",
        warmup_steps=int(_WARMUP * steps),
        weight_decay=_DECAY,
        adam_beta2=_BETAS[1],
        max_grad_norm=_CLIP,
        bf16=True,
        gradient_checkpointing=False,
        use_cpu=True,
        seed=seed,
        data_seed=seed,
        max_length=None,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **more,
    )


def _mean_length(completions: Any) -> float:
    return float(sum(len(item.prompt) + item.length for item in completions) / len(completions))


METHODS: dict[str, Method] = {
    "shipped": shipped(),
    "shipped_without_prompts": shipped(prompts=False),
    "lk_hybrid_muon": ours("lk_hybrid", "muon"),
    "forward_kl_muon": ours("forward_kl", "muon"),
    "cross_entropy_muon": ours("cross_entropy", "muon"),
    "pruned": ours("lk_hybrid", "muon", pruned),
    "alone": ours("lk_hybrid", "muon", alone),
    "forward_kl_coarse": ours("forward_kl", stored=coarse),
    "online_top": online_top,
    "trl_sft": trl_sft,
    "trl_gkd": trl_gkd,
    "bare_loop": bare_loop,
    "online": online,
    **{
        loss: ours(loss)
        for loss in (
            "forward_kl",
            "lk_hybrid",
            "total_variation",
            "negative_log_acceptance",
            "jensen_shannon",
            "reverse_kl",
            "cross_entropy",
        )
    },
}
