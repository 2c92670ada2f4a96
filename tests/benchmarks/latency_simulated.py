"""The closed form compared with simulation: measured, linear and mixture-of-experts step costs, at rising load."""

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from tests.benchmarks.figures import RESULTS, write

LOADS, CAP, TOKENS, TOKENS_OF_A_REGRET = (0.2, 0.4, 0.6, 0.79), 32, 12_000_000, 4_000_000
CAPS, TOKENS_OF_A_CAP = (1, 2, 4, 8, 16, 64), 6_000_000
POLICIES = {"plain": 0, "gamma 3": 3, "best by load": None}
_NEAR = 1.2  # relative to the smallest predicted mean; slower draft lengths cannot be the best
_NAMES = {  # in the table, of what the stored figures call otherwise
    "a line": "linear",
    "as they are": "single",
    "joined": "concatenated",
    "plain": "0",
    "gamma 3": "3",
    "best by load": "best by batch size",
}
_MEAN_AIM, _P95_AIM, _REGRET_AIM = 0.03, 0.05, 0.02


def main() -> None:
    write("latency_simulated", "python -m tests.benchmarks latency_sweep latency_simulated", _measure())


def _measure() -> dict[str, Any]:
    jobs = [
        (surface, name, step_costs, workload, traces)
        for surface, step_costs in _machines().items()
        for name, (workload, traces) in _workloads(step_costs.max_gamma).items()
    ]
    with ProcessPoolExecutor(
        mp_context=get_context("spawn")
    ) as pool:  # torch has started threads, which a fork would lose
        errors = [
            (job[:2], policy, pool.submit(_compared, *job[2:], gamma, load, CAP, TOKENS))
            for job in jobs
            for policy, gamma in POLICIES.items()
            for load in LOADS
        ]
        caps = [
            (name, cap, gamma, pool.submit(_compared, *job, gamma, load, cap, TOKENS_OF_A_CAP))
            for name, job in _for_caps(jobs).items()
            for cap in CAPS
            for gamma in (0, 3)
            for load in LOADS
        ]
        regrets = [(job[:2], load, pool.submit(_regret, *job[2:], load)) for job in jobs for load in LOADS]
        return {
            "rows": [
                {"machine": step_costs, "requests": name, "policy": policy, **found.result()}
                for (step_costs, name), policy, found in errors
            ],
            "caps": [
                {"requests": name, "cap": cap, "gamma": gamma, **found.result()} for name, cap, gamma, found in caps
            ],
            "regrets": [
                {"machine": step_costs, "requests": name, "load": load, "regret": found.result()}
                for (step_costs, name), load, found in regrets
            ],
            "simulated": TOKENS,
        }


def _for_caps(jobs: list[Any]) -> dict[str, tuple[Any, Any, Any]]:
    """Linear costs with every kind of requests, and with identical output lengths, the hardest for the formula."""
    from pipeline.latency.load.workload import constant_acceptance_workload, make_traces

    linear = {name: rest for machine, name, *rest in jobs if machine == "a line"}
    costs = next(iter(linear.values()))[0]
    identical = constant_acceptance_workload(0.7, 64, 64, costs.max_gamma)
    return {**linear, "identical": (costs, identical, make_traces(identical, 3))}


def _machines() -> dict[str, Any]:
    """Measured forward times, linear costs, and a target with 64 experts, 8 active per token."""
    from pipeline.latency.costs.fit import Coefficient, Experts, LinearCosts
    from pipeline.latency.costs.fitted import FittedCosts
    from pipeline.latency.costs.profile import profile_from_json

    def costs(mixture: Experts | None, **values: float) -> FittedCosts:
        named = {name: Coefficient(value, value, value) for name, value in values.items()}
        return FittedCosts(
            costs=LinearCosts(named, (), 0.0, 1.0, mixture),
            piecewise=None,
            prefill=0.02,
            max_gamma=8,
            max_requests=CAP,
            leave_one_out=None,
        )

    measured = json.loads((RESULTS / "latency_sweep.json").read_text())["figure"]["profile"]
    line = {"verify": 0.02, "draft": 0.002, "verify_each": 0.0005, "draft_each": 0.0002}
    return {
        "measured": profile_from_json(measured, "latency_sweep.json"),
        "a line": costs(None, **line),
        "experts": costs(Experts(8, 64), **line, experts=0.03),
    }


