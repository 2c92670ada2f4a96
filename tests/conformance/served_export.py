"""An export served by vLLM from its start script: the texts are the stored ones, and the counters those of the examination."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.export.expected import examine_as_served
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import GREEDY
from tests.conformance.engines import Engine
from tests.conformance.exported import Exported, divergences
from tests.conformance.served_vllm import ServedVllm, served
from tests.conformance.servers import difference


def check_served(
    exported: Exported,
    draft: LoadedDraft,
    vllm: Engine,
    place: Path,
    look: Callable[[ServedVllm], None] = lambda server: None,
) -> dict[str, Any]:
    """At temperature 0. `draft`: the exported weights, loaded here. `look` is called before and after the counted requests.
    Returns the counts."""
    prompts = [item.prompt.tolist() for item in exported.completions]
    with served(exported.directory, vllm.interpreter, place / "log", "--no-enable-prefix-caching") as server:
        server.complete(prompts[:1], exported.config.generate.max_new_tokens)  # a warm-up
        look(server)
        tokens, counted = counted_completions(server, exported, prompts)
        look(server)
    predicted = predicted_counts(exported, draft)
    print(json.dumps({"predicted": predicted, "counted": counted}))
    assert [] == divergences(exported, tokens)
    assert predicted == counted
    return counted


def counted_completions(
    server: ServedVllm, exported: Exported, prompts: Sequence[Sequence[int]], temperature: float = 0.0
) -> tuple[list[list[int]], dict[str, Any]]:
    """Completions, and what was counted for them."""
    names = asdict(exported.expected.counters)
    before = server.counters(names)
    tokens = server.complete(prompts, exported.config.generate.max_new_tokens, temperature)
    return tokens, difference(server.counters(names), before)


def predicted_counts(exported: Exported, draft: LoadedDraft) -> dict[str, Any]:
    """The examination of the exported weights on the stored completions of these prompts."""
    settings = exported.config.evaluate.model_copy(update={"convention": "vllm", "max_gamma": exported.gamma})
    lengths = [exported.gamma]
    figures = examine_as_served(draft, exported.completions, GREEDY, settings, lengths, lambda done: None)
    found = figures.by_draft_length[exported.gamma]
    return {
        "drafts": round(found.drafts),
        "draft_tokens": round(found.draft_tokens or 0),
        "accepted": round(found.accepted),
        "per_position": [round(rate * found.drafts) for rate in found.accepted_per_position],
    }
