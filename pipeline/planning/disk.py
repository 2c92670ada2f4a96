"""Bytes that a job writes, and those that it needs beside them while it runs. Pure.

What an earlier run wrote is scaled; without one the sizes follow from the formats, as upper bounds.
"""

from dataclasses import dataclass

from pipeline.config.root import Config
from pipeline.planning.earlier_runs import MeasuredJob
from pipeline.planning.work import Amounts, Work, bytes_per_token, completions_of
from pipeline.running.jobs import PROMPTS_JOB

_PER_COMPLETION = 270  # its row beside the tokens, and its segments
_PER_PROMPT, _PER_ID = 110, 4  # prompts.arrow: names and numbers of a prompt; a token
_PER_TRAINED = 44  # trained_on.json: three ids of a prompt
_PER_EXAMINED, _PER_GAMMA, _PER_ACCEPTANCE = (
    250,
    110,
    2,
)  # acceptance.json: a completion, its counts by length; a_t of a token
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FP32, _ADAMW, _CHECKPOINTS, _BEST = 4, 8, 3, 2  # distillation/trainer.py: two checkpoints while a third is written


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Bytes of a job: in its artifact, and beside it while the job runs. None: not known."""

    stored: float | None
    scratch: float = 0.0


def disk_of(
    job: str, work: Work, config: Config, amounts: Amounts, earlier: MeasuredJob | None, parameters: float | None
) -> Disk:
    """The disk of one job. `parameters`: those of the draft; None if they are not known."""
    stage = job.partition("/")[0]
    scratch = 0.0
    if stage == "distill" and parameters and config.distill.lora is None:
        scratch = parameters * (_CHECKPOINTS * (_FP32 + _ADAMW) + _BEST * _FP32)
    if stage == "generate":
        return Disk(stored=_completions(job, work, config, amounts))
    if earlier is not None:
        return Disk(stored=earlier.stored_bytes * work.size / earlier.work.size, scratch=scratch)
    if stage == "corpus":
        stored = work.tokens_out * _PER_ID + work.size * _PER_PROMPT
        return Disk(stored=stored, scratch=stored)  # the rows that were read, before duplicates are left out
    if stage == "evaluate":
        row = _PER_EXAMINED + _PER_GAMMA * config.evaluate.max_gamma
        return Disk(stored=work.size * (row + _PER_ACCEPTANCE * amounts.completion_tokens))
    if stage in ("distill", "quantize") and parameters:
        width = _BYTES[config.pair.draft.dtype if stage == "distill" else "bfloat16"]
        stored = parameters * width + amounts.prompts["train"] * _PER_TRAINED
        return Disk(stored=stored, scratch=scratch)
    return Disk(stored=None, scratch=scratch)


def _completions(job: str, work: Work, config: Config, amounts: Amounts) -> float:
    if job == PROMPTS_JOB:
        completions = amounts.prompts["train"]
    else:
        splits = ("examination",) if "/" in job else tuple(amounts.prompts)
        completions = amounts.turns * sum(completions_of(config, amounts.prompts, splits).values())
    return work.size * (bytes_per_token(config) + 1) + completions * _PER_COMPLETION