def _workloads(gammas: int) -> dict[str, tuple[Any, Any]]:
    """The quickstart's completions with the acceptance of each token, single and concatenated (1 to 6 of them)."""
    from pipeline.acceptance.examine import acceptance_probabilities
    from pipeline.drafts.plain import PlainDraft
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import Sampling
    from tests.benchmarks.refpair import find_pair

    pair = find_pair()
    _, draft = pair.load("float32")
    said = list(read_completions(pair.completions, {"examination"}, Sampling()))
    accepted = acceptance_probabilities(PlainDraft(draft, pair.vocabulary), said, Sampling(), Sampling(), 8192)
    own = [values[: item.length] for values, item in zip(accepted, said, strict=True)]
    random = np.random.default_rng(0)
    joined = [np.concatenate([own[one] for one in random.integers(len(own), size=random.integers(1, 7))]) for _ in own]
    prompts = np.array([len(item.prompt) for item in said])
    return {"as they are": _asked(own, prompts, gammas), "joined": _asked(joined, prompts, gammas)}


def _asked(accepted: list[Any], prompts: Any, gammas: int) -> tuple[Any, Any]:
    """The input of the formula and the input of the simulation."""
    from pipeline.acceptance.moments import rounds_variance
    from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds
    from pipeline.latency.load.simulation import Traces
    from pipeline.latency.load.workload import Workload

    lengths = np.array([len(values) for values in accepted])
    a_WT = np.zeros((len(accepted), lengths.max() + gammas))
    for row, values in enumerate(accepted):
        a_WT[row, : len(values)] = values
    user, plain_W = CONVENTIONS["user"], lengths - 1.0
    rounds = [expected_rounds(a_WT, lengths, gamma, user).rounds_B for gamma in range(1, gammas + 1)]
    variances = [rounds_variance(a_WT, lengths, gamma, user) for gamma in range(1, gammas + 1)]
    workload = Workload(
        prompts, lengths, np.vstack([plain_W, *rounds]), np.vstack([np.zeros_like(plain_W), *variances])
    )
    return workload, Traces(prompts, lengths, a_WT)


def _compared(
    step_costs: Any, workload: Any, traces: Any, gamma: int | None, load: float, cap: int, tokens: int
) -> dict[str, float]:
    from pipeline.latency.load.prediction import chosen_lengths, predict
    from pipeline.latency.load.workload import server_capacity

    lengths_N = chosen_lengths(workload, step_costs, cap, gamma)
    rate = load * server_capacity(workload, step_costs, lengths_N).stability_limit
    found = predict(workload, step_costs, lengths_N, [rate]).points[0].speculative
    seen = _simulated(step_costs, traces, lengths_N, rate, _requests(tokens, load, traces), seed=1)
    assert found is not None
    return {
        "load": load,
        "mean": float(seen.mean()),
        "mean_error": found.mean / float(seen.mean()) - 1,
        "p95_error": found.quantile(0.95) / float(np.quantile(seen, 0.95)) - 1,
    }


def _requests(tokens: int, load: float, traces: Any) -> int:
    """Fewer at low load, where the variance is small."""
    return round(tokens / float(traces.tokens_W.mean()) * load / max(LOADS))


def _simulated(step_costs: Any, traces: Any, lengths_N: Any, rate: float, requests: int, seed: int) -> Any:
    from pipeline.latency.load.simulation import SimulatedReplica, simulate

    context = round(float((traces.prompt_tokens_W + traces.tokens_W / 2).mean()))
    steps = step_costs.steps(len(lengths_N), context, step_costs.max_gamma)
    replica = SimulatedReplica(steps, step_costs.prefills, lambda count: int(lengths_N[count - 1]))
    return simulate(replica, traces, rate, requests, seed).steady_state()


