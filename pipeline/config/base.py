"""The base of every config section: frozen, and unknown keys are errors. Does not import torch."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration. Immutable; an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
