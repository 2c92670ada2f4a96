"""Which lighter variants of the draft are made."""

from typing import Literal

from pydantic import Field

from pipeline.config.base import Section

Variant = Literal["int8", "int4"]


class QuantizeConfig(Section):
    """Quantised variants of the candidate (bitsandbytes)."""

    variants: tuple[Variant, ...] = Field(
        default=("int8", "int4"),
        description="int8: LLM.int8() without an outlier threshold; int4: nf4 with double quantisation.",
    )
