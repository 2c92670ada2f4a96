"""Completions by servers, against stand-ins that speak vLLM's protocol on real sockets: what is stored, whatever fails."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.corpus.prompt_store import Prompt
from pipeline.errors import UnderstudyError, UsageError
from pipeline.generation.completion_plan import plan_completions
from pipeline.generation.completion_store import read_completions, write_shard
from pipeline.generation.distributions import unpack
from pipeline.generation.journal import read_journal
from pipeline.generation.prompt_positions import PromptPositions
from pipeline.generation.sample_test import stored_test
from pipeline.generation.served import generate_by_servers
from pipeline.generation.served_completion import Served
from pipeline.progress import Progress
from pipeline.servers.connect import connect, identify
from pipeline.servers.identity import OtherWeights
from pipeline.servers.limits import BudgetSpent
from pipeline.servers.pool import EndpointsDown
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import quiet
from tests.served import (
    NEW,
    QUICK,
    check_greedy,
    check_log_p,
    config_of,
    generate,
    generation,
    greedy,
    identity_of,
    settings_of,
    some_prompts,
)
from tests.standin_server import EOS, FAULTS, VOCABULARY, Fault, StandIn, log_p_of, overloaded, running


def test_greedy_completions_are_the_models(tmp_path: Path) -> None:
    """Ids, the length at EOS, the tokens past the end of examination prompts, log p 0, the likeliest tokens."""
    with running(StandIn()) as server:
        found = generate(config_of(server), some_prompts(12, "examination"), tmp_path / "out")
    assert 12 == len(found)
    assert {prompt.id: (prompt.conversation, prompt.mode) for prompt in some_prompts(12, "examination")} == {
        item.id: (item.conversation, item.mode) for item in found
    }
    check_greedy(found)


@pytest.mark.parametrize(
    ("sampling", "processed", "speculates"),
    [
        (Sampling(), False, False),
        (Sampling(), True, False),
        (Sampling(), False, True),
        (Sampling(0.7, top_p=0.9), True, False),
        (Sampling(0.7, top_k=10, top_p=0.8), False, False),
        (Sampling(0.7, top_k=10), False, True),
        (GREEDY, True, False),
    ],
)
def test_log_p_is_exact_at_the_deployments_sampling(
    tmp_path: Path, sampling: Sampling, processed: bool, speculates: bool
) -> None:
    """Whatever the server's log-probabilities mean, log p is that of the distribution as sampled from, and the stored
    distributions are those at temperature 1."""
    with running(StandIn(processed=processed, speculates=speculates)) as server:
        found = generate(config_of(server), some_prompts(4, "dev"), tmp_path / "out", sampling)
    check_log_p(found, sampling)


def test_positions_of_prompts_are_scored(tmp_path: Path) -> None:
    """One request for each prompt, nothing is generated, and they are not tested as answers."""
    prompts = some_prompts(16)
    positions = PromptPositions.of(prompts, NEW)

    async def score(server: StandIn) -> None:
        config = config_of(server)
        identity = await identify(config, "v1", "float32", [], quiet())
        (tmp_path / "out").mkdir()
        async with connect(config, identity, VOCABULARY, quiet(), QUICK) as (target, abilities):
            served = Served(target, abilities, identity, config.logprobs, VOCABULARY, [EOS])
            settings = settings_of(Sampling(), lookahead=0, distribution_selection="sampled")
            await generate_by_servers(served, positions.requests, settings, tmp_path / "out", quiet(), logged=positions)

    with running(StandIn()) as server:
        asyncio.run(score(server))
    found = list(read_completions(tmp_path / "out"))
    assert {prompt.id for prompt in prompts} == {item.id for item in found}
    assert 0 == stored_test(tmp_path / "out").recorded.completions
    for item in found:
        whole = prompts[int(item.id, 16)].tokens
        assert [*item.prompt, *item.tokens] == list(whole)
        assert NEW == item.length == len(item.tokens)
        ids_NK, log_p_NK = unpack(item.entries, item.certain, item.rest_log_p, VOCABULARY)
        for place in range(NEW):
            exact = log_p_of(whole[: len(item.prompt) + place])
            assert exact[whole[len(item.prompt) + place]] == pytest.approx(item.log_p[place], abs=1e-5)
            assert exact[ids_NK[place]] == pytest.approx(log_p_NK[place], abs=0.05)


@pytest.mark.parametrize(
    ("sampling", "options", "said"),
    [
        (Sampling(0.7), {}, "--logprobs-mode processed_logprobs"),
        (Sampling(1.0, top_p=0.9), {}, "--logprobs-mode processed_logprobs"),
        (Sampling(1.0, top_k=50), {}, "--logprobs-mode processed_logprobs"),
        (Sampling(0.7), {"processed": True, "speculates": True}, "give an endpoint without speculation"),
        (Sampling(), {"max_logprobs": 10}, "start the server with --max-logprobs 20"),
    ],
)
def test_what_the_server_cannot_give_is_refused(
    tmp_path: Path, sampling: Sampling, options: dict[str, Any], said: str
) -> None:
    """In one line that names the flag, before anything is generated."""
    with running(StandIn(**options)) as server, pytest.raises(UsageError, match=said):
        generate(config_of(server), some_prompts(2), tmp_path / "out", sampling)


SLOW = {"silence", "one byte at a time"}


@pytest.mark.parametrize(
    "faults", [["silence"], ["one byte at a time"], sorted(set(FAULTS) - SLOW)], ids=["silence", "slow bytes", "quick"]
)
def test_faults_lose_and_double_nothing(tmp_path: Path, faults: list[str]) -> None:
    """Every fourth answer of one of two endpoints is damaged, in each of these ways: each prompt has its one completion, and it
    is the right one."""
    prompts, injected = some_prompts(12 if len(faults) == 1 else 120), Counter[str]()

    def seldom(number: int) -> Fault | None:
        if number % 4 < 3:
            return None
        injected[name := faults[number // 4 % len(faults)]] += 1
        return FAULTS[name]

    with running(StandIn()) as good, running(StandIn()) as bad:
        config = config_of(good, bad, timeout_seconds=0.5 if len(faults) == 1 else 20.0)
        identity = identity_of(config)
        good.latency = 0.05  # so that the other one is asked for most of them
        bad.faults = seldom
        found = generate(config, prompts, tmp_path / "out", identity=identity)
    assert [item.id for item in plan(prompts)] == [item.id for item in found]
    assert all(greedy(item.prompt.tolist(), NEW) == item.tokens.tolist() for item in found)
    assert set(faults) == set(injected)


def plan(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Prompts in the order in which they are stored."""
    return [request.prompt for request in plan_completions(prompts, GREEDY)]


