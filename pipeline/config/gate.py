"""The policy: what a candidate must prove."""

from pydantic import Field

from pipeline.config.base import Section


class GateConfig(Section):
    """Rules of promotion. A rule whose figure is missing or not a number is a refusal."""

    min_gain: float = Field(
        default=0.0,
        ge=0,
        description="The lower bound of the gain in acceptance rate must exceed this (0.01 is a point).",
    )
    domain_margin: float = Field(
        default=0.01, ge=0, description="No domain may lose more acceptance than this, proved by the lower bound."
    )
    min_prompts_per_domain: int = Field(
        default=40, ge=2, description="Fewer examination prompts in a domain: no verdict, refused."
    )
    beats_prompt_lookup: bool = Field(
        default=True, description="Omega's gain over prompt-lookup must be proved above 0."
    )
    max_draft_megabytes: float | None = Field(default=None, gt=0, description="Largest draft on disk (10^6 bytes).")
