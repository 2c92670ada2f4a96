"""The policy: what a candidate must prove, and the load at which it is to serve."""

from typing import Any

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.quantize import Form


class LoadConfig(Section):
    """What a server of the pair is asked for, each replica."""

    requests_per_second: float = Field(gt=0, description="Requests that arrive, at random.")
    max_batch: int = Field(default=32, ge=1, le=4096, description="Requests served at once, at most.")
    context: int = Field(
        default=4096, ge=1, description="Tokens that the cache holds for each of them, for the memory."
    )


class GateConfig(Section):
    """Rules of promotion. A rule whose figure is missing or not a number is a refusal."""

    min_gain: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The lower bound of the gain in acceptance rate must exceed this (0.01 is a point).",
    )
    domain_margin: float = Field(
        default=0.01, ge=0, le=1, description="No domain may lose more acceptance than this, proved by the lower bound."
    )
    min_prompts_per_domain: int = Field(
        default=40, ge=2, description="Fewer examination prompts in a domain: no verdict, refused."
    )
    beats_prompt_lookup: bool = Field(
        default=True, description="Omega's gain over prompt-lookup must be proved above 0."
    )
    max_draft_megabytes: float | None = Field(default=None, gt=0, description="Largest draft on disk (10^6 bytes).")
    load: LoadConfig | None = Field(default=None, description="The load at which the pair is to serve.")
    profile: dict[Form, str] = Field(
        default={},
        description="What steps take where the pair is to serve, by form of the draft: files of `understudy profile` or `latency "
        "fit`; one file alone is of the draft as it was trained. With a load, the forms that have one compete by predicted "
        "latency on dev prompts.",
    )
    min_speedup: float | None = Field(
        default=None, gt=0, description="The predicted speedup's lower bound at the load must exceed this."
    )
    max_p95_seconds: float | None = Field(
        default=None, gt=0, description="The predicted 95th percentile's upper bound at the load must stay below this."
    )
    max_memory_megabytes: float | None = Field(
        default=None, gt=0, description="Largest pair and caches at the load's batch and context (10^6 bytes)."
    )

    @property
    def served(self) -> tuple[int, int]:
        """Requests at once and tokens of each that memory is stated for: the load's, or one request."""
        context: int = LoadConfig.model_fields["context"].default
        return (self.load.max_batch, self.load.context) if self.load else (1, context)

    @field_validator("profile", mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        return {"unquantized": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _rules_have_what_they_need(self) -> "GateConfig":
        if self.profile and self.load is None:
            raise ValueError("profile says what steps take, which depends on the load: give gate.load too")
        timed = [name for name in ("min_speedup", "max_p95_seconds") if getattr(self, name) is not None]
        if timed and not (self.load and self.profile):
            raise ValueError(f"{timed[0]} is predicted: give gate.load and gate.profile too")
        if self.max_memory_megabytes is not None and self.load is None:
            raise ValueError("max_memory_megabytes depends on batch and context: give gate.load too")
        return self
