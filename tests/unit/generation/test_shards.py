"""Shards of completions: their names, and that each completion is in one."""

import pytest

from pipeline.generation.completion_plan import CompletionRequest, shards_of
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import numbered_prompt


@pytest.mark.parametrize(("turn", "prefix"), [(1, "shard-"), (2, "turn-002-shard-")])
def test_every_completion_is_in_one_shard(turn: int, prefix: str) -> None:
    """The last shard of a sampling may hold one. Those of a later turn have names of their own."""
    requests = [
        CompletionRequest(numbered_prompt(number, (1,)), sampling)
        for sampling, count in ((Sampling(), 5), (GREEDY, 1))
        for number in range(count)
    ]
    shards = shards_of(requests, 2, turn)

    assert [f"{prefix}{number:05d}" for number in range(4)] == [name for name, _ in shards]
    assert [2, 2, 1, 1] == [len(shard) for _, shard in shards]
    assert requests == [request for _, shard in shards for request in shard]
