"""Generation by servers as the stage does it, for tests and benchmarks: prompts, settings, and what is stored."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.server import ServerConfig
from pipeline.corpus.prompt_store import Prompt
from pipeline.generation.completion_plan import plan_completions
from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.generation.distributions import unpack
from pipeline.generation.generate import GenerationSettings
from pipeline.generation.served import generate_by_servers
from pipeline.generation.served_completion import Served
from pipeline.servers.connect import connect, identify
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.identity import Identity
from pipeline.servers.retries import Timing
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import quiet
from tests.standin_server import EOS, VOCABULARY, StandIn, log_p_of, sampled_from

NEW, AHEAD, KEPT = 6, 3, 4
QUICK = Timing(retry=0.01, longest_retry=0.2, reopen=0.02, longest_reopen=0.2, pause=0.05)


def some_prompts(count: int, split: str = "train") -> list[Prompt]:
    return [
        Prompt(
            f"{n:016x}",
            split,
            "d",
            n,
            (*range(20 + n % 5, 30 + n % 7), n % 500),
            text_id=f"{n:016x}",
            conversation=f"{n // 2:016x}",
            mode=f"m={n % 2 > 0}",
        )
        for n in range(count)
    ]


def settings_of(sampling: Sampling, **changes: Any) -> GenerationSettings:
    known: dict[str, Any] = {
        "sampling": sampling,
        "max_new_tokens": NEW,
        "lookahead": AHEAD,
        "distribution_tokens": KEPT,
        "distribution_selection": "top_k",
        "batch": 4,
        "shard": 8,
        "seed": 0,
    }
    return GenerationSettings(**(known | changes))


def config_of(*servers: StandIn, **changes: Any) -> ServerConfig:
    known: dict[str, Any] = {"concurrency": 4, "logprobs": 20, "timeout_seconds": 20.0, "patience_seconds": 20.0}
    return ServerConfig.model_validate(known | changes | {"endpoints": [{"url": server.url} for server in servers]})


@asynccontextmanager
async def opened(config: ServerConfig) -> AsyncIterator[Endpoint]:
    """The first endpoint, for some requests."""
    endpoint = Endpoint(config.endpoints[0], config)
    await endpoint.open()
    try:
        yield endpoint
    finally:
        await endpoint.close()


def identity_of(config: ServerConfig) -> Identity:
    return asyncio.run(identify(config, "v1", "float32", [], quiet()))


def generate(
    config: ServerConfig,
    prompts: Sequence[Prompt],
    out: Path,
    sampling: Sampling = GREEDY,
    identity: Identity | None = None,
    timing: Timing = QUICK,
    **settings: Any,
) -> list[StoredCompletion]:
    """Run a generation, and return what it stored."""
    asyncio.run(generation(config, identity or identity_of(config), prompts, out, sampling, timing, settings))
    return list(read_completions(out))


async def generation(
    config: ServerConfig,
    identity: Identity,
    prompts: Sequence[Prompt],
    out: Path,
    sampling: Sampling,
    timing: Timing,
    settings: dict[str, Any],
) -> None:
    out.mkdir(exist_ok=True)
    async with connect(config, identity, VOCABULARY, quiet(), timing) as (target, abilities):
        served = Served(target, abilities, identity, config.logprobs, VOCABULARY, [EOS])
        requests = plan_completions(prompts, sampling)
        await generate_by_servers(served, requests, settings_of(sampling, **settings), out, quiet())


def check_log_p(found: Sequence[StoredCompletion], sampling: Sampling) -> None:
    """log p of each token is that of the distribution as sampled from; the stored distributions are those at temperature 1."""
    for item in found:
        ids_NK, log_p_NK = unpack(item.entries, item.certain, item.rest_log_p, VOCABULARY)
        for place, token in enumerate(item.tokens.tolist()):
            plain = log_p_of([*item.prompt.tolist(), *item.tokens[:place].tolist()])
            expected = 0.0 if sampling.greedy else sampled_from(plain, vars(sampling))[token]
            assert expected == pytest.approx(item.log_p[place], abs=1e-5)
            assert plain[ids_NK[place]] == pytest.approx(log_p_NK[place], abs=0.02)  # as rounded for storage


def check_greedy(found: Sequence[StoredCompletion]) -> None:
    """Examination prompts have the model's greedy tokens, also past EOS, with the likeliest tokens of each distribution."""
    check_log_p(found, GREEDY)
    for item in found:
        assert greedy(item.prompt.tolist(), NEW, AHEAD) == item.tokens.tolist()
        assert not item.log_p.any()
        assert len(item.tokens) - AHEAD == item.length
        assert item.stopped == (item.tokens[item.length - 1] == EOS)
        ids_NK, _ = unpack(item.entries, item.certain, item.rest_log_p, VOCABULARY)
        for place, ids_K in enumerate(ids_NK.tolist()):
            exact = log_p_of([*item.prompt.tolist(), *item.tokens[:place].tolist()])
            assert np.argsort(-exact, kind="stable")[:KEPT].tolist() == ids_K
    assert any(item.stopped for item in found), "the stand-in ends some completions"


def greedy(prompt: Sequence[int], count: int, past_eos: int = 0, weights: int = 0) -> list[int]:
    ids = list(prompt)
    while len(ids) - len(prompt) < count:
        ids.append(int(log_p_of(ids, weights).argmax()))
        if ids[-1] == EOS:
            break
    for _ in range(past_eos):
        ids.append(int(log_p_of(ids, weights).argmax()))
    return ids[len(prompt) :]
