"""How a draft is examined."""

from typing import Literal

from pydantic import Field

from pipeline.config.base import Section


class EvaluateConfig(Section):
    """The examination without decoding, and its cross-check by decoding."""

    convention: Literal["user", "transformers", "vllm", "openvino"] = Field(
        default="user",
        description="Whose way of counting target calls the figures speak for; `user` counts every call one pays for.",
    )
    draft_sampling: Literal["probabilistic", "greedy"] = Field(
        default="probabilistic", description="How the engine draws draft tokens when the target samples."
    )
    gamma: int = Field(
        default=5,
        ge=1,
        le=64,
        description="Draft length of the headline figures and of the decision, until costs are measured.",
    )
    max_gamma: int = Field(default=16, ge=1, le=64, description="Draft lengths 1 to this are examined.")
    confidence: float = Field(default=0.95, gt=0.5, lt=1, description="Level of every interval.")
    batch_tokens: int = Field(default=8192, gt=0, description="Tokens of a teacher-forced batch.")
    lookup_ngram: int = Field(default=3, ge=1, le=8, description="Longest n-gram that prompt-lookup matches.")
    crosscheck_prompts: int = Field(default=4, ge=0, description="Prompts decoded for real, to check the examination.")
    crosscheck_tokens: int = Field(default=48, ge=2, description="Length of those decodes.")
    crosscheck_gamma: int = Field(default=5, ge=1, le=16, description="Draft length of those decodes.")
