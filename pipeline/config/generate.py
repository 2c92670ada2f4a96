"""Sampling settings of the deployment, and what is stored of the target's output."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.config.base import Section
from pipeline.config.segments import SegmentsConfig
from pipeline.config.server import ServerConfig

DistributionSelection = Literal["sampled", "top_k"]
STORED = 64  # tokens of each distribution: more gain less than half a point (docs/distillation.md)


class SamplingConfig(Section):
    """Sampling settings of the deployment. Reported figures and decisions are at these settings."""

    temperature: float = Field(default=1.0, ge=0, le=10, description="Sampling temperature; 0 is greedy.")
    top_k: int = Field(default=0, ge=0, description="Sample from the k most likely tokens; 0 keeps all.")
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of tokens with this probability; 1 keeps all.",
    )
    min_p: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Drop tokens below this share of the highest probability; 0 keeps all.",
    )


class GenerateConfig(Section):
    """Target completions: their length, and what is stored of the target's distributions."""

    engine: Literal["local", "server"] = Field(
        default="local",
        description="local: the target is loaded here. server: `server` names the servers that run it.",
    )
    server: ServerConfig = Field(
        default=ServerConfig(), description="With `engine: server`: the servers of the target."
    )
    max_new_tokens: int = Field(default=128, ge=2, description="Maximum length of a completion, in tokens.")
    distribution_tokens: Annotated[int, Field(ge=1, le=255)] | Literal["auto"] = Field(
        default="auto",
        description=f"Tokens stored of each target distribution, 3 bytes each (the K of top-K). auto: {STORED}, or what the "
        "servers list (`server.logprobs`) where this is less.",
    )
    distribution_selection: DistributionSelection = Field(
        default="sampled",
        description="top_k: the most likely tokens, and the probability of the rest. sampled: the most likely tokens, and others "
        "sampled from the rest, which makes the losses unbiased estimates of those on the whole distribution.",
    )
    train_temperatures: tuple[Annotated[float, Field(ge=0, le=10)], ...] = Field(
        default=(),
        description="Temperatures of the completions of a train prompt, one completion each; empty: one, at `sampling`.",
    )
    lookahead: int = Field(
        default=16,
        ge=0,
        le=64,
        description="Target tokens stored past the length limit and past EOS on examination prompts, for engines that draft past "
        "the end (vLLM).",
    )
    segments: SegmentsConfig = Field(
        default=SegmentsConfig(), description="How thinking, tool calls and the answer are distinguished."
    )
    batch: int = Field(default=64, gt=0, description="Sequences decoded in one batch.")
    shard: int = Field(default=128, gt=0, description="Completions per shard; a resumed run keeps finished shards.")
    examination_samplings: tuple[SamplingConfig, ...] = Field(
        default=(),
        description="Further sampling settings at which drafts are examined; temperature 0 is always included.",
    )

    @property
    def is_served(self) -> bool:
        return self.engine == "server"

    @property
    def stored_tokens(self) -> int:
        """`distribution_tokens` as a number. `running/pair_checks.py` lowers that of `auto` for a smaller vocabulary."""
        if self.distribution_tokens != "auto":
            return self.distribution_tokens
        return min(STORED, self.server.logprobs) if self.is_served else STORED

    @model_validator(mode="after")
    def _servers_are_named(self) -> "GenerateConfig":
        if self.is_served != bool(self.server.endpoints):
            raise ValueError("`engine: server` and `server.endpoints` belong together: set both, or neither")
        return self
