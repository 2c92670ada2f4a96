"""How a draft is examined."""

from typing import Literal

from pydantic import Field

from pipeline.config.base import Section

ConventionName = Literal["user", "transformers", "vllm", "openvino"]  # `pipeline/acceptance/rounds.py`
Drafting = Literal["probabilistic", "greedy"]  # how draft tokens are chosen


class SpeedConfig(Section):
    """The measurement of step times, from which tokens per second follow: plain decoding, and rounds at each draft length."""

    turns: int = Field(
        default=9,
        ge=0,
        description="Turns of plain decoding and of each draft length. 0: no measurement. At 95% confidence at least 6 are "
        "needed.",
    )
    prompts: int = Field(
        default=8,
        ge=1,
        description="Completions of a turn, one request at a time. With fewer than 8, or fewer than 512 tokens in all of them, "
        "no speedup is shown.",
    )
    tokens: int = Field(
        default=64,
        ge=2,
        description="Steps of plain decoding for each completion in a turn; at each draft length a sixteenth as many rounds.",
    )
    seconds: float = Field(
        default=120,
        gt=0,
        description="Approximate time limit of the measurement, which drafts of equal shape share; if it needs more, "
        "there are fewer turns (at 95% confidence 6), then fewer completions and fewer steps (at least 16 of one completion), "
        "and the run prints how many seconds a speedup needs.",
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
