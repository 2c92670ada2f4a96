"""Step costs fitted to a server measured under load, and their file. Pure. `fit_measurements.py` fits them."""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter

from pipeline.errors import UsageError
from pipeline.latency.costs.accuracy import MEASURED, EdgeError, StepAccuracy
from pipeline.latency.costs.fit import Coefficient, Experts, LinearCosts, is_one_load
from pipeline.latency.costs.measurements import MOST_GAMMA, MOST_REQUESTS
from pipeline.latency.costs.piecewise import Piecewise, Terms, above_share
from pipeline.latency.costs.server_facts import Cell, ServerFacts
from pipeline.store.parsing import CountKey, Flag, Number, SmallWhole, Text, parse, stored

Floats = NDArray[np.float64]

KIND, SCHEMA = "fitted costs", 7
_OLD = (5, 6)  # without cells and rises; without the error at the edge and powers
_MOST_TERMS = 200  # in a file
_CHECKED = 50  # numbers of requests at which the step times of a file are looked at


@dataclass(frozen=True)
class LeaveOneOut:
    """Left-out error of both models: mean absolute relative error, as a share."""

    linear: float
    chosen: float


@dataclass(frozen=True, kw_only=True)
class FittedCosts(ServerFacts):
    """Valid for the context and prompt length of its measurements."""

    costs: LinearCosts
    piecewise: Piecewise | None  # None if the linear model is better
    prefill: float  # seconds per prefill at the mean prompt length; 0 if unknown
    max_gamma: int
    max_requests: int
    leave_one_out: LeaveOneOut | None  # None: too few points
    edge: EdgeError | None = None  # None: too few points or loads, or a file of an older schema
    min_requests: int = 1  # the lightest load at which every draft length was measured
    batch_share: Mapping[int, float] = field(
        default_factory=dict
    )  # requests in the batch / concurrency, by draft length
    draft_shape: None = None  # as `draft_digest`
    draft_digest: None = None  # unknown: measurements do not name the draft
    notes: tuple[str, ...] = ()

    def step_seconds(self, requests: ArrayLike, gamma: ArrayLike) -> Floats:
        """Seconds of a step without prefills; the arguments are broadcast. A step with fewer requests than were measured at every
        draft length takes at least its share of the time of those."""
        return above_share((self.piecewise or self.costs).step_seconds, requests, gamma, float(self.min_requests))

    def steps(self, cap: int, context: int, gammas: int | None = None) -> Floats:
        """The steps as `Profile.steps` gives them; `context` is ignored, the measurements have one. n requests are in
        the batch of a closed loop whose concurrency is higher, by the share that waits or has not begun. Of one load they are
        what was measured there."""
        gamma_G, count_N = np.arange((self.max_gamma if gammas is None else gammas) + 1)[:, None], np.arange(1, cap + 1)
        if self.load is not None:
            measured = sorted((cell.gamma, cell.step_seconds) for cell in self.cells)
            seconds_G1: Floats = np.interp(gamma_G, *np.transpose(measured))
            return seconds_G1.repeat(cap, axis=1)
        known = dict(sorted(self.batch_share.items())) or {0: 1.0}
        share_G = np.interp(gamma_G, list(known), list(known.values()))
        return self.step_seconds(np.where(count_N > 1, count_N / share_G, 1.0), gamma_G)

    def prefills(self, tokens: ArrayLike) -> Floats:
        return np.full(np.shape(tokens), self.prefill)

    def covers(self, batch: int, gamma: int, context: int) -> bool:
        if gamma in self.measured_requests:
            low, high = self.measured_requests[gamma]
            return low <= batch <= high
        return self.min_requests <= batch <= self.max_requests and gamma <= self.max_gamma

    @property
    def load(self) -> int | None:
        """The largest number of requests, if each draft length was measured at one load; None for several."""
        requests, gammas = [cell.requests for cell in self.cells], [cell.gamma for cell in self.cells]
        return max(1, round(max(requests))) if self.max_gamma and requests and is_one_load(requests, gammas) else None

    @property
    def accuracy(self) -> StepAccuracy:
        if self.load is not None:
            return MEASURED
        return StepAccuracy(self.leave_one_out.chosen if self.leave_one_out else None)

    def accuracy_at(self, gamma: int, batch: float) -> StepAccuracy:
        """The accuracy of a step at this batch size: the error at the edge from the heaviest load of the draft length on, and
        up to the lightest unless that is one request, below which nothing is."""
        inside = self.accuracy
        low, high = self.measured_requests.get(gamma, (self.min_requests, self.max_requests))
        if not inside.fitted or (batch < high and (low < batch or low == 1)):
            return inside
        if self.edge is None or inside.left_out is None:
            return inside if low <= batch <= high else StepAccuracy(None, edge=True)
        error = self.edge.heavier if batch >= high else self.edge.lighter
        return StepAccuracy(max(error, inside.left_out), edge=True)

    @property
    def first_steps(self) -> int:
        """Steps of the batch that the first token takes: 1 where a prefill is part of a step (chunked prefill), so that a full
        batch delays the first token too; 0 where a prefill blocks the batch, and where TTFT is unknown. It is 1 if the TTFT of a
        request that is alone is half a step or more beyond a blocking prefill."""
        return int(self.first_token - self.prefill > 0.5 * float(self.step_seconds(1, 0)))

    def measured(self, gamma: int) -> bool:
        return not self.measured_requests or gamma in self.measured_requests

    def json(self) -> dict[str, Any]:
        costs = self.costs
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "costs": {
                "coefficients": {
                    name: [
                        coefficient.value,
                        *(bound if np.isfinite(bound) else None for bound in (coefficient.low, coefficient.high)),
                    ]
                    for name, coefficient in costs.coefficients.items()
                },
                "confounded": list(costs.confounded),
                "mape": costs.mape,
                "r2": costs.r2,
                "experts": [costs.experts.active, costs.experts.total] if costs.experts else None,
            },
            "piecewise": {**asdict(self.piecewise.terms), "values": list(self.piecewise.values_K)}
            if self.piecewise
            else None,
            "prefill": self.prefill,
            "first_token": self.first_token,
            "most_gamma": self.max_gamma,
            "least_requests": self.min_requests,
            "most_requests": self.max_requests,
            "measured_requests": {str(gamma): list(ends) for gamma, ends in self.measured_requests.items()},
            "tokens_per_step": {str(gamma): tokens for gamma, tokens in self.tokens_by_gamma.items()},
            "tokens_per_step_error": self.tokens_error,
            "output_tokens": self.output_tokens,
            "batch_share": {str(gamma): share for gamma, share in self.batch_share.items()},
            "plain": self.plain,
            "left_out": [self.leave_one_out.linear, self.leave_one_out.chosen] if self.leave_one_out else None,
            "edge": list(astuple(self.edge)) if self.edge else None,
            "most_tokens_per_second": list(self.max_throughput) if self.max_throughput else None,
            "acceptance_known": self.acceptance_known,
            "cells": [list(astuple(cell)) for cell in self.cells],
        }


