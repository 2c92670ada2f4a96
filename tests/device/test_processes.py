"""Several processes of one training, each with a device of its own: the CPU's weights and log, where each has a copy of the draft
(DDP) and where they divide it (FSDP2)."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pipeline.config.distill import LoraConfig
from pipeline.distillation.processes import number
from tests.device.on_device import APART, DEVICE, ON_GPU, environment
from tests.integration.trained import SETTINGS, Killed, flat, in_processes, killed_before_the_last_examination, trained

pytestmark = pytest.mark.skipif(ON_GPU and torch.cuda.device_count() < 2, reason="there is one GPU")

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "adamw": ({}, 7),
    "muon": ({"optimizer": "muon"}, 7),
    "no row for a process": ({"loss": "forward_kl"}, 5),
    "accumulation": ({"accumulation": 2, "batch": 2, "segment_shares": {"thinking": 0.25}}, 7),
    "activations made anew": ({"gradient_checkpointing": True}, 7),
    "adapters": ({"lora": LoraConfig(rank=2)}, 7),
}
WAYS = {"copies": False, "parts": True}


def _case(name: str, work: Path, **options: Any) -> list[Any]:
    changes, rows = CASES[name]
    return trained(SETTINGS.model_copy(update=changes), rows, work, **options)


def _there(name: str, work: Path, shard: bool, **options: Any) -> list[Any]:
    """In a process of several, on its device."""
    device = torch.device(DEVICE.type, torch.accelerator.current_device_index())
    assert device.index == number()
    # A model that is divided comes from the CPU.
    return _case(
        name,
        work,
        shard=shard,
        kind=device.type,
        prepared=lambda model: model if shard else model.to(device),
        **options,
    )


def _killed_and_resumed(name: str, work: Path, shard: bool) -> list[Any]:
    with pytest.raises(Killed):
        _there(name, work, shard, before=killed_before_the_last_examination())
    return _there(name, work, shard)


def _refused() -> list[str]:
    """Why tensors of the host, of another card and of two cards are refused in a process of two."""
    own, other = (torch.ones(2, device=torch.device(DEVICE.type, (number() + more) % 2)) for more in (0, 1))
    tried: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.all_reduce(other),
        lambda: own + other,
    ]
    return [_message(one) for one in tried]


def _message(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def _all(work: Path) -> dict[str, Any]:
    return {
        "refused": [] if ON_GPU else _refused(),
        **{
            way: {
                "resumed": _killed_and_resumed("muon", work / way / "resumed", shard),
                **{name: _there(name, work / way / name, shard) for name in CASES},
            }
            for way, shard in WAYS.items()
        },
    }


def main(work: Path) -> None:
    """Of the process that starts the two. It has not used the device: a process that has cannot be forked."""
    assert in_processes(2, lambda: _all(work), work / "out.json", DEVICE.type) == [0, 0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Weights and logs of all cases, in one start of two processes."""
    work = tmp_path_factory.mktemp("two")
    program = f"from pathlib import Path; from {__name__} import main; main(Path({str(work)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(2), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((work / "out.json").read_text())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_the_cpu(name: str, way: str, two: Any, tmp_path: Path) -> None:
    weights, log = _case(name, tmp_path)
    found, other = two[way][name]

    assert flat(other) == pytest.approx(flat(log), rel=APART)
    for part, values in weights.items():
        assert found[part] == pytest.approx(values, abs=APART), part


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_training_goes_on_bit_for_bit(way: str, two: Any) -> None:
    assert two[way]["resumed"] == two[way]["muon"]


@pytest.mark.skipif(ON_GPU, reason="of the pretend device")
def test_the_pretend_device_refuses_what_several_gpus_refuse(two: Any) -> None:
    of_host, of_another, of_two = two["refused"]
    assert "cpu" in of_host
    assert "a tensor of pretend:1 is exchanged on pretend:0" in of_another
    assert "pretend:0 and pretend:1" in of_two