def _regret(step_costs: Any, workload: Any, traces: Any, load: float) -> float:
    """Simulated mean latency with the schedule / with the best constant draft length - 1."""
    from pipeline.latency.load.prediction import chosen_lengths, predict
    from pipeline.latency.load.workload import server_capacity

    best_N = chosen_lengths(workload, step_costs, CAP)
    rate = load * server_capacity(workload, step_costs, best_N).stability_limit

    def mean(lengths_N: Any) -> float:
        return float(
            _simulated(step_costs, traces, lengths_N, rate, _requests(TOKENS_OF_A_REGRET, load, traces), seed=2).mean()
        )

    fixed = [np.full(CAP, gamma) for gamma in range(step_costs.max_gamma + 1)]
    stable = [one for one in fixed if rate < 0.98 * server_capacity(workload, step_costs, one).stability_limit]
    predicted = [predict(workload, step_costs, one, [rate]).points[0].speculative for one in stable]
    near = [
        one for one, found in zip(stable, predicted, strict=True) if found and found.mean < _NEAR * _least(predicted)
    ]
    return mean(best_N) / min(map(mean, near)) - 1


def _least(predicted: list[Any]) -> float:
    return min(float(found.mean) for found in predicted if found)


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Latency under load: closed form compared with simulation\n"
    yield (
        "Step costs: measured forward times of the reference pair, linear costs, and a target with 64 experts. Requests: the "
        "quickstart's examination completions with the measured acceptance of each token, single, and concatenated (one to six "
        f"completions per request). Each cell simulates requests of up to {figure['simulated'] / 1e6:.0f} million tokens (in "
        f"proportion to the load), Poisson arrivals, batch cap {CAP}. Load is offered load / capacity. Each cell shows the error "
        "of the formula in the mean and in p95.\n"
    )
    loads = sorted({row["load"] for row in figure["rows"]})
    yield "| step costs | requests | draft length | " + " | ".join(f"load {load:g}" for load in loads) + " |"
    yield "|---|---|---|" + "---|" * len(loads)
    keys = list(dict.fromkeys((row["machine"], row["requests"], row["policy"]) for row in figure["rows"]))
    for key in keys:
        own = {row["load"]: row for row in figure["rows"] if (row["machine"], row["requests"], row["policy"]) == key}
        cells = (f"{own[load]['mean_error']:+.1%}, {own[load]['p95_error']:+.1%}" for load in loads)
        yield f"| {' | '.join(_NAMES.get(name, name) for name in key)} | {' | '.join(cells)} |"
    yield (
        "\nOther batch caps, with linear costs; each cell shows the largest errors of the formula in the mean and in p95, of "
        f"draft lengths 0 and 3 and loads {', '.join(f'{load:g}' for load in loads)}. Identical: every output has 64 tokens.\n"
    )
    yield "| requests | " + " | ".join(f"cap {cap}" for cap in CAPS) + " |"
    yield "|---|" + "---|" * len(CAPS)
    for name in dict.fromkeys(row["requests"] for row in figure["caps"]):
        by_cap = [[row for row in figure["caps"] if (row["requests"], row["cap"]) == (name, cap)] for cap in CAPS]
        yield f"| {_NAMES.get(name, name)} | {' | '.join(', '.join(_largest(rows)) for rows in by_cap)} |"
    all_ = figure["rows"] + figure["caps"]
    mean, p95 = (max(abs(row[name]) for row in all_) for name in ("mean_error", "p95_error"))
    regret = max(one["regret"] for one in figure["regrets"])
    yield (
        f"\nLargest errors: mean **{mean:.1%}** (aim {_MEAN_AIM:.0%}), p95 **{p95:.1%}** (aim {_P95_AIM:.0%}). Simulated mean "
        f"latency of the schedule relative to the best constant draft length: at most **{regret:+.1%}** (aim {_REGRET_AIM:.0%})."
    )


def _largest(rows: list[dict[str, Any]]) -> Iterator[str]:
    for name in ("mean_error", "p95_error"):
        yield f"{max((row[name] for row in rows), key=abs):+.1%}"
