"""Sampling settings of an engine. Torch-free."""

from dataclasses import dataclass
from typing import Literal, Protocol

Verification = Literal["token", "block"]
"""Token-level rejection sampling, or block verification; both keep the target's distribution."""


class SamplingFields(Protocol):
    """Anything with the settings of an engine, such as the config's section `sampling`."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def min_p(self) -> float: ...


@dataclass(frozen=True)
class Sampling:
    """Sampling settings. Temperature 0 is argmax. The filters are off at top_k 0, top_p 1 and min_p 0."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def from_config(cls, config: SamplingFields) -> "Sampling":
        """The settings that a config section states."""
        return cls(config.temperature, config.top_k, config.top_p, config.min_p)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def unchanged(self) -> bool:
        """Temperature 1 without filters: tokens are sampled from the model's own distribution."""
        return self == Sampling()


GREEDY = Sampling(temperature=0.0)
