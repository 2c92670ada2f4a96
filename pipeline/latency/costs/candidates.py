"""A column of a table as a quantity that it can be. Pure."""

import math
import re
from dataclasses import dataclass

from pipeline.latency.costs.columns import is_mean, is_median, plain_name
from pipeline.latency.costs.name_words import LOOKED_AT

Column = list[float]  # NaN in a row without a value


@dataclass(frozen=True)
class Candidate:
    """A column as a quantity."""

    name: str
    factor: float
    values: Column  # in the quantity's unit

    @property
    def given(self) -> str:
        """As `--column` takes it; the unit that a name says is applied by itself."""
        return self.name if self.factor == 1.0 else f"{self.name}*{self.factor:g}"


def preferred(
    fit: list[tuple[Candidate, Candidate, Candidate]], place: int, quantity: str
) -> list[tuple[Candidate, Candidate, Candidate]]:
    """Of several that satisfy the law, those whose column of this place has a word of the quantity, or is a mean."""
    if len({three[place].name for three in fit}) < 2:
        return fit
    words = LOOKED_AT.get(quantity, "output|gen|decode" if quantity == "throughput" else "tpot|per_output|inter_token")
    for said in (
        lambda name: re.search(words, plain_name(name)) and not re.fullmatch("(num_)?requests", plain_name(name)),
        is_mean,
        lambda name: not is_median(name),
    ):
        fit = [three for three in fit if said(three[place].name)] or fit
    return fit


def number(cell: object) -> float:
    try:
        value = float(str(cell).strip().removesuffix("%"))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