@stored(kw_only=False)
class _CostsPart:
    """`costs` of the file."""

    coefficients: dict[Text, tuple[Number, Number | None, Number | None]]
    confounded: tuple[Text, ...]
    mape: Number
    r2: Number
    experts: tuple[SmallWhole, SmallWhole] | None


@stored(kw_only=False)
class _PiecewisePart:
    """`piecewise` of the file."""

    breakpoints: tuple[Number, ...]
    draft_breakpoints: tuple[Number, ...]
    least_tokens: Number
    least_requests: Number
    tiles: tuple[Number, ...]
    drops: tuple[Number, ...]
    values: tuple[Number, ...]
    rises: tuple[Number, ...] = ()
    powers: tuple[Number, ...] = ()


@stored(kw_only=False)
class _File:
    """The file, as `FittedCosts.json` writes it."""

    kind: Text
    schema: SmallWhole
    costs: _CostsPart
    piecewise: _PiecewisePart | None
    prefill: Number
    first_token: Number
    most_gamma: SmallWhole
    least_requests: SmallWhole
    most_requests: SmallWhole
    measured_requests: dict[CountKey, tuple[SmallWhole, SmallWhole]]
    tokens_per_step: dict[CountKey, Number]
    tokens_per_step_error: Number
    output_tokens: Number | None
    batch_share: dict[CountKey, Number]
    plain: Flag
    left_out: tuple[Number, Number] | None
    most_tokens_per_second: tuple[Number, Number] | None
    acceptance_known: Flag = True
    cells: tuple[tuple[SmallWhole, Number, Number, Number, Number, Number | None], ...] = ()
    edge: tuple[Number, Number] | None = None


_FILE = TypeAdapter(_File)


