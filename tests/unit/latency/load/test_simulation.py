"""The simulated server: computed by hand without randomness, compared with the closed form otherwise."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.acceptance.moments import rounds_variance
from pipeline.acceptance.rounds import CONVENTIONS, expected_rounds
from pipeline.latency.load.capacity import RequestSizes, ServerCapacity
from pipeline.latency.load.queueing import latency
from pipeline.latency.load.simulation import SimulatedReplica, Traces, simulate


def _replica(step_N: list[float], gamma: int = 0, prefill: float = 0.0) -> SimulatedReplica:
    return SimulatedReplica(
        np.tile(np.array(step_N), (gamma + 1, 1)), lambda tokens: prefill * tokens, lambda count: gamma
    )


def _traces(tokens: list[int], acceptance: float = 0.0, prompt: int = 1) -> Traces:
    tokens_W = np.array(tokens)
    inside_WT = np.arange(max(tokens) + 8) < tokens_W[:, None]
    return Traces(np.full(len(tokens), prompt), tokens_W, np.where(inside_WT, acceptance, 0.0))


def test_a_request_alone_takes_its_prefill_and_its_steps() -> None:
    """Prefill emits the first token, each step one more."""
    served = simulate(_replica([0.5], prefill=0.1), _traces([4], prompt=20), rate=1e-6, requests=3, seed=0)

    np.testing.assert_allclose(served.first_token_R - served.arrived_R, 2.0, rtol=1e-6)
    np.testing.assert_allclose(served.finished_R - served.arrived_R, 2.0 + 3 * 0.5, rtol=1e-6)


def test_a_prefill_that_is_part_of_a_step_takes_one() -> None:
    """Chunked prefill: the first token comes with the first step, which takes longer in a full batch."""
    replica = replace(_replica([0.5, 2.0]), first_steps=1)
    alone = simulate(replica, _traces([4]), rate=1e-6, requests=3, seed=0)
    both = simulate(replica, _traces([4]), rate=1e9, requests=2, seed=0)

    np.testing.assert_allclose(alone.first_token_R - alone.arrived_R, 0.5, rtol=1e-6)
    np.testing.assert_allclose(alone.finished_R - alone.arrived_R, 4 * 0.5, rtol=1e-6)
    # The second one arrives in the first step of the other, which ends after 4 steps; then it is alone for its last.
    np.testing.assert_allclose(both.first_token_R, [0.5, 2.5], atol=1e-6)
    np.testing.assert_allclose(both.finished_R, [6.5, 7.0], atol=1e-6)


@pytest.mark.parametrize(("acceptance", "rounds"), [(1.0, 3), (0.0, 8)])
def test_accepted_tokens_save_steps(acceptance: float, rounds: int) -> None:
    """Nine tokens: one by prefill, then three per step if both draft tokens are accepted, or one per step."""
    served = simulate(_replica([1.0], gamma=2), _traces([9], acceptance), rate=1e-6, requests=2, seed=0)

    np.testing.assert_allclose(served.finished_R - served.arrived_R, rounds, rtol=1e-6)


def test_an_output_of_one_token_needs_no_step() -> None:
    """It ends with its prefill and frees its place."""
    served = simulate(_replica([9.0], prefill=1.0), _traces([1]), rate=1e9, requests=5, seed=0)

    np.testing.assert_allclose(served.finished_R, [1, 2, 3, 4, 5], atol=1e-6)


@pytest.mark.parametrize("cap", [2, 8])
def test_an_output_of_one_token_frees_its_place_at_once(cap: int) -> None:
    """Outputs of 1 or 11 tokens, steps of 1 s, free prefills: equal to a naive step-by-step simulation."""
    traces = _traces([1, 11])
    served = simulate(_replica([1.0] * cap), traces, rate=0.15 * cap, requests=400, seed=3)

    waiting, batch, now, finished = [], list[list[int]](), 0.0, np.empty(400)
    coming = list(zip(served.arrived_R, range(400), strict=True))
    while coming or waiting or batch:
        now = max(now, coming[0][0]) if not batch and not waiting else now
        while coming and coming[0][0] <= now:
            waiting.append(coming.pop(0)[1])
        new, waiting = waiting[: cap - len(batch)], waiting[cap - len(batch) :]
        for request in new:
            finished[request] = now
            if traces.tokens_W[served.trace_R[request]] > 1:
                batch.append([request, 10])
        now += 1.0 if batch else 0.0
        for one in batch:
            one[1] -= 1
            finished[one[0]] = now
        batch = [one for one in batch if one[1]]

    np.testing.assert_allclose(served.finished_R, finished)


@pytest.mark.parametrize("seed", range(4))
def test_every_request_takes_its_steps(seed: int) -> None:
    """Ten for eleven tokens, also if requests of one token start at the same time."""
    traces = _traces([1, 11])
    served = simulate(_replica([1.0] * 8, prefill=1.0), traces, rate=1e9, requests=8, seed=seed)
    long_R = traces.tokens_W[served.trace_R] > 1

    assert ((served.finished_R - served.first_token_R)[long_R] >= 10 - 1e-6).all()
    np.testing.assert_array_equal(served.finished_R[~long_R], served.first_token_R[~long_R])


def test_the_batch_cap_is_respected() -> None:
    """The first step has one request, the next two; from then on places become free in turn."""
    served = simulate(_replica([1.0, 1.0]), _traces([5]), rate=1e9, requests=7, seed=0)

    np.testing.assert_allclose(served.finished_R, [4, 5, 8, 9, 12, 13, 16], atol=1e-6)


def test_requests_go_to_the_replica_with_the_fewest() -> None:
    """Four requests on four replicas do not slow each other."""
    served = simulate(_replica([1.0, 9.0]), _traces([5]), rate=1e9, requests=4, seed=0, replicas=4)

    np.testing.assert_allclose(served.finished_R, 4.0, atol=1e-6)


def test_the_draft_length_follows_the_batch() -> None:
    """gamma 1 at batch size 1, gamma 0 at 2: steps take the time of the chosen draft length."""
    replica = SimulatedReplica(
        np.array([[1.0, 1.0], [3.0, 30.0]]), lambda tokens: 0.0 * tokens, lambda count: 2 - count
    )
    alone = simulate(replica, _traces([3], 1.0), rate=1e-6, requests=1, seed=0)
    both = simulate(replica, _traces([5], 1.0), rate=1e9, requests=3, seed=0)

    assert pytest.approx(3.0, rel=1e-6) == float((alone.finished_R - alone.arrived_R)[0])
    assert np.isfinite(both.finished_R).all()
    assert float(both.finished_R.max()) < 30


def test_a_seed_determines_the_simulation() -> None:
    """Another seed gives another result."""
    one, again, other = (simulate(_replica([1.0] * 4, 2), _traces([9, 5], 0.5), 0.3, 50, seed) for seed in (1, 1, 2))

    np.testing.assert_array_equal(one.finished_R, again.finished_R)
    assert not np.array_equal(one.finished_R, other.finished_R)


@pytest.mark.parametrize(
    ("load", "cap", "prefill", "requests"),
    [
        (0.3, 16, 1e-5, 6_000),
        (0.7, 16, 2e-4, 12_000),
        (0.6, 4, 2e-4, 40_000),  # waits for a place vary more
        pytest.param(0.6, 1, 1e-5, 40_000, marks=pytest.mark.long),
    ],
)
def test_the_closed_form_predicts_it(load: float, cap: int, prefill: float, requests: int) -> None:
    """Mean, p50, p95 and p99 within 3%, for many requests of varying length and a step time with a jump;
    prefills take almost none or a third of the work. Seeded, so it cannot fail by chance."""
    random, gamma, convention = np.random.default_rng(0), 3, CONVENTIONS["user"]
    tokens_W = random.integers(10, 120, 200)
    inside_WT = np.arange(tokens_W.max() + gamma) < tokens_W[:, None]
    acceptance_WT = np.where(inside_WT, random.beta(3, 1, inside_WT.shape), 0.0)
    traces = Traces(random.integers(10, 300, 200), tokens_W, acceptance_WT)
    count_N = np.arange(1, cap + 1)
    step_N = 0.02 + 0.0004 * count_N + 0.008 * (count_N > 6)
    steps_W = expected_rounds(acceptance_WT, tokens_W, gamma, convention).calls_B - 1
    variance_W = rounds_variance(acceptance_WT, tokens_W, gamma, convention)
    capacity = ServerCapacity(steps_W.mean() * step_N, step_N, float(np.mean(prefill * traces.prompt_tokens_W)))
    replica = SimulatedReplica(np.tile(step_N, (gamma + 1, 1)), lambda prompt: prefill * prompt, lambda count: gamma)
    rate = load * capacity.stability_limit

    found = latency(rate, capacity, RequestSizes(steps_W / steps_W.mean(), variance_W / steps_W.mean() ** 2))
    seen = simulate(replica, traces, rate, requests, seed=1).steady_state()

    assert found is not None
    assert pytest.approx(seen.mean(), rel=0.03) == found.mean
    for quantile in (0.5, 0.95, 0.99):
        assert pytest.approx(np.quantile(seen, quantile), rel=0.03) == found.quantile(quantile)
