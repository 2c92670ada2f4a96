"""Whether the interval of `latency plan` holds the true least number of replicas: servers with known costs, swept with noise.

A server's step takes a + b n^p seconds at n requests, more with a draft, with a, b and p of a seed. A sweep measures it at five
loads with noise of 2%; costs are fitted to it, and replicas are planned for a rate and a p95. The true number is that at which
requests that are simulated on the known costs, step by step, meet the p95; beside it is that of the formula with the known costs.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.latency.costs.accuracy import MEASURED, StepAccuracy
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.costs.server_facts import ServerFacts
from pipeline.latency.load.plan import Goal, make_plan
from pipeline.latency.load.prediction import SimulatedLatency
from pipeline.latency.load.simulation import SimulatedReplica, Traces, simulate
from pipeline.latency.load.workload import constant_acceptance_workload, make_traces, server_capacity
from tests.benchmarks.figures import write

_LOADS, _NOISE, _ALPHA = (1, 2, 4, 8, 16), 0.02, 0.7
_GAMMAS = (0, 2)
_SERVERS, _REQUESTS = 50, 60_000


@dataclass(frozen=True)
class Known(ServerFacts):
    """`StepCosts` without an error."""

    base: float  # seconds
    each: float
    power: float
    draft: float  # share of a step, for each draft token
    max_requests: int
    max_gamma: int = max(_GAMMAS)
    draft_digest: None = None
    draft_shape: None = None
    notes: tuple[()] = ()
    load: None = None
    first_steps: int = 0

    def seconds(self, requests: ArrayLike, gamma: ArrayLike) -> NDArray[np.float64]:
        n, k = np.asarray(requests, dtype=np.float64), np.asarray(gamma)
        seconds: NDArray[np.float64] = self.base * (1 + self.draft * k) + self.each * n**self.power * (1 + 0.3 * k)
        return seconds

    def steps(self, cap: int, context: int, gammas: int | None = None) -> NDArray[np.float64]:
        gamma_G = np.arange((self.max_gamma if gammas is None else gammas) + 1)
        return self.seconds(np.arange(1, cap + 1), gamma_G[:, None])

    def prefills(self, tokens: ArrayLike) -> NDArray[np.float64]:
        return np.zeros(np.shape(tokens))

    @property
    def accuracy(self) -> StepAccuracy:
        return MEASURED

    def accuracy_at(self, gamma: int, batch: float) -> StepAccuracy:
        return MEASURED

    def covers(self, batch: int, gamma: int, context: int) -> bool:
        return batch <= self.max_requests

    def measured(self, gamma: int) -> bool:
        return gamma in _GAMMAS


def case(seed: int, loads: Sequence[int] = _LOADS, requests: int = 0) -> list[dict[str, Any]]:
    """True and planned replicas of each option of one server, swept at these loads: without a draft and with one. The true number
    is that of so many simulated requests; of the formula, where these are 0."""
    random, cap = np.random.default_rng(seed), max(loads)
    costs = (0.02, 0.02 * random.uniform(0.02, 0.2), random.uniform(0.6, 1.0), random.uniform(0.03, 0.1))
    known = Known(*costs, cap, measured_requests=dict.fromkeys(_GAMMAS, (1, cap)))
    fitted = fit_measurements(
        [
            Measurement(
                where="",
                requests=n,
                gamma=gamma,
                tokens_per_step=1.0,
                step_seconds=float(known.seconds(n, gamma)) * float(np.exp(random.normal(0, _NOISE))),
                isolated=True,
            )
            for n in loads
            for gamma in _GAMMAS
        ]
    )
    tokens_W = np.maximum(2, np.quantile(random.exponential(100, 4000), (np.arange(40) + 0.5) / 40).round().astype(int))
    workload = constant_acceptance_workload(_ALPHA, 100, tokens_W, max(_GAMMAS))
    # About what a long request takes without a draft in a half full batch, and requests for 1 to 8 replicas.
    seconds = float(np.quantile(tokens_W, 0.95) * known.seconds(cap / 2, 0)) * random.uniform(0.9, 1.6)
    rate = float(cap / known.seconds(cap, 0) / tokens_W.mean()) * random.uniform(0.8, 8.0)
    goal = Goal(rate, 0.95, seconds)
    exact: Any = known  # in the place of `StepCosts`
    plans = [{one.name: one for one in make_plan(workload, costs, cap, goal).options} for costs in (exact, fitted)]
    found = []
    for gamma in _GAMMAS:
        formula, planned = (one["none" if gamma == 0 else str(gamma)] for one in plans)
        true: dict[str, Any] = {"true": formula.replicas}
        if requests and formula.replicas is not None:
            limit = server_capacity(workload, exact, np.full(cap, gamma)).stability_limit
            true = _simulated(
                known, make_traces(workload, max(_GAMMAS)), gamma, goal, formula.replicas, limit, requests
            )
        found.append(
            {
                "seed": seed,
                "gamma": gamma,
                **true,
                "formula": formula.replicas,
                "planned": planned.replicas,
                "interval": [planned.least, planned.most],
                "error": planned.accuracy.left_out,
            }
        )
    return found


def _simulated(
    known: Known, traces: Traces, gamma: int, goal: Goal, near: int, limit: float, requests: int
) -> dict[str, Any]:
    """The least number of replicas whose p95 is met, searched from `near`, and whether a neighbour is within two standard errors
    of the target. Requests choose a replica at random, so one replica with its share of them is enough."""
    replica = SimulatedReplica(known.steps(known.max_requests, 0), known.prefills, lambda count: gamma)

    @cache
    def late(replicas: int) -> tuple[float, float]:
        """p95 above the target, in seconds, and its standard error."""
        rate = goal.rate / replicas
        if rate >= limit:
            return np.inf, 0.0
        seen = SimulatedLatency(simulate(replica, traces, rate, requests, seed=replicas).steady_state())
        return seen.quantile(goal.quantile) - goal.seconds, seen.standard_error(goal.quantile) or np.inf

    true = near
    while late(true)[0] > 0:
        true += 1
    while true > 1 and late(true - 1)[0] <= 0:
        true -= 1
    beside = [late(count) for count in (true - 1, true) if count]
    return {"true": true, "close": any(abs(over) < 2 * error for over, error in beside)}


def holds(found: dict[str, Any]) -> bool:
    """An unknown or impossible end, and a true number that does not exist, are infinite."""
    least, most = ((np.inf if end is None else end) for end in found["interval"])
    true = np.inf if found["true"] is None else found["true"]
    return bool(least <= true <= most)


def _summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    known = [one for one in found if None not in one["interval"]]
    widths = [one["interval"][1] - one["interval"][0] for one in known]
    return {
        "options": len(found),
        "held": sum(map(holds, found)),
        "exact": sum(one["true"] == one["planned"] for one in found),
        "formula_exact": sum(one["true"] == one["formula"] for one in found),
        "close": sum(bool(one.get("close")) for one in found),
        "no_end": len(found) - len(known),
        "median_width": float(np.median(widths)),
        "widest": max(widths),
        "most_off": max(abs(one["true"] - one["planned"]) for one in found if one["true"] and one["planned"]),
    }


def main() -> None:
    found = []
    # Torch, if it was imported, has started threads, which a fork would lose.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for one in pool.map(partial(case, requests=_REQUESTS), range(_SERVERS)):
            found += one
    figure = {**_summary(found), "servers": _SERVERS, "requests": _REQUESTS, "noise": _NOISE, "found": found}
    write("replica_plans", "python -m tests.benchmarks replica_plans", figure)


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    options = figure["options"]
    yield "## Replicas: plan compared with simulated servers\n"
    yield (
        f"{figure['servers']} servers with known step costs, each swept at loads {', '.join(map(str, _LOADS))} with noise of "
        f"{figure['noise']:.0%}, without a draft and with draft length {max(_GAMMAS)}. `latency plan` has the fitted costs. The "
        f"true number is the least at which p95 of {figure['requests']:,} simulated requests on the known costs meets the "
        f"target; in {figure['close']} of {options} options it or one fewer is within two standard errors of the target.\n"
    )
    yield "| options | true number in the interval | planned = true | formula with known costs = true | median width | widest |"
    yield "|---|---|---|---|---|---|"
    yield (
        f"| {options} | {figure['held']} | {figure['exact']} | {figure['formula_exact']} | {figure['median_width']:g} | "
        f"{figure['widest']} |"
    )
    yield (
        f"\nThe plan is off by at most {figure['most_off']} replicas. Intervals without an end, because an error is unknown or "
        f"no number is enough with it: {figure['no_end']}; they are not in the widths. "
        "That a target is impossible is told by the formula."
    )
