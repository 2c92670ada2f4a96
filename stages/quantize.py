"""quantize: lighter costumes. One variant of the candidate, as a directory that loads alone."""

import shutil

from pipeline.context import Outcome, StageContext
from pipeline.drafts import TRAINED_ON, find_draft
from pipeline.modelfiles import TOKENIZER_FILES, model_digest
from pipeline.models import choose_device
from pipeline.quantization import quantize


def run(context: StageContext) -> Outcome:
    source, out = find_draft(context.inputs["draft"]), context.out / "draft"
    figures = quantize(source, context.part, out, choose_device(context.config.device))
    for name in (*TOKENIZER_FILES, TRAINED_ON):
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    return Outcome(figures, {"draft": model_digest(out)})
