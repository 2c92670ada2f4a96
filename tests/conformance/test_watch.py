"""`understudy watch` on the real vLLM: a stale draft that is swapped in is found, by counters alone."""

import itertools
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.config.watch import WatchConfig
from pipeline.export.schema import write_expected
from pipeline.progress import Progress
from pipeline.store.artifacts import Store
from pipeline.watch.acting import Watch, watch_of
from tests.conformance.engines import Engine
from tests.conformance.exported import Exported, export_champion
from tests.conformance.served_vllm import ServedVllm
from tests.conformance.servers import Server, free_port

_MOST_DRAFT_TOKENS = 4000  # from the swap to the alarm
_LOOK = 300.0  # seconds of the clock that the watch is told
_REQUESTS, _TOKENS = 1, 48  # of a look
_LOOKS = 40  # at each draft, at the most
_NOW = 1.7956e9


@dataclass(frozen=True)
class Found:
    """What a watch made of the servers that it looked at, one after another."""

    watch: Watch
    counts: dict[str, list[tuple[float, float]]]  # by server, of each look: drafts, accepted first tokens

    @property
    def rates(self) -> dict[str, float]:
        return {name: sum(one for _, one in rows) / sum(one for one, _ in rows) for name, rows in self.counts.items()}


def at_temperature_0(found: Exported) -> Exported:
    """With the deployment at temperature 0, at which vLLM's CPU build speculates rightly."""
    assert found.expected.temperature_0 is not None
    at_zero = replace(found.expected, deployed=found.expected.temperature_0, temperature_0=None)
    write_expected(found.directory, at_zero)
    return replace(found, expected=at_zero)


def look_at(
    vllm: Engine, exported: Exported, method: str, served: Mapping[str, tuple[Path, Path]], place: Path, looks: int
) -> Found:
    """Serve pairs of target and draft one after another at one URL, each until the watch finds a drift, or for so many looks. The
    engine restarts between, so its counters begin again. Prompts are those of the examination, in random order."""
    port, prompts = free_port(), [item.prompt.tolist() for item in exported.completions]
    random.Random(1).shuffle(prompts)
    asked, url = itertools.cycle(prompts), f"http://127.0.0.1:{port}"
    engine = ServedVllm(url, "target")
    watch = WatchConfig.model_validate({"endpoints": [url], "engine": "vllm", "expected": str(exported.directory)})
    config = exported.config.model_copy(update={"watch": watch})
    watching = watch_of(config, Store(place / "store"), "pair-draft", _NOW, Progress())
    found, number = Found(watching, {}), 0
    for name, (target, draft) in served.items():
        settings = {"method": method, "model": str(draft), "num_speculative_tokens": exported.gamma}
        arguments = ("--speculative-config", json.dumps(settings))
        rows = found.counts.setdefault(name, [])
        with Server(vllm.interpreter, target, arguments, place / f"{name}.log", port):
            for _ in range(looks):
                for _ in range(_REQUESTS):
                    engine.complete([next(asked)], _TOKENS)
                number += 1
                observation = watching.look(_NOW + number * _LOOK)
                if (counts := observation.counts) is not None:
                    rows.append((counts.drafts or 0.0, counts.accepted_first or 0.0))
                if watching.findings.shown.has_drift:
                    break
    return found


def test_a_stale_draft_is_found(vllm: Engine, tmp_path: Path) -> None:
    """Within 4,000 draft tokens of the swap, by the first position at gamma 5; no alarm before."""
    exported = at_temperature_0(export_champion("vllm", tmp_path / "out"))
    drafts = {"champion": exported.directory / "draft", "stale": exported.target.parent / "draft"}
    served = {name: (exported.target, draft) for name, draft in drafts.items()}
    found = look_at(vllm, exported, "draft_model", served, tmp_path, _LOOKS)
    tokens = sum(one for one, _ in found.counts["stale"]) * exported.gamma
    state = found.watch.findings.shown
    print(f"predicted {state.last}, counted {found.rates}, {tokens:.0f} draft tokens from the swap to the alarm")
    assert ("low", _LOOKS - 1) == (state.verdict, len(found.counts["champion"]))
    assert tokens <= _MOST_DRAFT_TOKENS