def test_a_run_that_ends_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    """The second run asks for no completion that the first one received, and stores the same as an undisturbed run."""
    out = tmp_path / "out"
    with running(StandIn()) as server:
        config = config_of(server, patience_seconds=1.0, timeout_seconds=4.0, concurrency=2)
        identity = identity_of(config)
        after = len(server.requests) + 9 + 14  # what `connect` asks, then some completions
        server.faults = lambda number: FAULTS["500"] if number >= after else None
        with pytest.raises(
            EndpointsDown, match=r"the endpoint is down for 1 s .*EngineCore died.*; \d+ of 24 completions are"
        ):
            generate(config, some_prompts(24), out, identity=identity)
        received = {tuple(prompt) for prompt, _ in server.served}
        kept = len(read_journal(out / "shard-00001.journal")) + 8
        server.faults = lambda number: None
        server.served.clear()
        found = generate(config, some_prompts(24), out, identity=identity)
        asked_again = [prompt for prompt, _ in server.served if tuple(prompt) in received and len(prompt) < 32]
    assert 24 == len(found)
    assert 8 < kept < 24
    assert [] == asked_again
    assert all(greedy(item.prompt.tolist(), NEW) == item.tokens.tolist() for item in found)
    assert [] == list(out.glob("*.journal"))


def test_other_weights_in_between_are_found_and_dropped(tmp_path: Path) -> None:
    """A server that serves another model from some request on, without a failed request: the run ends, and nothing that the
    other model made is stored."""
    out = tmp_path / "out"
    with running(StandIn()) as good, running(StandIn(latency=0.01)) as bad:
        config = config_of(good, bad)
        identity = identity_of(config)
        start = len(bad.requests)

        def swap(number: int) -> Fault | None:
            bad.weights = 1 if number >= start + 9 + 5 else 0
            return None

        bad.faults = swap
        with pytest.raises(OtherWeights, match=r"serves other weights .*; \d+ completions that it made are dropped"):
            generate(config, some_prompts(40), out, identity=identity)
    stored = list(read_completions(out))
    assert all(greedy(item.prompt.tolist(), NEW) == item.tokens.tolist() for item in stored)
    for journal in out.glob("*.journal"):
        assert all(record.facts["endpoints"] == [good.url] for record in read_journal(journal))


