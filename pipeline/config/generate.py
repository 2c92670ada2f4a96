"""How the deployment samples, and what of the target's output is stored."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.base import Section


class SamplingConfig(Section):
    """What the engine applies to the target's logits. Headline figures and decisions are at these settings."""

    temperature: float = Field(default=1.0, ge=0, le=10, description="0 is argmax.")
    top_k: int = Field(default=0, ge=0, description="Keep the k likeliest tokens; 0 keeps all.")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Keep the smallest set of tokens with this mass; 1 keeps all."
    )
    min_p: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Drop tokens below this share of the likeliest one's probability; 0 drops none.",
    )


class GenerateConfig(Section):
    """What the target is asked for, and what is kept of its answers."""

    max_new_tokens: int = Field(default=128, ge=2, description="Length limit of a completion.")
    kept: int = Field(
        default=16, ge=1, le=255, description="Tokens kept of each of the target's distributions, 3 bytes each."
    )
    keep: Literal["drawn", "top"] = Field(
        default="drawn",
        description="top: the likeliest, and the mass of the rest. drawn: the likeliest for certain and the others drawn "
        "from the rest, so that losses estimate those of the whole distribution without bias.",
    )
    train_temperatures: tuple[Annotated[float, Field(ge=0, le=10)], ...] = Field(
        default=(),
        description="Temperatures of a train prompt's completions, one each; empty: one, at the deployment's.",
    )
    lookahead: int = Field(
        default=16,
        ge=0,
        le=64,
        description="Target tokens past the limit and past EOS on examination prompts, for engines that never clip a block.",
    )
    batch: int = Field(default=64, gt=0, description="Sequences decoded together.")
    shard: int = Field(
        default=128, gt=0, description="Completions of a shard; a resumed run repeats no finished shard."
    )
    also_at: tuple[SamplingConfig, ...] = Field(
        default=(),
        description="Further sampling settings at which examination prompts are completed and drafts examined; "
        "temperature 0 always is.",
    )
