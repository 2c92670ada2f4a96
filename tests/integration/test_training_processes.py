"""Several processes train one draft as one process does, and a killed one costs only the steps since the last checkpoint."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import understudy_cli
from pipeline.config.distill import LoraConfig
from pipeline.distillation import trainer
from pipeline.errors import UnderstudyError
from tests.integration.conftest import NOBODY, SMOKE, Ended, Place
from tests.integration.trained import SETTINGS, flat, in_processes, start, trained

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 7),
    "no row for a process": ({"loss": "forward_kl"}, 5),
    "accumulation": ({"accumulation": 2, "batch": 2, "segment_shares": {"thinking": 0.25}}, 7),
    "activations made anew": ({"gradient_checkpointing": True}, 7),
    "muon": ({"optimizer": "muon", "accumulation": 2, "batch": 2}, 7),
    "adapters": ({"lora": LoraConfig(rank=2)}, 7),
    "two phases": ({}, 7),
    "tied embeddings": ({}, 7),
    "logits by the model": ({"loss": "total_variation"}, 7),
    "bfloat16": ({"bf16": True, "gradient_checkpointing": True}, 7),
}
COPIED = ("activations made anew", "two phases")  # divided ones: `bfloat16`, and `test_on_policy_rounds_...`
BOUNDS = {"muon": 1e-4, "bfloat16": 2e-2}
SHORT = SETTINGS.model_copy(update={"max_steps": 4, "save_every": 4, "evaluate_every": 2})  # two epochs
KILLED = SETTINGS.model_copy(update={"max_steps": 12, "save_every": 3, "evaluate_every": 6})


def _case(name: str, work: Path, shard: bool = False) -> list[Any]:
    changes, rows = CASES[name]
    settings, phases = SHORT.model_copy(update=changes), 2 if name == "two phases" else 1
    return trained(settings, rows, work / name, phases, shard, lambda model: _prepared(name, model))


def _prepared(name: str, model: Any) -> Any:
    if name == "tied embeddings":
        model.config.tie_word_embeddings = True
        model.tie_weights()
    if name == "logits by the model":
        model.config.final_logit_softcapping = 1e6  # this model does not know it
    return model


def _all_cases(place: Path, shard: bool) -> Any:
    """In one start of two processes."""
    out, names = place / "out.json", [name for name in CASES if not (shard and name in COPIED)]
    assert [0, 0] == in_processes(2, lambda: {name: _case(name, place, shard) for name in names}, out)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All cases where each process holds the whole draft."""
    return _all_cases(tmp_path_factory.mktemp("copied"), shard=False)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All cases where each holds a part of it."""
    return _all_cases(tmp_path_factory.mktemp("sharded"), shard=True)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one(name: str, copied: Any, sharded: Any, tmp_path: Path) -> None:
    """The curve, also by segment, and the weights; where the rows of an epoch do not suffice for all processes too; and where the
    draft is divided."""
    one = _case(name, tmp_path)
    for found in (copied, sharded):
        if name in found:
            _same(one, found[name], BOUNDS.get(name, 1e-5))


@pytest.mark.long
def test_a_draft_divided_among_four_is_trained_as_one(tmp_path: Path) -> None:
    """As a training that four resume is in `test_sharded_training.py`."""
    out = tmp_path / "out.json"
    assert [0] * 4 == in_processes(4, lambda: _case("plain", tmp_path / "four", shard=True), out)
    _same(_case("plain", tmp_path / "one"), json.loads(out.read_text()), 1e-5)


def _same(one: Any, found: Any, bound: float) -> None:
    (weights, log), (found_weights, found_log) = one, found

    assert flat(log) == pytest.approx(flat(found_log), rel=bound, abs=bound)
    assert flat(log).keys() == flat(found_log).keys()
    assert any("loss_by_segment.thinking" in place for place in flat(log))
    for part, values in weights.items():
        assert values == pytest.approx(found_weights[part], abs=10 * bound), part


def _without_memory(work: Path, most: int) -> str:
    """What a training says in this process, which has memory for so many positions of a micro-batch."""
    whole = trainer.mean_loss

    def limited(hidden_NH: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(hidden_NH) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(hidden_NH, *rest)

    trainer.mean_loss = limited
    try:
        trained(SETTINGS, 7, work)
    except UnderstudyError as error:
        return str(error)
    finally:
        trainer.mean_loss = whole
    return ""


def test_out_of_memory_is_named_as_one_process_does(tmp_path: Path) -> None:
    """Of two processes, each of which has memory for half of its rows: a batch of all of them, divided among them again."""
    one, two = (_without_memory(tmp_path / "one", 100), tmp_path / "two.json")
    assert [0, 0] == in_processes(2, lambda: _without_memory(tmp_path / "two", 50), two)

    assert one.startswith(
        "distill.batch = 4: out of memory; 2 fits: set distill.batch to 2 and distill.accumulation to 2"
    )
    assert one == json.loads(two.read_text())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return trained(KILLED, 7, tmp_path_factory.mktemp("unbroken"))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in (1, 2) else pytest.mark.long) for seed in range(20)]
)
def test_a_killed_process_ends_all_and_the_training_resumes(seed: int, unbroken: list[Any], tmp_path: Path) -> None:
    """One of two is killed at a random moment, where they divide the draft and where not; the other ends too. Resumed by one, two
    or four processes, which divide it or not, curve and weights are those of an undisturbed training."""
    chance, examinations = random.Random(seed), iter(range(3))
    work, killed = tmp_path / "work", chance.randrange(2)

    def before() -> None:
        if next(examinations) == 2:
            time.sleep(10)  # at the last step: it is killed before it ends

    ranks = start(2, lambda: trained(KILLED, 7, work, shard=seed % 2 == 0, before=before), tmp_path / "killed.json")
    reached = chance.choice(["best-0.safetensors", "checkpoint-3", "checkpoint-6/checkpoint_complete"])
    until = time.monotonic() + 60
    while not (work / "0" / reached).exists() and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(chance.random() * 0.05)
    os.kill(ranks[killed].pid or 0, signal.SIGKILL)
    for rank in ranks:
        rank.join(60)

    assert -signal.SIGKILL == ranks[killed].exitcode
    assert ranks[1 - killed].exitcode not in (0, None)
    again, shard = chance.choice([(1, False), (2, False), (2, True), (4, False), (4, True)])
    out = tmp_path / "out.json"
    assert [0] * again == in_processes(again, lambda: trained(KILLED, 7, work, shard=shard), out)
    weights, log = json.loads(out.read_text())
    assert flat(unbroken[1]) == pytest.approx(flat(log), rel=1e-5, abs=1e-5)
    for part, values in unbroken[0].items():
        assert values == pytest.approx(weights[part], abs=1e-4), part


FP32 = ("--until", "distill", "--set", "distill.bf16=false", "--set", "distill.max_steps=10")
TWO = ("--set", "distill.processes=2")
ROUNDS = ("--set", "distill.on_policy={rounds: 1, prompts: 12, max_steps: 4}")


def set_aside(place: Place, run: str) -> Path:
    """The artifact of a run's draft, out of the store."""
    return place.artifact("distill", run).rename(place.root / f"aside-{run}")


