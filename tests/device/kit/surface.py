"""Part 5: step times of a pair by batch and length, in the form that `understudy latency` reads."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.latency.costs.measure import Grid, measure_profile
from pipeline.progress import Progress
from tests.device.kit.models import PAIRS, Setup

BATCHES, CONTEXTS, PROMPTS, GAMMAS = (1, 2, 4, 8, 16, 32, 64), (256, 1024, 2048), (128, 512, 2048), 7


def measures(setup: Setup) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for target, draft in PAIRS:
        yield f"{target} with {draft}", lambda target=target, draft=draft: _surface(setup, target, draft)


def _surface(setup: Setup, target: str, draft: str) -> dict[str, Any]:
    """An interrupted measurement goes on: what is measured lies in the part's folder."""
    contexts, prompts = ((16, 32), (8, 16)) if setup.tiny else (CONTEXTS, PROMPTS)
    out = setup.work / f"{target}.profile.json"
    found = measure_profile(
        setup.model(target),
        setup.model(draft),
        setup.vocabulary(target),
        Grid(
            batches=BATCHES[: setup.size(len(BATCHES), 2)],
            gammas=setup.size(GAMMAS, 2),
            contexts=contexts,
            prompts=prompts,
            repeats=5,
        ),
        about={"target": f"{target}, random weights", "draft": f"{draft}, random weights"},
        progress=Progress(terminal=False),
        out=out,
    )
    return {"profile": json.loads(json.dumps(found.json()))}
