"""Measurements of one load and draft length, repeated: which they are, and where they contradict each other. Pure.

Two models, prompt lengths or datasets in one table look like repeats. Their mean is a server that nobody has.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.costs.columns import listed
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.costs.name_words import tells_of_drafts

Floats = NDArray[np.float64]

_REPEAT = 1.08  # ratio of two numbers of requests up to which they are one point
_DIFFERS = 1.10  # ratio of two repeats from which they are of different things
_OF_SERVER = re.compile("model|gpu|hardware|machine|engine|dtype|precision", re.IGNORECASE)
_RESULT = re.compile("total_.*tokens|max_output_tokens_per_s|max_concurrent_requests")  # counts, no labels
_LABEL = 0.5  # distinct values / measurements up to which a column is a label, not a result


def point_numbers(requests_R: Floats, gamma_R: Floats) -> NDArray[np.int64]:
    """The number of each measurement's point. Measurements of one draft length at nearly the same number of requests are repeats
    of one point: each would otherwise predict the others when it is left out."""
    order_R = np.lexsort((requests_R, gamma_R))
    point_R, first, number = np.zeros(len(order_R), dtype=np.int64), order_R[0], 0
    for place in order_R:
        if gamma_R[place] != gamma_R[first] or requests_R[place] > _REPEAT * requests_R[first]:
            first, number = place, number + 1
        point_R[place] = number
    return point_R


def repeated(measured: Sequence[Measurement]) -> list[list[Measurement]]:
    """The measurements of each point, in order of draft length and load."""
    point_R = point_numbers(
        np.array([measurement.requests for measurement in measured]),
        np.array([measurement.gamma for measurement in measured]),
    )
    return [
        [measurement for measurement, number in zip(measured, point_R, strict=True) if number == point]
        for point in range(point_R.max() + 1)
    ]


@dataclass(frozen=True)
class Contradiction:
    """Repeats that differ: in how many points, the two that differ most, and the labels that tell repeats apart."""

    what: str  # the quantity that differs
    points: int
    ratio: float  # of the two
    low: Measurement
    high: Measurement
    labels: tuple[str, ...]

    def said(self) -> str:
        """A sentence for the user of the measurements."""
        told = (
            f"they differ in {listed(self.labels)}, which `fit` does not use: fit each alone"
            if self.labels
            else "no other column distinguishes them: remove those of another model, server or kind of prompts; if there are "
            "none, the machine or the prompts vary, so measure longer"
        )
        loads = "1 load has" if self.points == 1 else f"{self.points} loads have"
        return (
            f"check {self.low.where} and {self.high.where}: both are draft length {self.low.gamma} at "
            f"{self.low.requests:.3g} requests, and {self.what} differs by {self.ratio - 1:.0%} ({loads} such repeats); {told}"
        )


def contradictions(measured: Sequence[Measurement]) -> list[Contradiction]:
    """Repeats whose step times, or whose tokens per step, differ by more than 10%. Repeats of nearly the same number of requests
    may differ by the ratio of these numbers besides."""
    groups = repeated(measured)
    differing = [
        _contradiction(what, name, groups, measured)
        for what, name in (("the time of a step", "step_seconds"), ("the number of tokens per step", "tokens_per_step"))
    ]
    return [difference for difference in differing if difference is not None]


def doubts(measured: Sequence[Measurement]) -> list[str]:
    """What the user should check in the measurements, a sentence each. A throughput that falls is named only where no repeats
    contradict each other, because these can be its cause."""
    differing = contradictions(measured)
    known = [label for contradiction in differing for label in contradiction.labels]
    sentences = [contradiction.said() for contradiction in differing]
    return [*(sentences or falls(measured)), *other_servers(measured, known)]


def falls(measured: Sequence[Measurement]) -> list[str]:
    """A throughput that falls as the batch grows, by more than 10%: the worst such pair of each draft length, as a sentence.
    Fewer requests ran than the row states, or one of the times is wrong."""
    said = []
    for gamma in sorted({measurement.gamma for measurement in measured}):
        rows = sorted(
            (measurement for measurement in measured if measurement.gamma == gamma),
            key=lambda measurement: measurement.requests,
        )
        pairs = [
            (_tokens_per_second(high) / _tokens_per_second(low), low, high)
            for number, high in enumerate(rows)
            for low in rows[:number]
            if high.requests > _REPEAT * low.requests
        ]
        if not pairs:
            continue
        ratio, low, high = min(pairs, key=lambda item: item[0])
        if ratio * _DIFFERS < 1:
            said.append(
                f"check {high.where}: {_tokens_per_second(high):,.0f} tokens/s at {high.requests:g} requests, but {low.where} "
                f"has {_tokens_per_second(low):,.0f} at {low.requests:g} (draft length {gamma}): fewer requests ran, "
                "or a time is wrong"
            )
    return said


def other_servers(measured: Sequence[Measurement], known: Collection[str] = ()) -> list[str]:
    """Columns that state which model or machine it was, and have no value that rows with drafts and rows without share; and
    columns with several models, but for the `known` ones."""
    said = []
    for column in dict.fromkeys(column for measurement in measured for column in measurement.unread):
        drafted, plain = (
            sorted({_text(measurement.unread, column) for measurement in measured if bool(measurement.gamma) == side})
            for side in (1, 0)
        )
        several = max(drafted, plain, key=len)
        named = _OF_SERVER.search(column) and not any(map(tells_of_drafts, (column, *drafted)))
        if named and drafted and plain and not {*drafted} & {*plain}:
            said.append(
                f"check {column}: {listed(drafted)} with drafts, and {listed(plain)} without: a speedup would "
                "compare two servers; fit each alone"
            )
        elif named and "model" in column.lower() and column not in known and len(several) > 1:
            said.append(f"check {column}: {listed(several)}: costs are of one server; fit each alone")
    return said


def _tokens_per_second(measurement: Measurement) -> float:
    return measurement.requests * measurement.tokens_per_step / measurement.step_seconds


def _contradiction(
    what: str, name: str, groups: Sequence[Sequence[Measurement]], measured: Sequence[Measurement]
) -> Contradiction | None:
    pairs = []
    for group in groups:
        low, high = (choose(group, key=lambda measurement: float(getattr(measurement, name))) for choose in (min, max))
        ratio = getattr(high, name) / getattr(low, name)
        requests = [measurement.requests for measurement in group]
        if ratio > _DIFFERS * max(requests) / min(requests):
            pairs.append((ratio, low, high, group))
    if not pairs:
        return None
    ratio, low, high, _ = max(pairs, key=lambda item: float(item[0]))
    return Contradiction(what, len(pairs), ratio, low, high, _labels([group for *_, group in pairs], measured))


def _labels(groups: Sequence[Sequence[Measurement]], measured: Sequence[Measurement]) -> tuple[str, ...]:
    """Columns that were not read, the file included, with more than one value among the repeats. A column with another value in
    most rows is a result, and no label."""

    def values(some: Sequence[Measurement], column: str) -> set[str]:
        return {_text(measurement.unread, column) for measurement in some}

    names = dict.fromkeys(column for group in groups for measurement in group for column in measurement.unread)
    return tuple(
        column
        for column in names
        if not _RESULT.fullmatch(column)
        and len(values(measured, column)) <= _LABEL * len(measured)
        and any(len(values(group, column)) > 1 for group in groups)
    )


def _text(cells: Mapping[str, Any], column: str) -> str:
    value = cells.get(column, "")
    return str(value) if isinstance(value, str | int | float | None) else ""
