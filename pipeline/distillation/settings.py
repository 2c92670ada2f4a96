"""What a training depends on. Torch-free: these are in the keys of the drafts that are trained."""

from dataclasses import dataclass

from pipeline.config.distill import DistillConfig
from pipeline.config.evaluate import Drafting
from pipeline.config.generate import SamplingConfig
from pipeline.config.pair import Dtype, NumberFormat


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The completions of on-policy rounds, which the draft generates and the target scores. Lengths are in tokens."""

    target_dtype: NumberFormat
    max_new_tokens: int
    distribution_tokens: int  # entries stored for each of the target's distributions
    batch: int  # completions decoded at once
    shard: int  # completions in one file


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of every training of a run."""

    distill: DistillConfig
    rounds: RoundSettings | None  # None: no on-policy rounds
    sampling: SamplingConfig  # of the deployment
    draft_sampling: Drafting  # of the deployment
    batch_tokens: int  # of an examination on dev prompts
    dtype: Dtype  # in which the draft is saved
    seed: int