def test_a_restarted_server_with_other_weights_is_not_asked_again(tmp_path: Path) -> None:
    """After failures an endpoint must show its weights before it gets requests."""
    with running(StandIn()) as good, running(StandIn()) as bad:
        config = config_of(good, bad)
        identity = identity_of(config)
        start = len(bad.requests) + 9

        def restart(number: int) -> Fault | None:
            if start <= number < start + 5:
                return FAULTS["500"]
            bad.weights = 1 if number >= start + 5 else 0
            return None

        bad.faults = restart
        good.latency = 0.1
        with pytest.raises(OtherWeights, match="serves other weights than at the start of the run"):
            generate(config, some_prompts(120), tmp_path / "out", identity=identity)


def _made_by(out: Path, prompts: Sequence[Prompt], shard: int, weights: int = 0) -> list[bool]:
    """Of every greedy completion on disk, stored or in a journal, whether these weights made it."""
    pairs = [(item.prompt.tolist(), item.tokens.tolist()) for item in read_completions(out)]
    for path in out.glob("*.journal"):
        first = shard * int(path.stem.removeprefix("shard-"))
        for record in read_journal(path):
            pairs.append((list(plan(prompts)[first + record.number].tokens), record.arrays["tokens"].tolist()))
    return [greedy(prompt, NEW, weights=weights) == tokens for prompt, tokens in pairs]


@pytest.mark.parametrize("closed", [False, True])
def test_an_endpoint_that_changes_its_weights_and_fails_leaves_nothing(tmp_path: Path, closed: bool) -> None:
    """It makes some completions of another model before it fails. It comes back with that model, or never: what it made is
    dropped; with the old weights the next run ends well."""
    out = tmp_path / "out"
    with running(StandIn(latency=0.02)) as good, running(StandIn()) as bad:
        config = config_of(good, bad, timeout_seconds=2.0)
        identity = identity_of(config)
        start = len(bad.requests) + 9

        def restart(number: int) -> Fault | None:
            bad.weights = 1 if number >= start + 6 else 0
            return FAULTS["500"] if number >= start + 16 and (closed or number < start + 22) else None

        bad.faults = restart
        with pytest.raises(OtherWeights, match=r"; \d+ completions that it made are dropped; \d+ of 60 .* are kept"):
            generate(config, some_prompts(60), out, identity=identity, shard=30)
        kept = _made_by(out, some_prompts(60), 30)
        bad.weights, bad.faults = 0, lambda number: None
        bad.served.clear()
        good.served.clear()
        found = generate(config, some_prompts(60), out, identity=identity, shard=30)
    assert (True, True) == (len(kept) > 5, all(kept))
    assert 60 == len(found) == sum(_made_by(out, some_prompts(60), 30))


@pytest.mark.parametrize(
    ("sampling", "processed", "weights"),
    [
        (GREEDY, False, 0),
        (GREEDY, False, 1),
        (Sampling(), False, 1),
        (Sampling(0.7), True, 0),
        (Sampling(0.7, 10), False, 1),
    ],
)
def test_a_journal_of_another_model_is_not_continued(
    tmp_path: Path, sampling: Sampling, processed: bool, weights: int
) -> None:
    """A run is killed; some of its completions were made by weights that the server no longer has. Those of the target's weights
    are not asked for again."""
    out = tmp_path / "out"
    with running(StandIn(processed=processed)) as server:
        config = config_of(server, patience_seconds=0.5)
        identity = identity_of(config)
        after = len(server.requests) + 6

        def swap(number: int) -> Fault | None:
            server.weights = weights if number >= after else 0
            return FAULTS["500"] if number >= after + 16 else None

        server.faults = swap
        with pytest.raises(EndpointsDown):
            generate(config, some_prompts(24), out, sampling, identity, shard=24)
        kept = len(read_journal(out / "shard-00000.journal"))
        server.weights, server.faults = 0, lambda number: None
        server.served.clear()
        found = generate(config, some_prompts(24), out, sampling, identity, shard=24)
        asked = sum(len(prompt) < 32 for prompt, _ in server.served)
    assert 24 == len({item.id for item in found}) == len(found)
    assert 4 < kept < 20
    assert asked == (24 if weights else 24 - kept)


