"""The loop from the command line, `device: auto`: it finds the device, and its figures are the CPU's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.device.kit.models import Setup
from tests.device.kit.rehearsal import interrupted_loop
from tests.device.on_device import DEVICE, FIGURES, ON_GPU, environment

_CONFIGS = Path(__file__).resolve().parents[2] / "configs"
_MAIN = "from pipeline.cli import main; main()"
# bitsandbytes has no kernels for the pretend device.
_VARIANTS = () if ON_GPU else ("--set", "quantize.variants=[]")


def _understudy(*words: str | Path, on_device: bool = True, devices: int = 1, timeout: float = 600.0) -> str:
    """What the command prints. It runs in a process of its own, which has to find the device, or several, by itself."""
    command, own = [sys.executable, "-c", _MAIN, *map(str, words)], environment(devices, on_device)
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def _run(
    config: str, store: Path, *words: str, on_device: bool = True, devices: int = 1, timeout: float = 600.0
) -> None:
    device = () if on_device else ("--set", "device=cpu")
    options = ("--store", store, "--until", "evaluate", *_VARIANTS, *device, *words)
    _understudy("run", _CONFIGS / f"{config}.yaml", *options, on_device=on_device, devices=devices, timeout=timeout)


def _figures(store: Path) -> dict[str, float]:
    """Acceptance of the examined drafts, by job."""
    found = {}
    for manifest in sorted((store / "artifacts").glob("evaluate-*/manifest.json")):
        content = json.loads(manifest.read_text())
        found[content["part"]] = content["figures"]["acceptance_rate"]
    return found


def _device_of(store: Path, stage: str) -> set[str]:
    manifests = [json.loads(path.read_text()) for path in (store / "artifacts").glob(f"{stage}-*/manifest.json")]
    return {manifest["environment"]["device"].split()[0] for manifest in manifests}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke config on the device."""
    store = tmp_path_factory.mktemp("smoke")
    _run("smoke", store)
    return store


def test_the_smoke_loop_has_the_figures_of_the_cpu(smoke: Path, tmp_path: Path) -> None:
    """A sampled token may differ after a training whose sums have another order, so figures are near, not equal."""
    _run("smoke", tmp_path, on_device=False)

    assert (
        {DEVICE.type} == _device_of(smoke, "generate") == _device_of(smoke, "distill") == _device_of(smoke, "evaluate")
    )
    assert {"cpu"} == _device_of(tmp_path, "distill")
    assert _figures(smoke) == pytest.approx(_figures(tmp_path), abs=10 * FIGURES)


def test_a_training_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    """As the kit does it on a card."""
    found = interrupted_loop(Setup(DEVICE, tiny=True, work=tmp_path), "smoke")
    assert (found["interrupted"], found["went_on"]) == (True, True)


def test_a_training_has_on_policy_rounds(tmp_path: Path) -> None:
    """For which the target is loaded beside the draft."""
    rounds = ("--set", "distill.on_policy.rounds=1", "--until", "distill")
    _run("smoke", tmp_path, *rounds)
    assert {DEVICE.type} == _device_of(tmp_path, "distill")


@pytest.mark.skipif(ON_GPU and torch.cuda.device_count() < 2, reason="there is one GPU")
def test_a_draft_is_divided_among_the_devices(smoke: Path, tmp_path: Path) -> None:
    """`distill.processes: auto` is a process for each, which `understudy` starts. Another training than that of the store."""
    store = shutil.copytree(smoke, tmp_path / "store")
    before = set((store / "artifacts").glob("distill-*"))
    _run("smoke", store, "--until", "distill", "--set", "distill.shard=true", "--set", "distill.max_steps=6", devices=2)
    (artifact,) = set((store / "artifacts").glob("distill-*")) - before
    figures = json.loads((artifact / "manifest.json").read_text())["figures"]
    assert (figures["processes"], figures["shard"]) == (torch.cuda.device_count() if ON_GPU else 2, 1)


def test_a_pair_is_decoded(smoke: Path) -> None:
    """By a command that takes models, not a config."""
    (pair,), (draft,) = ((smoke / "artifacts").glob(f"{stage}-*") for stage in ("pair", "distill"))
    words = ("--target", pair / "target", "--draft", draft / "draft")
    assert "tokens per target call" in _understudy("decode", *words, "--max-new-tokens", "12", "def f(x):")


def test_several_workers_share_the_device(smoke: Path, tmp_path: Path) -> None:
    """Shards of generation and examination, each process with the device that `auto` means."""
    _run("smoke", tmp_path, "--set", "execution.local=2")
    assert {DEVICE.type} == _device_of(tmp_path, "generate")
    assert _figures(smoke) == pytest.approx(_figures(tmp_path), abs=10 * FIGURES)