def fitted_costs_from_json(raw: Any, where: str) -> FittedCosts:
    """Inverse of `FittedCosts.json`. UsageError, naming `where`, for any other content."""
    if not isinstance(raw, Mapping) or raw.get("schema") not in (*_OLD, SCHEMA):
        raise UsageError(f"{where}: not a costs file of schema {SCHEMA}; write one with `understudy latency fit`")
    try:
        file = parse(_FILE, raw)
        costs = file.costs
        experts = Experts(*costs.experts) if costs.experts else None
        fitted = FittedCosts(
            costs=LinearCosts(
                {
                    name: Coefficient(value, 0.0 if low is None else low, np.inf if high is None else high)
                    for name, (value, low, high) in costs.coefficients.items()
                },
                costs.confounded,
                costs.mape,
                costs.r2,
                experts,
            ),
            piecewise=_piecewise(file.piecewise, experts),
            prefill=file.prefill,
            max_gamma=file.most_gamma,
            max_requests=file.most_requests,
            leave_one_out=None if file.left_out is None else LeaveOneOut(*file.left_out),
            plain=file.plain,
            min_requests=file.least_requests,
            tokens_by_gamma=file.tokens_per_step,
            tokens_error=file.tokens_per_step_error,
            measured_requests=file.measured_requests,
            output_tokens=file.output_tokens,
            batch_share=file.batch_share,
            first_token=file.first_token,
            max_throughput=file.most_tokens_per_second,
            cells=tuple(Cell(*cell) for cell in file.cells),
            acceptance_known=file.acceptance_known,
            edge=None if file.edge is None else EdgeError(*file.edge),
        )
        _check_sound(fitted)
        return fitted
    except (KeyError, TypeError, ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        raise UsageError(f"{where}: invalid costs file ({error}); write one with `understudy latency fit`") from None


def _check_sound(costs: FittedCosts) -> None:
    """ValueError for values that no fit writes. Without bounds a damaged file could ask for billions of draft lengths."""
    if not 0 <= costs.max_gamma <= MOST_GAMMA:
        raise ValueError(f"most_gamma is {costs.max_gamma}; possible are 0 to {MOST_GAMMA}")
    if not 1 <= costs.min_requests <= costs.max_requests <= MOST_REQUESTS:
        raise ValueError(f"least_requests and most_requests must be from 1 to {MOST_REQUESTS:,}, ascending")
    if any(not 1 <= tokens <= gamma + 1 for gamma, tokens in costs.tokens_by_gamma.items()):
        raise ValueError("tokens_per_step must be from 1 to the draft length + 1")
    if any(not 1 <= low <= high <= MOST_REQUESTS for low, high in costs.measured_requests.values()):
        raise ValueError(f"measured_requests must be from 1 to {MOST_REQUESTS:,}, ascending")
    if any(not 0 < share <= 1 for share in costs.batch_share.values()):
        raise ValueError("batch_share must be above 0 and at most 1")
    if any(
        not 0 <= gamma <= costs.max_gamma
        for gamma in (*costs.measured_requests, *costs.tokens_by_gamma, *costs.batch_share)
    ):
        raise ValueError("a draft length is not from 0 to most_gamma")
    if not all(
        min(cell.requests, cell.batch, cell.step_seconds, cell.tokens_per_step) > 0 and (cell.spread or 0) >= 0
        for cell in costs.cells
    ):
        raise ValueError("a measured cell has a number that is not above 0")
    if costs.output_tokens is not None and not 0 < costs.output_tokens < np.inf:
        raise ValueError("output_tokens must be above 0")
    times = [costs.prefill, costs.first_token, costs.tokens_error, *(costs.max_throughput or ())]
    times += [
        *(astuple(costs.leave_one_out) if costs.leave_one_out else ()),
        *(astuple(costs.edge) if costs.edge else ()),
    ]
    requests_N = np.unique(np.geomspace(1, costs.max_requests, _CHECKED).round())
    steps_GN = costs.step_seconds(requests_N, np.arange(0 if costs.plain else 1, costs.max_gamma + 1)[:, None])
    if not (np.isfinite(steps_GN) & (steps_GN > 0)).all():
        raise ValueError("a step takes no time")
    if min(times) < 0:
        raise ValueError("a time, an error or a throughput is negative")


def _piecewise(part: _PiecewisePart | None, experts: Experts | None) -> Piecewise | None:
    if part is None:
        return None
    lists = (part.breakpoints, part.draft_breakpoints, part.tiles, part.drops, part.rises, part.powers)
    if any(len(values) > _MOST_TERMS or any(value <= 0 for value in values) for values in lists):
        raise ValueError("a breakpoint is not above 0, or there are too many")
    if not min(part.least_tokens, part.least_requests) > 0:
        raise ValueError("least_tokens and least_requests must be above 0")
    terms = Terms(
        part.breakpoints,
        part.draft_breakpoints,
        part.least_tokens,
        part.least_requests,
        part.tiles,
        part.drops,
        part.rises,
        part.powers,
    )
    return Piecewise(terms, part.values, experts)