def alike(one: Path, two: Path, processes: tuple[int, int] = (1, 2)) -> None:
    """Both drafts are the same, but for rounding, and so is the rest of their artifacts."""
    names = [sorted(str(path.relative_to(place)) for path in place.rglob("*")) for place in (one, two)]
    assert names[0] == names[1]
    assert (one / "draft" / "config.json").read_bytes() == (two / "draft" / "config.json").read_bytes()
    logs = [flat(json.loads((place / "training.json").read_text())) for place in (one, two)]
    assert logs[0] == pytest.approx(logs[1], rel=1e-4, abs=1e-5)
    manifests = [json.loads((place / "manifest.json").read_text()) for place in (one, two)]
    assert manifests[0]["key"] == manifests[1]["key"]
    assert list(processes) == [manifest["figures"]["processes"] for manifest in manifests]


@pytest.mark.usefixtures("forked_workers")
def test_the_command_trains_in_two_processes(loop: Place) -> None:
    """Same key, same draft, also after on-policy rounds and where the processes divide the draft; how it was trained is in the
    artifact, and nothing of the training is left behind."""
    _trains_in_two_processes(loop)


@pytest.mark.long
def test_the_command_starts_two_processes(loop: Place) -> None:
    """The same, each with its imports."""
    _trains_in_two_processes(loop)


