"""The champion of CONFORMANCE_STORE as `understudy champion export` writes it, and what explains differences of its server."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from pipeline.acceptance.examine import acceptance_probabilities
from pipeline.config.stored import run_config
from pipeline.drafts.plain import PlainDraft
from pipeline.export.schema import Expected, read_expected
from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.models.loading import load_model
from pipeline.models.places import model_places
from pipeline.models.stored_pair import read_pair
from pipeline.registry.registry import registered_name
from pipeline.speculation.settings import GREEDY
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, find_built, list_runs, load_run
from tests.conformance.deterministic import TIE
from tests.conformance.texts import text, token_statistics

PROMPTS = 32
CONVERTER = Path(__file__).with_name("convert_reference.py")  # to GGUF


@dataclass(frozen=True)
class Exported:
    """An exported directory, and what the champion was examined on."""

    directory: Path
    expected: Expected
    config: Any
    completions: list[StoredCompletion]  # greedy
    target: Path

    @property
    def gamma(self) -> int:
        return self.expected.gamma


def export_champion(engine: str, out: Path, *arguments: str) -> Exported:
    """`understudy champion export NAME@champion --engine ENGINE`, for the pair of the run that promoted it."""
    store = Store(Path(os.environ.get("CONFORMANCE_STORE", ".understudy")))
    records = [record for name in list_runs(store) if (record := load_run(store, name)) is not None]
    record = next(
        one for one in reversed(records) if (one.decision or {}).get("verdict") == "promote" and "promote" in one.jobs
    )
    return export_draft(f"{registered_name(run_config(record))}@champion", record, store, engine, out, *arguments)


def export_draft(
    name: str, record: RunRecord, store: Store, engine: str, out: Path, *arguments: str, prompts: int = PROMPTS
) -> Exported:
    """The same of a draft by its name, which that run trained. `prompts`: of the examination, at most."""
    config, command = run_config(record), ["champion", "export", name, "--engine", engine, "--out", str(out)]
    subprocess.run(
        [sys.executable, "-m", "understudy_cli", *command, *arguments, "--store", str(store.root)], check=True
    )
    stored = read_completions(find_built(store, record, "generate").path, {"examination"}, GREEDY)
    completions = sorted(stored, key=lambda item: item.id)[:prompts]
    target = read_pair(find_built(store, record, "pair").path, model_places(config.pair)).path("target")
    return Exported(out, read_expected(out), config, completions, target)


def trained(config: Mapping[str, Any], place: Path, promoted: bool = False) -> tuple[RunRecord, Store]:
    """The run `one` of a store in `place`, which examines the draft that it has trained. `promoted`: it is champion in the
    store's own registry."""
    (place / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    words = ["run", str(place / "config.yaml"), "--run", "one", "--store", str(place / "store")]
    words += [] if promoted else ["--until", "evaluate"]
    environment = os.environ | ({} if promoted else {"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"})
    subprocess.run([sys.executable, "-m", "understudy_cli", *words], check=True, env=environment)
    store = Store(place / "store")
    record = load_run(store, "one")
    assert record is not None
    return record, store


def divergences(exported: Exported, tokens: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """The first token of each prompt at which the server took another than the stored completion, with the target's gap."""
    target = None
    found = []
    for number, (item, own) in enumerate(zip(exported.completions, tokens, strict=True)):
        stored = item.tokens[: item.length].tolist()
        if own == stored:
            continue
        target = target or load_model(exported.target, "float32", torch.device("cpu"))
        position = next(
            (place for place, (one, other) in enumerate(zip(own, stored, strict=False)) if one != other),
            min(len(own), len(stored)),
        )
        statistics = token_statistics(target, [text(item.prompt, [*stored[:position], own[position]], position + 1)])[0]
        found.append({"prompt": number, "position": position, "gap": abs(float(statistics.short[position]))})
    return found


def near_ties(exported: Exported, draft: Any) -> list[dict[str, Any]]:
    """Positions of the stored completions at which the draft's two largest logits are as good as equal."""
    found = []
    a = acceptance_probabilities(
        PlainDraft(draft, exported.completions[0].vocabulary), exported.completions, GREEDY, GREEDY, 8192
    )
    for number, (item, a_T) in enumerate(zip(exported.completions, a, strict=True)):
        statistics = token_statistics(draft, [text(item.prompt, item.tokens.tolist(), len(item.tokens))])[0]
        for position in np.flatnonzero(
            (np.abs(statistics.short) < TIE) & (np.arange(len(a_T)) < item.length + exported.gamma)
        ):
            found.append({"prompt": number, "position": int(position), "gap": float(statistics.short[position])})
    return found