def test_a_shard_that_cannot_be_written_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk while a shard is stored ends the run, even if the disk is free again a moment later."""
    failed: list[str] = []

    def write(directory: Path, name: str, rows: Any, facts: Any) -> None:
        if not failed:
            failed.append(name)
            raise OSError(28, "No space left on device")
        write_shard(directory, name, rows, facts)

    monkeypatch.setattr("pipeline.generation.open_shard.write_shard", write)
    with running(StandIn()) as server, pytest.raises(OSError, match="No space left"):
        generate(config_of(server), some_prompts(40), tmp_path / "out")


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    """Ctrl-C cancels the requests in flight; the journals have all the others."""
    out = tmp_path / "out"
    with running(StandIn(latency=0.01)) as server:
        config = config_of(server)
        identity = identity_of(config)
        before = len(server.served)

        async def interrupt(run: Any) -> None:
            task = asyncio.create_task(run)
            while len(server.served) < before + 2 + 12:
                await asyncio.sleep(0.005)
            task.cancel()
            await task

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(interrupt(generation(config, identity, some_prompts(60), out, GREEDY, QUICK, {"shard": 32})))
        kept = len(_made_by(out, some_prompts(60), 32))
        received = len(server.served) - before - 2
        server.served.clear()
        found = generate(config, some_prompts(60), out, identity=identity, shard=32)
        asked = sum(len(prompt) < 32 for prompt, _ in server.served)
    assert 12 - 4 <= kept <= received
    assert (60, 60 - kept) == (len(found), asked)


def test_an_endpoint_that_fails_is_left_out_of_the_identity(capsys: pytest.CaptureFixture[str]) -> None:
    """It lists its model, but computes nothing: the others identify the target, and a warning names it. A server that is busy for
    a moment is asked again."""
    busy = overloaded("0.01")
    with running(StandIn()) as bad, running(StandIn()) as good, running(StandIn()) as late:
        bad.faults = lambda number: FAULTS["500"]
        good.faults = lambda number: busy if number == 2 else None
        late.faults = lambda number: FAULTS["too few tokens"] if number == 0 else None
        config = config_of(bad, good, late)
        found = asyncio.run(identify(config, "v1", "float32", [], Progress(terminal=False)))
        good.faults = lambda number: None
        assert found.digest == identity_of(config_of(good)).digest
    said = capsys.readouterr().err
    assert (True, 1) == (f"warning: {bad.url}: HTTP 500: EngineCore died; continuing without" in said, said.count("\n"))


def test_servers_with_other_flags_are_refused(tmp_path: Path) -> None:
    """What their log-probabilities mean is said in words."""
    with running(StandIn()) as one, running(StandIn(processed=True)) as other:
        config = config_of(one, other)
        said = r"its log-probabilities are (raw|processed); those of the other endpoints are (raw|processed); start all"
        with pytest.raises(UsageError, match=said):
            generate(config, some_prompts(2), tmp_path / "out")


def test_two_endpoints_with_different_weights_are_refused() -> None:
    """Nothing is generated by two models."""
    with (
        running(StandIn()) as one,
        running(StandIn(weights=1)) as other,
        pytest.raises(UsageError, match="serve different weights"),
    ):
        identity_of(config_of(one, other))


def test_a_pause_that_a_server_asks_for_is_obeyed(tmp_path: Path) -> None:
    """After 429 with Retry-After nothing is asked before that time."""
    times: list[float] = []
    with running(StandIn()) as server:
        config = config_of(server, concurrency=1)
        identity = identity_of(config)
        start = len(server.requests) + 9

        def pause(number: int) -> Fault | None:
            times.append(time.monotonic())
            return _overloaded if number == start + 3 else None

        _overloaded = overloaded("0.4")
        server.faults = pause
        generate(config, some_prompts(8), tmp_path / "out", identity=identity)
    refused = 9 + 3
    assert times[refused + 1] - times[refused] >= 0.4


def test_a_gateway_that_refuses_every_third_request_for_a_moment(tmp_path: Path) -> None:
    """The checks of an endpoint take many requests; a pause in between does not begin them again."""
    with running(StandIn(faults=lambda number: overloaded("0.01") if number % 3 == 2 else None)) as server:
        config = config_of(server)
        found = generate(config, some_prompts(10), tmp_path / "out", identity=identity_of(config))
    assert 10 == len(found)


def test_an_answer_to_another_prompt_is_told_with_its_server(
    tmp_path: Path,
) -> None:
    """Also while the endpoints are admitted, before anything is generated."""
    with running(StandIn()) as right:
        identity = identity_of(config_of(right))
    with running(StandIn(faults=lambda number: FAULTS["answer to another prompt"])) as server:
        config = config_of(server, patience_seconds=0.5)
        said = rf"\({server.url}: the answer is to another prompt\)"
        with pytest.raises(EndpointsDown, match=said):
            generate(config, some_prompts(2), tmp_path / "out", identity=identity)


def test_a_slow_endpoint_loses_its_requests(tmp_path: Path) -> None:
    """What one endpoint does not answer in ten times the usual time is asked of another one."""
    timing = replace(QUICK, slow_at_least=0.2)
    with running(StandIn()) as good, running(StandIn()) as slow:
        config = config_of(good, slow)
        identity = identity_of(config)
        start = len(slow.requests) + 9 + 60
        slow.faults = lambda number: FAULTS["silence"] if number >= start else None
        found = generate(config, some_prompts(240), tmp_path / "out", identity=identity, timing=timing)
    assert 240 == len(found)


def test_the_budget_is_never_exceeded(tmp_path: Path) -> None:
    """The run ends before a request that could exceed it, and keeps what it has."""
    out = tmp_path / "out"
    with running(StandIn()) as server:
        config = config_of(server, token_budget=300)
        identity = identity_of(config)
        server.served.clear()
        with pytest.raises(BudgetSpent, match=r"generate\.server\.token_budget = 300"):
            generate(config, some_prompts(60), out, identity=identity)
        completions = [one for one in server.served if len(one[0]) < 32]  # not those of `connect`
    asked = sum(len(prompt) + len(tokens) for prompt, tokens in completions)
    assert 200 < asked <= 300
    assert len(completions) == len(list(read_completions(out))) + sum(
        len(read_journal(path)) for path in out.glob("*.journal")
    )


def test_no_more_tokens_a_second_than_allowed(tmp_path: Path) -> None:
    """40 requests of about 17 tokens at 2,000 tokens a second take at least a third of a second."""
    with running(StandIn()) as server:
        config = config_of(server, tokens_per_second=2000, concurrency=16)
        identity = identity_of(config)
        began = time.monotonic()
        generate(config, some_prompts(40), tmp_path / "out", identity=identity)
    assert time.monotonic() - began > 39 * 16 / 2000


def test_a_stop_token_that_the_pair_does_not_know_is_named(tmp_path: Path) -> None:
    """The server's generation config ends completions at a token that the tokenizer's directory does not list."""
    with running(StandIn()) as server:
        config = config_of(server)
        identity = identity_of(config)

        async def run() -> None:
            async with connect(config, identity, VOCABULARY, quiet()) as (target, abilities):
                served = Served(target, abilities, identity, 20, VOCABULARY, [5])
                requests = plan_completions(some_prompts(60), GREEDY)
                await generate_by_servers(served, requests, settings_of(GREEDY), tmp_path, quiet())

        with pytest.raises(UsageError, match="ended a completion at token 7, which is not a stop token of the pair"):
            asyncio.run(run())


def test_completions_that_are_no_samples_are_found(tmp_path: Path) -> None:
    """A sampler that uses another temperature than the one it was asked for, with honest log-probabilities: the run ends, and
    the shard is not stored. Chance of missing it: the difference is more than 12 standard errors."""
    with running(StandIn()) as server:
        config = config_of(server)
        identity = identity_of(config)
        server.sampler_temperature = 0.3
        with pytest.raises(UnderstudyError, match="the completions are not samples of the log-probabilities"):
            generate(config, some_prompts(160), tmp_path / "out", Sampling(), identity, shard=160)
    assert [] == list(read_completions(tmp_path / "out"))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=20)])
def test_samples_are_taken_for_samples(tmp_path: Path, sampling: Sampling) -> None:
    """45 completions of an honest server, in three shards. Chance of a false alarm: below 1 in 100,000."""
    with running(StandIn()) as server:
        assert 45 == len(generate(config_of(server), some_prompts(45), tmp_path / "out", sampling, shard=15))