def _trains_in_two_processes(loop: Place) -> None:
    said: dict[str, list[str]] = {}
    few = (*FP32, "--set", "distill.max_steps=5")
    for run, more in {"one": (), "two": TWO, "parts": (*TWO, "--set", "distill.shard=true")}.items():
        ended = loop.understudy("run", SMOKE, *few, *ROUNDS, *more, "--run", run, MLFLOW_TRACKING_URI=NOBODY)
        assert 0 == ended.code, ended.err
        said[run] = ended.err.splitlines()
        assert [] == list((loop.store / "work").glob("distill-*"))
        artifact = set_aside(loop, run)
        if run != "one":
            alike(loop.root / "aside-one", artifact)
        figures = json.loads((artifact / "manifest.json").read_text())["figures"]
        assert float(run == "parts") == figures["shard"]
    assert "distill: 2 processes on cpu" in said["two"]
    assert "distill: 2 processes on cpu, which divide the draft" in said["parts"]


def _workers_of(pid: int) -> list[int]:
    """The processes of the training that a command has started."""
    found = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    table = [line.split(None, 2) for line in found.splitlines()]
    return [int(child) for child, parent, line in table if int(parent) == pid and "worker_processes" in line]


@pytest.mark.long
def test_a_killed_worker_of_the_command_costs_one_line(loop: Place) -> None:
    """Exit code 1 and what to do; run again, the training goes on from its checkpoint to the same draft."""
    longer = (*FP32, "--set", "distill.max_steps=400")
    assert 0 == loop.understudy("run", SMOKE, *longer, *TWO, "--run", "whole", MLFLOW_TRACKING_URI=NOBODY).code
    whole = set_aside(loop, "whole")
    command = loop.start("run", SMOKE, *longer, *TWO, "--run", "two", MLFLOW_TRACKING_URI=NOBODY)
    until = time.monotonic() + 300
    while not list((loop.store / "work").glob("distill-*/**/checkpoint_complete")) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(_workers_of(command.pid)[1], signal.SIGKILL)
    _, err = command.communicate(timeout=300)

    assert 1 == command.returncode
    assert (
        "distill: training process 2 of 2 was killed by SIGKILL; checkpoints are kept, run again to resume"
        == Ended(1, "", err).complaint
    )
    again = loop.understudy("run", SMOKE, *longer, *TWO, "--run", "two", MLFLOW_TRACKING_URI=NOBODY)
    assert 0 == again.code, again.err
    alike(whole, loop.artifact("distill", "two"), processes=(2, 2))


@pytest.mark.long
def test_under_torchrun_the_first_process_runs_and_the_others_train(loop: Place) -> None:
    """One run, whose draft is that of one process; and a number of processes that does not fit stops it before it begins."""
    assert 0 == loop.understudy("run", SMOKE, *FP32, "--run", "one", MLFLOW_TRACKING_URI=NOBODY).code
    one, entry = set_aside(loop, "one"), Path(understudy_cli.__file__)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "--",
        str(entry),
    ]

    def run(*more: str) -> Ended:
        line = [*torchrun, "run", str(SMOKE), *FP32, "--store", str(loop.store), *more]
        environment = loop.environment(MLFLOW_TRACKING_URI=NOBODY, PYTHONPATH=str(entry.parent))
        done = subprocess.run(
            line, cwd=loop.cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    runs = len(loop.records())
    refused = run("--set", "distill.processes=4")
    assert (
        "understudy: distill.processes is 4, and the launcher has started 2 processes; set it to auto, or start 4"
        in (refused.err.splitlines())
    )
    assert runs == len(loop.records())
    ended = run("--run", "two")
    assert 0 == ended.code, ended.err
    assert runs + 1 == len(loop.records())
    alike(one, loop.artifact("distill", "two"))


_FULL = """
import os

if os.environ.get("RANK") == "1":
    import torch
    from pipeline.distillation import trainer

    whole, most = trainer.mean_loss, []

    def limited(hidden_NH, *rest):
        most.append(len(hidden_NH) // 2)
        if len(hidden_NH) > most[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(hidden_NH, *rest)

    trainer.mean_loss = limited
"""


@pytest.mark.long
def test_one_of_the_processes_without_memory_ends_the_command_with_its_line(loop: Place) -> None:
    """Although the other one has memory, and waits for it."""
    (loop.root / "sitecustomize.py").write_text(_FULL)  # which Python imports first
    path = os.pathsep.join([str(loop.root), str(Path(understudy_cli.__file__).parent)])
    ended = loop.process(
        "run", SMOKE, *FP32, *TWO, "--run", "two", MLFLOW_TRACKING_URI=NOBODY, PYTHONPATH=path, PYTHONSAFEPATH=""
    )

    assert 1 == ended.code, ended.err
    assert re.fullmatch(
        r"distill\.batch = 32: out of memory; (\d+) fits: set distill\.batch to \1 and distill\.accumulation to \d+, "
        "which trains the same, and run again",
        ended.complaint,
    )
