"""What is asked of a live engine: greedy completions with counts, log p of known tokens, and where the text first differs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.canary.asking import Asked, Engine, ask
from pipeline.canary.examined import ExaminedRun, KnownSequence
from pipeline.config.server import Api
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.engines import asking_of
from pipeline.servers.target import ServedModel
from tests.served import config_of, greedy
from tests.standin_llama import StandInLlama
from tests.standin_server import EOS, VOCABULARY, Speculation, StandIn, log_p_of, running
from tests.standin_sglang import SglangStandIn

LIMIT = 12


def examined(prompts: int = 3) -> ExaminedRun:
    """Of the law of weights 0."""
    texts = [(np.arange(20 + n, 28 + n, dtype=np.int32), f"p{n}") for n in range(prompts)]
    stored: list[Any] = [
        SimpleNamespace(
            id=name, prompt=prompt, tokens=np.array(tokens := greedy(prompt.tolist(), LIMIT)), length=len(tokens)
        )
        for prompt, name in texts
    ]
    known = [_known(item.prompt.tolist(), item.tokens.tolist()) for item in stored]
    nothing: Any = None
    return ExaminedRun(draft=nothing, completions=stored, known=known, max_tokens=LIMIT)


def _known(prompt: list[int], tokens: list[int]) -> KnownSequence:
    ids = [*prompt, *tokens]
    log_p = [float(log_p_of(ids[:at])[ids[at]]) for at in range(len(prompt), len(ids))]
    return KnownSequence(ids, len(prompt), np.array(log_p), np.zeros(len(log_p)))


def asked(server: StandIn, wanted: ExaminedRun, api: Api = "vllm") -> Asked:
    async def one() -> Asked:
        settings = config_of(server)
        endpoint = Endpoint(settings.endpoints[0], settings)
        await endpoint.open()
        try:
            engine = Engine(endpoint, asking_of(api, server.model, VOCABULARY), 2)
            return await ask(engine, ServedModel("target", "/t", None, None), wanted, [EOS])
        finally:
            await endpoint.close()

    return asyncio.run(one())


def test_the_right_target() -> None:
    """Completions are the stored ones, log p is as known, and each answer has its counts. Few requests run at a time."""
    speculation = Speculation(lambda prefix: log_p_of(prefix, 1), gamma=3)
    with running(StandIn(speculation=speculation, latency=0.01)) as server:
        found = asked(server, examined())
    assert [] == found.divergences
    assert found.difference == pytest.approx(0.0, abs=1e-6)
    assert found.scored == sum(len(one.log_p_N) for one in examined().known)
    rounds = [
        speculation.rounds(log_p_of, item.prompt.tolist(), item.tokens.tolist()) for item in examined().completions
    ]
    assert [len(one) for one in rounds] == [one.counts.drafts for one in found.emitted if one.counts]
    assert server.most_at_once == 2


def _others_later(prefix: Sequence[int]) -> NDArray[np.float64]:
    """Other weights after the first token of a completion."""
    return log_p_of(prefix, 1 if len(prefix) > 8 else 0)


def test_other_weights() -> None:
    """Log p differs by much, and so does the text; the gap is the live target's, after the tokens that are the same."""
    with running(StandIn(law=_others_later)) as server:
        found = asked(server, examined())
    assert found.difference is not None
    assert found.difference > 0.5
    first = found.divergences[0]
    assert first.position == 1
    prompt = examined().completions[0].prompt.tolist()
    log_p = log_p_of([*prompt, *greedy(prompt, LIMIT)[: first.position]], 1)
    assert first.gap == pytest.approx(abs(log_p[first.emitted] - log_p[first.stored]), abs=1e-6)


def test_an_engine_that_emits_what_its_own_log_p_exclude() -> None:
    """As with a corrupted cache: log p of known tokens is as recorded, and the stored token is above the emitted one."""
    with running(StandIn(emits=_others_later)) as server:
        found = asked(server, examined())
    assert found.difference == pytest.approx(0.0, abs=1e-6)
    assert {True} == {one.against for one in found.divergences}
    with running(StandIn(law=_others_later)) as server:
        assert {False} == {one.against for one in asked(server, examined()).divergences}


def test_an_answer_that_ends_elsewhere_has_no_gap() -> None:
    """There is no other token to compare with."""
    wanted = examined(1)
    item = wanted.completions[0]
    with running(StandIn()) as server:
        longer: Any = SimpleNamespace(**vars(item) | {"tokens": np.append(item.tokens, 3), "length": item.length + 1})
        found = asked(server, replace(wanted, completions=[longer], max_tokens=item.length))
        assert [] == found.divergences  # beyond what is asked for
        cut: Any = SimpleNamespace(**vars(item) | {"length": item.length - 1})
        (only,) = asked(server, replace(wanted, completions=[cut])).divergences
    assert (item.length - 1, None, None) == (only.position, only.stored, only.gap)


def test_log_p_that_was_stored_coarsely_is_compared_within_its_bound() -> None:
    """A difference within the bound is none; a token without a bound is not compared."""
    wanted = examined(1)
    (known,) = wanted.known
    off_N = np.full(len(known.log_p_N), 0.5)
    bound_N = np.where(np.arange(len(off_N)) == 0, np.inf, 0.5)
    with running(StandIn()) as server:
        coarse = KnownSequence(known.ids, known.start, known.log_p_N + off_N, bound_N)
        found = asked(server, replace(wanted, known=[coarse]))
        further = KnownSequence(known.ids, known.start, known.log_p_N + off_N + 0.25, bound_N)
        other = asked(server, replace(wanted, known=[further]))
    assert (len(off_N) - 1, pytest.approx(0.0, abs=1e-6)) == (found.scored, found.difference)
    assert other.difference == pytest.approx(0.25, abs=1e-6)


def test_an_engine_that_scores_no_prompt_is_named() -> None:
    """The answer is open then; its text is compared all the same."""
    with running(StandIn(max_logprobs=0)) as server:
        found = asked(server, examined())
    assert (None, 0, []) == (found.difference, found.scored, found.divergences)
    assert "greater than max allowed" in found.problem


@pytest.mark.parametrize(("server", "api"), [(SglangStandIn(), "sglang"), (StandInLlama(), "llama.cpp")])
def test_other_engines(server: StandIn, api: Api) -> None:
    """SGLang as vLLM; llama.cpp scores token by token, so only some tokens of some sequences."""
    with running(server):
        found = asked(server, examined(6), api)
    assert [] == found.divergences
    assert found.difference == pytest.approx(0.0, abs=1e-6)
    sequences = 4 if api == "llama.cpp" else 6
    assert found.scored == sum(len(one.log_p_N) for one in examined(sequences).known)
