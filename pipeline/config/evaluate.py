"""How a draft is examined."""

from typing import Literal

from pydantic import Field

from pipeline.config.base import Section

ConventionName = Literal["user", "transformers", "vllm", "openvino"]  # `pipeline/acceptance/rounds.py`
Drafting = Literal["probabilistic", "greedy"]  # how draft tokens are chosen


class SpeedConfig(Section):
    """The measurement of tokens per second: plain, with the champion or base draft, and with the candidate, in turns."""

    turns: int = Field(
        default=9,
        ge=0,
        description="Turns of each of the three. 0: no measurement. At 95% confidence at least 6 are needed.",
    )
    prompts: int = Field(default=4, ge=1, description="Examination prompts of a turn, one request at a time.")
    tokens: int = Field(default=64, ge=2, description="Most tokens of a completion.")
    seconds: float = Field(
        default=60,
        gt=0,
        description="About the most seconds of the measurement; where more would be needed, fewer prompts and shorter "
        "completions are decoded (at least one prompt of 16 tokens).",
    )


class EvaluateConfig(Section):
    """The examination (teacher-forced, without decoding), and its cross-check by real decoding."""

    convention: ConventionName = Field(
        default="user",
        description="The convention for counting target calls (docs/examination.md); `user` counts every call and the prefill.",
    )
    draft_sampling: Drafting = Field(
        default="probabilistic",
        description="How the engine chooses draft tokens when the target samples: sampled (probabilistic), or argmax (greedy).",
    )
    gamma: int = Field(
        default=5,
        ge=1,
        le=64,
        description="Draft length of the reported figures and of the decision.",
    )
    max_gamma: int = Field(default=16, ge=1, le=64, description="The longest draft length that is examined.")
    confidence: float = Field(default=0.95, gt=0.5, lt=1, description="Confidence level of every interval.")
    batch_tokens: int = Field(default=8192, gt=0, description="Tokens per teacher-forced batch.")
    lookup_ngram: int = Field(default=3, ge=1, le=8, description="Longest n-gram that prompt-lookup matches.")
    crosscheck_prompts: int = Field(
        default=4, ge=0, description="Prompts that are also decoded speculatively, to check the examination."
    )
    crosscheck_tokens: int = Field(default=48, ge=2, description="Length of those decodes.")
    crosscheck_gamma: int = Field(default=5, ge=1, le=16, description="Draft length of those decodes.")
    speed: SpeedConfig = Field(default=SpeedConfig(), description="The measurement of tokens per second.")
