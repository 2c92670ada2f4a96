"""Which lighter variants of the draft are made."""

from typing import Literal

from pydantic import Field

from pipeline.config.base import Section

Variant = Literal["int8", "int4", "fp8"]
Form = Literal["unquantized", "int8", "int4", "fp8"]  # of a draft: as it was trained, or a variant
Engine = Literal["transformers", "vllm", "sglang", "tensorrt-llm", "llama.cpp", "openvino"]

# Engines that load what is written here, and those that also load a quantised head (checked 2026-11).
_LOADS = ("transformers", "vllm", "sglang")
_LOADS_HEAD = ("transformers",)


class RecoveryConfig(Section):
    """A short distillation through the rounded weights, where a variant lost too much."""

    above: float = Field(
        default=0.01,
        ge=0,
        description="Acceptance lost on dev prompts from which it is done (0.01 is a point); 1 is never.",
    )
    max_steps: int = Field(default=100, gt=0, description="Optimiser steps.")
    learning_rate: float = Field(default=5e-4, gt=0, description="Peak learning rate.")


class QuantizeConfig(Section):
    """Quantised variants of the candidate."""

    variants: tuple[Variant, ...] = Field(
        default=("int8", "int4"),
        description="int8: LLM.int8() without an outlier threshold; int4: nf4 with double quantisation (both bitsandbytes); fp8: "
        "e4m3 with a scale a block of 128 x 128, for GPUs that multiply in it; examined with its weights widened to bf16. "
        "On a CPU int4 is the quick one: a pass of int8 takes four times one of bf16.",
    )
    head: bool = Field(
        default=True,
        description="The output head too, where it is not the embedding and the engine loads such a draft.",
    )
    engine: Engine = Field(
        default="transformers", description="What is to serve the draft: variants that it cannot load are not made."
    )

    recovery: RecoveryConfig = Field(
        default=RecoveryConfig(), description="What is done about acceptance that is lost."
    )

    @property
    def loadable(self) -> tuple[Variant, ...]:
        """Those of the variants that the engine loads."""
        return self.variants if self.engine in _LOADS else ()

    @property
    def quantised_head(self) -> bool:
        """Whether variants have one, as far as the engine goes."""
        return self.head and self.engine in _LOADS_HEAD
