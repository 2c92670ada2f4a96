"""The retraining DAG with completions and examinations by mapped tasks."""

from pathlib import Path

import pytest
from standin import load, run, stand_in, without_waiting


def test_each_share_is_a_mapped_task_before_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shards` of a pair: so many calls with `--shards`, with run and overrides, then the stage itself."""
    monkeypatch.setenv("UNDERSTUDY_SHARDS", "3")
    command = stand_in(tmp_path / "bin")
    dag = without_waiting(load("draft_retraining"))
    given = {"config": "/c.yaml", "store": "/s", "executable": command.command, "overrides": ["seed=1"]}
    run_id, state, _ = run(dag, given)
    rest = [f"--run={run_id}", "--set=seed=1", "--", "/c.yaml"]

    assert (3, "success") == (dag.max_active_tasks, state)
    assert ["--in-shards" in call for call in command.calls] == [call[1] == "pair" for call in command.calls]
    for stage, before in (("generate", "corpus"), ("evaluate", "quantize")):
        calls = [call for call in command.calls if call[1] == stage]
        assert calls[-1] == ["stage", stage, "--store=/s", *rest]
        assert sorted(calls[:-1]) == [
            ["stage", stage, "--store=/s", rest[0], f"--shards={number}/3", *rest[1:]] for number in (1, 2, 3)
        ]
        assert before == command.calls[command.calls.index(calls[0]) - 1][1]
