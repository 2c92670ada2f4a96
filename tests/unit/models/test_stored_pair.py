"""Memory figures of a stored pair."""

from pathlib import Path

from pipeline.config.gate import GateConfig, LoadConfig
from pipeline.models.stored_pair import Pair


def test_serving_memory() -> None:
    """Weights of target and draft, and the KV cache of both for every token of every request."""
    facts = {"target": {"bytes": 1_000, "cache_bytes_per_token": 3}, "draft": {"bytes": 77, "cache_bytes_per_token": 2}}
    pair = Pair(Path("nowhere"), facts, {})

    assert 5.0 == pair.cache_bytes_per_token
    assert 1_000 + 100 + 5 * 4 * 64 == pair.serving_bytes(100, 4, 64)


def test_memory_is_stated_for_the_load() -> None:
    """For the configured load, or for one request with the default length."""
    assert (8, 100) == GateConfig(load=LoadConfig(requests_per_second=1, max_batch=8, context=100)).served
    assert (1, 4096) == GateConfig().served
