"""quantize: lighter costumes. One variant of the candidate, as a directory that loads alone."""

import shutil

from pipeline.context import Outcome, StageContext
from pipeline.drafts import TRAINED_ON, find_draft
from pipeline.modelfiles import code_files, model_digest, tokenizer_files
from pipeline.models import choose_device
from pipeline.quantization import quantize


def run(context: StageContext) -> Outcome:
    source, out = find_draft(context.inputs["draft"], context.config.pair), context.out / "draft"
    figures = quantize(
        source,
        context.part,
        out,
        choose_device(context.config.device),
        context.config.pair.trust_remote_code,
        context.config.quantize.quantised_head,
    )
    for path in (*tokenizer_files(source), *code_files(source), source / TRAINED_ON):
        if path.is_file():
            shutil.copyfile(path, out / path.name)
    return Outcome(figures, {"draft": model_digest(out)})
