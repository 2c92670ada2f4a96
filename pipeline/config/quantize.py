"""Which quantized variants of the draft are made."""

from typing import Literal

from pydantic import Field

from pipeline.config.base import Section
from pipeline.engines.facts import FACTS, Engine, loads

QuantizedVariant = Literal["int8", "int4", "fp8"]
Variant = Literal["unquantized", "int8", "int4", "fp8"]  # of a draft: as it was trained, or quantized
UNQUANTIZED: Variant = "unquantized"

DEFAULT_VARIANTS: tuple[QuantizedVariant, ...] = ("int8", "int4")


class RecoveryConfig(Section):
    """Distillation with fake-quantized weights (straight-through estimator) of a variant that lost too much acceptance."""

    max_acceptance_loss: float = Field(
        default=0.01,
        ge=0,
        description="Recover a variant that lost more acceptance rate than this on dev prompts (0.01 is 1 point); 1: never.",
    )
    max_steps: int = Field(default=100, gt=0, description="Optimiser steps.")
    learning_rate: float = Field(default=5e-4, gt=0, description="Peak learning rate.")


class QuantizeConfig(Section):
    """Quantized variants of the candidate."""

    variants: tuple[QuantizedVariant, ...] | None = Field(
        default=None,
        description="The variants to make; null: int8 and int4, except one that the sizes of the draft's layers do not allow. "
        "int8: LLM.int8() without an outlier threshold; int4: nf4 with double quantization (both bitsandbytes); fp8: e4m3 with "
        "one scale per block of 128 x 128, for GPUs with FP8 matrix units; it is examined with weights cast to bf16. "
        "On a CPU int4 is faster: an int8 pass takes four times as long as a bf16 pass.",
    )
    output_head: bool = Field(
        default=True,
        description="Quantize the output head too, if it is not tied to the embedding and the engine loads such a draft.",
    )
    engine: Engine = Field(
        default="transformers",
        description="The engine that serves the draft. Variants that it cannot load are not made.",
    )

    recovery: RecoveryConfig = Field(
        default=RecoveryConfig(), description="Further training of a variant that lost too much acceptance."
    )

    @property
    def loadable(self) -> tuple[QuantizedVariant, ...]:
        """The variants that the engine loads."""
        wanted = DEFAULT_VARIANTS if self.variants is None else self.variants
        return tuple(variant for variant in wanted if loads(self.engine, variant))

    @property
    def quantized_head(self) -> bool:
        """Whether the output head is quantized for this engine."""
        return self.output_head and FACTS[self.engine].loads_quantized_head
