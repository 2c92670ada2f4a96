"""An export served by vLLM from its start script: the texts are the stored ones, and the counters those of the examination."""

import json
from collections.abc import Callable
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
    settings = exported.config.evaluate.model_copy(update={"convention": "vllm", "max_gamma": exported.gamma})
    figures = examine_as_served(
        draft, exported.completions, GREEDY, settings, [exported.gamma], lambda done: None
    ).by_draft_length[exported.gamma]
    prompts = [item.prompt.tolist() for item in exported.completions]
    with served(exported.directory, vllm.interpreter, place / "log", "--no-enable-prefix-caching") as server:
        server.complete(prompts[:1], exported.config.generate.max_new_tokens)  # a warm-up
        look(server)
        before = server.counters(asdict(exported.expected.counters))
        tokens = server.complete(prompts, exported.config.generate.max_new_tokens)
        counted = difference(server.counters(asdict(exported.expected.counters)), before)
        look(server)
    predicted = {
        "drafts": round(figures.drafts),
        "draft_tokens": round(figures.draft_tokens or 0),
        "accepted": round(figures.accepted),
        "per_position": [round(rate * figures.drafts) for rate in figures.accepted_per_position],
    }
    print(json.dumps({"predicted": predicted, "counted": counted}))
    assert [] == divergences(exported, tokens)
    assert predicted == counted
    return counted
