"""distill: the understudy learns. Fine-tunes the base draft on what the target said."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts import write_json
from pipeline.config.distill import DistillConfig
from pipeline.context import Outcome, StageContext
from pipeline.distillation.adapters import add_adapters, merge_adapters
from pipeline.distillation.onpolicy import Write, run_rounds, write_round
from pipeline.distillation.trainer import distill
from pipeline.drafts import TRAINED_ON, trained_on_before
from pipeline.errors import UnderstudyError
from pipeline.generation.examination import DevFigures, dev_figures
from pipeline.generation.store import Spoken, read_completions
from pipeline.modelfiles import model_digest
from pipeline.models import choose_device, load_model, load_tokenizer
from pipeline.pairfile import Pair, read_pair
from pipeline.speculation.sampling import Sampling


def run(context: StageContext) -> Outcome:
    config, pair = context.config, read_pair(context.inputs["draft"], context.config.pair)
    sampling = Sampling(**config.sampling.model_dump())
    train = list(read_completions(context.inputs["completions"], {"train"}))
    dev = list(read_completions(context.inputs["completions"], {"dev"}, sampling))
    # Trained in fp32 whatever the draft is served in: small updates vanish in bf16 weights.
    model = load_model(pair.path("draft"), "float32", choose_device(config.device), config.pair.trust_remote_code)
    if config.distill.lora is not None:
        model = add_adapters(model, config.distill.lora, config.seed)
    tokenizer = load_tokenizer(pair.tokenizer, config.pair.trust_remote_code)

    def examine(draft: Any) -> DevFigures:
        return dev_figures(draft, dev, sampling, config.evaluate, pair.vocabulary)

    # A base draft that Understudy made has learnt from prompts before; they are seen for good.
    learnt = {item.id for item in train} | trained_on_before(pair.path("draft"))
    checkpoints = context.out / "checkpoints"

    def learn(rows: Sequence[Spoken], settings: DistillConfig, seed: int, work: Path) -> list[dict[str, float]]:
        return distill(
            model, tokenizer, rows, settings, seed, pair.vocabulary, work, examine, context.progress
        )  # fmt: skip

    log = learn(train, config.distill, config.seed, checkpoints / "offline")
    if config.distill.on_policy.rounds:
        write = _writer(context, pair, model, sampling)
        for phase in run_rounds(train, config.distill, config.seed, checkpoints, write, learn):
            done = max(entry["step"] for entry in log)
            log += [entry | {"step": done + entry["step"]} for entry in phase]
    if config.distill.lora is not None:
        model = merge_adapters(model)
    _save(context, model, tokenizer, pair.dtype("draft"), pair.stop_tokens, sorted(learnt))
    write_json(context.out / "training.json", log)
    shutil.rmtree(checkpoints, ignore_errors=True)
    examined = [entry for entry in log if "dev_omega" in entry]
    best = max(examined, key=lambda entry: entry["dev_omega"])
    losses = [entry["loss"] for entry in log if "loss" in entry]
    figures = {
        "dev_acceptance_before": examined[0]["dev_acceptance"],
        "dev_acceptance_after": best["dev_acceptance"],
        "dev_omega_after": best["dev_omega"],
        "best_step": best["step"],
        "train_completions": float(len(train)),
        "train_tokens": float(sum(item.length for item in train)),
    } | ({"last_loss": losses[-1]} if losses else {})  # the step that dev prompts are examined at logs none
    return Outcome(figures, {"draft": model_digest(context.out / "draft")})


def _writer(context: StageContext, pair: Pair, draft: Any, sampling: Sampling) -> Write:
    config = context.config
    target = load_model(
        pair.path("target"), pair.dtype("target"), choose_device(config.device), config.pair.trust_remote_code
    )

    def write(prompts: Sequence[Spoken], seed: int, out: Path) -> list[Spoken]:
        return write_round(
            draft.eval(),
            target,
            prompts,
            sampling,
            config.generate,
            seed,
            pair.vocabulary,
            pair.stop_tokens,
            out,
            context.progress,
        )

    return write


def _save(
    context: StageContext, model: Any, tokenizer: Any, dtype: str, stop_tokens: list[int], prompts: list[str]
) -> None:
    """The draft as it will be served: the target's tokenizer and stop tokens, safetensors, and what it learnt from."""
    import torch

    out = context.out / "draft"
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise UnderstudyError(
            "distill: the trained draft has weights that are not numbers; lower distill.learning_rate"
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = stop_tokens
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.to(getattr(torch, dtype)).save_pretrained(out)
    tokenizer.save_pretrained(out)
    write_json(out / TRAINED_ON, {"prompts": prompts})
