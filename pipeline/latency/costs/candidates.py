"""A column of a table as a quantity that it can be. Pure."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.latency.costs.columns import is_mean, is_median, plain_name, unit
from pipeline.latency.costs.name_words import (
    INPUT,
    LOOKED_AT,
    OF_DEVICE,
    is_count_of_tokens,
    is_latency,
    is_rate,
    per_second,
)

Column = list[float]  # NaN in a row without a value


@dataclass(frozen=True)
class Candidate:
    """A column as a quantity."""

    name: str
    factor: float
    values: Column  # in the quantity's unit

    @property
    def given(self) -> str:
        """The column as `--column` takes it; the unit that a name states is applied by itself."""
        return self.name if self.factor == 1.0 else f"{self.name}*{self.factor:g}"


def counts(numbers: Mapping[str, Column]) -> Iterator[Candidate]:
    """Possible numbers of requests: whole, and not the same in all rows; those of an average need not be whole."""
    for name, values in numbers.items():
        plain = plain_name(name)
        may_be_split = is_mean(name) or "running" in plain
        if (
            not is_rate(plain)
            and all(value >= 0.5 and (value == int(value) or may_be_split) for value in values)
            and (len(set(values)) > 1 or re.search(LOOKED_AT["requests"], plain))
        ):
            yield Candidate(name, 1.0, values)


def rates(numbers: Mapping[str, Column], devices: int) -> Iterator[Candidate]:
    """Possible tokens per second, in the unit of their name; of one device, as often as there are devices."""
    for name, values in numbers.items():
        plain = plain_name(name)
        if not is_rate(plain) or INPUT.search(plain) or "req" in plain or not all(value > 0 for value in values):
            continue
        most = devices if OF_DEVICE.search(plain) else 1
        for factor in (per_second(plain) * 2.0**power for power in range(int(math.log2(most)) + 1)):
            yield Candidate(name, factor, [value * factor for value in values])


def times(numbers: Mapping[str, Column]) -> Iterator[Candidate]:
    """Possible times per token, in the unit of their name; without one, in seconds or milliseconds."""
    for name, values in numbers.items():
        plain, seconds = plain_name(name), unit(name)
        no_time = is_rate(plain) or re.search(LOOKED_AT["ttft"], plain) or is_latency(plain)
        if no_time or is_count_of_tokens(plain) or not all(value > 0 for value in values):
            continue
        for factor in (1.0,) if seconds else (1.0, 1e-3):
            yield Candidate(name, factor, [value * factor * (seconds or 1.0) for value in values])


def preferred(
    fit: list[tuple[Candidate, Candidate, Candidate]], place: int, quantity: str
) -> list[tuple[Candidate, Candidate, Candidate]]:
    """Those of several candidates that satisfy the law whose column of this place has a word of the quantity, or is a mean."""
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
    text = str(cell).strip()
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
