"""quantize: makes one INT8, INT4 or FP8 variant of the candidate, as a model directory of its own.

Where quantization costs more acceptance on dev prompts than the config allows, the candidate is trained for some further
steps through the rounded weights and quantized again; the variant with the higher acceptance is kept.
"""

import shutil
from pathlib import Path
from typing import Any

from pipeline.config.quantize import QuantizedVariant
from pipeline.distillation.mixing import mix
from pipeline.distillation.segments import segment_weights
from pipeline.distillation.training import Training
from pipeline.drafts.directory import TRAINED_ON, find_draft
from pipeline.errors import BrokenDraft
from pipeline.generation.stored_completions import StoredCompletions
from pipeline.models.devices import choose_device
from pipeline.models.files import code_files, copy_files, model_digest, tokenizer_files
from pipeline.models.loading import load_model
from pipeline.models.out_of_memory import remedy_named
from pipeline.models.saving import save_model
from pipeline.models.stored_pair import read_pair
from pipeline.quantization.recovery import fake_quantization
from pipeline.quantization.variants import Quantized, quantize
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import QuantizeSettings
from pipeline.speculation.settings import Sampling

_TEXT = 256  # tokens of a dev prompt and its completion, on which a variant is compared with the draft


def run(context: StageContext[QuantizeSettings]) -> Outcome:
    """Write the variant of the task to `draft/`.

    Inputs: the trained draft and the completions of `generate`. The figures are sizes in bytes and acceptance rates on dev
    prompts.
    """
    variant = context.settings.task.variant
    with remedy_named(f"quantize/{variant}", f"remove {variant} from quantize.variants"):
        return _made(context, variant)


def _made(context: StageContext[QuantizeSettings], variant: QuantizedVariant) -> Outcome:
    settings, resources = context.settings, context.resources
    source, out = find_draft(context.inputs["draft"], resources.models), context.out / "draft"
    completions = context.inputs["completions"]
    dev = StoredCompletions.open(completions, {"dev"}, Sampling.from_config(settings.training.sampling))
    pair = read_pair(context.inputs["shared"], resources.models)
    training = Training(settings.training, pair, dev, context.progress, resources.device, resources.trust_remote_code)
    made = _quantize(context, variant, source, out, dev)
    context.progress.line(
        f"quantize/{variant}: {made.sizes['quantized_share']:.0%} of the parameters are quantized, the others stay in bf16"
    )
    before, after = _acceptance(context, training, source), _acceptance(context, training, out)
    figures = {"dev_acceptance_rate_before": before, "dev_acceptance_rate_quantized": after}
    if before - after > settings.recovery.max_acceptance_loss:
        recovered = context.out / "recovered"
        made_again = _recover(context, variant, training, made.layers, recovered, dev)
        figures["dev_acceptance_rate_recovered"] = again = _acceptance(context, training, recovered / variant)
        context.progress.line(
            f"{variant}: acceptance rate on dev prompts {before:.3f}, quantized {after:.3f}, after recovery {again:.3f}"
        )
        if again > after:
            shutil.rmtree(out)
            (recovered / variant).rename(out)
            made, after = made_again, again
        shutil.rmtree(recovered)
    trained_on = [source / TRAINED_ON] if (source / TRAINED_ON).is_file() else []
    copy_files([*tokenizer_files(source), *code_files(source), *trained_on], source, out)
    return Outcome(made.sizes | figures | {"dev_acceptance_rate": after}, {"draft": model_digest(out)})


def _quantize(
    context: StageContext[QuantizeSettings], variant: QuantizedVariant, source: Path, out: Path, dev: StoredCompletions
) -> Quantized:
    resources = context.resources
    device, trusted, head = choose_device(resources.device), resources.trust_remote_code, context.settings.head
    text = [int(token) for row in dev[:1] for token in (*row.prompt, *row.tokens[: row.length])][:_TEXT]
    return quantize(source, variant, out, device, trusted, head, text)


def _acceptance(context: StageContext[QuantizeSettings], training: Training, draft: Path) -> float:
    """Acceptance rate of a draft on dev prompts; 0 where it cannot be examined."""
    try:
        return training.examine(_load(context, draft, training.settings.dtype)).acceptance
    except BrokenDraft:
        return 0.0


def _recover(
    context: StageContext[QuantizeSettings],
    variant: QuantizedVariant,
    training: Training,
    layers: frozenset[str],
    work: Path,
    dev: StoredCompletions,
) -> Quantized:
    """Train the candidate through rounded weights and quantize the result into `work`."""
    given, recovery = training.settings, context.settings.recovery
    settings = given.distill.model_copy(
        update={
            "max_steps": recovery.max_steps,
            "learning_rate": recovery.learning_rate,
            "evaluate_every": max(1, recovery.max_steps // 4),
            "save_every": recovery.max_steps,
            "lora": None,
        }
    )
    train = StoredCompletions.open(context.inputs["completions"], {"train"})
    rows = mix(train, given.distill.domain_shares, given.seed)
    model = _load(context, find_draft(context.inputs["draft"], context.resources.models), "float32")
    with fake_quantization(model, variant, layers):
        weights = segment_weights(rows, given.distill.segment_shares)
        training.train(model, rows, weights, settings, given.seed, work / "checkpoints")
    save_model(model.bfloat16(), work / "draft")
    return _quantize(context, variant, work / "draft", work / variant, dev)


def _load(context: StageContext[QuantizeSettings], path: Path, dtype: str) -> Any:
    resources = context.resources
    return load_model(path, dtype, choose_device(resources.device), resources.trust_remote_code)
