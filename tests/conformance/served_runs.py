"""Runs of the quickstart's settings by a server and in the process, and how their completions are compared."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.speculation.settings import Sampling
from tests.benchmarks.figures import UNDERSTUDY
from tests.conformance.subject import Subject

PROMPTS = 240
NEAR_TIE = 2e-5


def config_of(subject: Subject, url: str | None, api: str = "vllm", **changes: Any) -> dict[str, Any]:
    """The quickstart's settings on the pair's directories. Without a server the target is loaded in the process."""
    target: dict[str, Any] = {"source": str(subject.target), "dtype": "float32"}
    generate: dict[str, Any] = {"max_new_tokens": 64}
    if url is not None:
        target = {"source": "server", "tokenizer": str(subject.tokenizer), "revision": "v1", "dtype": "float32"}
        generate |= {"engine": "server", "server": {"api": api, "endpoints": [url]}}
    pair = subject.target.parent
    return {
        "name": "served",
        "pair": {"target": target, "draft": {"source": str(pair / "draft")}},
        "corpus": {
            "sources": [{"path": str(pair / "prompts.jsonl"), "limit": PROMPTS}],
            "chat_template": False,
            "splits": {"train": 0.3, "dev": 0.1, "examination": 0.6},
        },
        "generate": generate,
        "distill": {
            "optimizer": "muon",
            "max_steps": 40,
            "learning_rate": 3e-3,
            "evaluate_every": 20,
            "save_every": 40,
        },
        "quantize": {"variants": []},
        "gate": {"min_prompts_per_domain": 10},
        "promote": {"target_name": "quickstart"},
        **changes,
    }


def run(place: Path, name: str, config: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    file = place / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [str(UNDERSTUDY), "run", str(file), "--store", str(place / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def artifact(place: Path, name: str, job: str) -> Path:
    (record,) = (json.loads(path.read_text()) for path in (place / name / "runs").glob("*/run.json"))
    entry = record["jobs"][job]
    return place / name / "artifacts" / f"{entry['stage']}-{entry['key']}"


def completions_of(place: Path, name: str, sampling: Sampling) -> dict[str, StoredCompletion]:
    return {item.id: item for item in read_completions(artifact(place, name, "generate"), sampling=sampling)}


@torch.inference_mode()
def logits_of(subject: Subject, prompt: Any, tokens: Any) -> torch.Tensor:
    """(N, V): the logits that predict each of the N tokens."""
    ids = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
    logits: torch.Tensor = subject.target_model(ids).logits[0, len(prompt) - 1 : -1].double()
    return logits


def greedy_near_ties(
    subject: Subject, here: Mapping[str, StoredCompletion], there: Mapping[str, StoredCompletion]
) -> list[tuple[str, int, float]]:
    """Prompt, position and gap of the target's logits where completions at temperature 0 first differ. AssertionError if a gap is
    no near-tie."""
    assert list(here) == list(there)
    ties = []
    for name, one in here.items():
        other = there[name]
        count = min(len(one.tokens), len(other.tokens))
        different = np.flatnonzero(one.tokens[:count] != other.tokens[:count])
        if not len(different):
            assert (one.length, one.stopped) == (other.length, other.stopped)
            continue
        first = int(different[0])
        logits_V = logits_of(subject, one.prompt, one.tokens)[first]
        gap = abs(float(logits_V[int(one.tokens[first])] - logits_V[int(other.tokens[first])]))
        ties.append((name, first, gap))
        assert gap < NEAR_TIE, ties
    return ties


def require_samples(subject: Subject, found: Mapping[str, StoredCompletion], most: float) -> None:
    """log p of sampled completions is within `most` of the target's own pass, and the completions are samples of the target.

    The total of log p + entropy over a completion has mean 0 for samples of the target; it is compared at 4 standard errors.
    """
    largest, surprises = 0.0, []
    for item in found.values():
        log_p_NV = logits_of(subject, item.prompt, item.tokens).log_softmax(-1)
        log_p_N = log_p_NV.gather(1, torch.from_numpy(item.tokens.astype(np.int64)).unsqueeze(1)).squeeze(1)
        largest = max(largest, float((log_p_N - torch.from_numpy(item.log_p.copy())).abs().max()))
        surprises.append(float((log_p_N - (log_p_NV.exp() * log_p_NV).sum(-1)).sum()))
    error = float(np.std(surprises) / len(surprises) ** 0.5)
    print(
        f"{len(surprises)} completions, largest difference of log p {largest:.1e}, log p + entropy {np.mean(surprises):+.4f}"
    )
    assert largest < most
    assert abs(float(np.mean(surprises))) < 4 * error


def require_same_examinations(place: Path) -> None:
    """Of the runs `in-process` and `by-server`. At temperature 0 figures are equal to 4 digits; at temperature 1, where tokens
    are drawn anew, they are within 4 standard errors."""
    found = {}
    for name in ("in-process", "by-server"):
        found[name] = json.loads((artifact(place, name, "evaluate/base") / "acceptance.json").read_text())
        assert found[name]["crosscheck"]["agrees"], found[name]["crosscheck"]
    here, there = found["in-process"], found["by-server"]
    for gamma in ("1", "5"):
        one, other = (side["greedy"]["tokens_per_target_call"][gamma]["value"] for side in (here, there))
        assert one == pytest.approx(other, abs=5e-5)
    assert here["greedy"]["acceptance_rate"]["value"] == pytest.approx(
        there["greedy"]["acceptance_rate"]["value"], abs=5e-5
    )
    one, other = (side["headline"]["acceptance_rate"] for side in (here, there))
    error = ((one["high"] - one["low"]) ** 2 + (other["high"] - other["low"]) ** 2) ** 0.5 / (2 * 1.96)
    print(f"acceptance at temperature 1: in process {one['value']:.4f}, by server {other['value']:.4f}")
    assert abs(one["value"] - other["value"]) < 4 * error
