"""What cannot fit is refused before it is loaded, with the numbers; what the host has free is read from the system's files."""

import re
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import UsageError
from pipeline.models import memory, memory_plan
from pipeline.models.loading import load_model
from pipeline.models.memory import free_host_memory
from pipeline.models.memory_plan import DecodedBatch, require_memory, require_training_memory
from tests.fakes import change_json, tiny_llama

CPU, MIB, GIB = torch.device("cpu"), 1 << 20, 1 << 30
MEMINFO = "MemTotal:  9999 kB\nMemAvailable:  3072 kB\nSwapFree:  1024 kB\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3.2 million parameters; keys and values of a token take 4 x 2 x 128 numbers, its logits 4,096."""
    path = tmp_path_factory.mktemp("target")
    tiny_llama(3, vocabulary=4096, hidden=256, layers=4, dtype=torch.float32).save_pretrained(path)
    return path


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Free bytes by place."""
    found = {"cpu": 100 * GIB}
    monkeypatch.setattr(memory_plan, "_free_on", lambda place: found.get(place))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found) - 1)
    return found


def _weights(path: Path, dtype: str) -> int:
    return memory_plan._weights(path, dtype, False)


def test_weights_that_do_not_fit_are_refused_before_anything_is_loaded(
    saved: Path, free: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every loading; in a smaller dtype the same model fits."""
    parameters = sum(weight.numel() for weight in load_model(saved, "float32", CPU).parameters())
    assert (4 * parameters, 2 * parameters) == (_weights(saved, "float32"), _weights(saved, "bfloat16"))
    free["cpu"] = 3 * parameters
    load_model(saved, "bfloat16", CPU)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *a, **k: pytest.fail("loaded"))
    with pytest.raises(UsageError, match=r"its weights take 1\d\.\d MiB as float32, and \d+\.\d MiB are free on cpu; "):
        load_model(saved, "float32", CPU)


def test_a_batch_that_does_not_fit_is_refused_with_one_that_does(saved: Path, free: dict[str, int]) -> None:
    """Weights, KV caches and logits by the shapes of the config; the size that is named passes, one more does not."""
    a_row, weights = 4 * 2 * 128 * 4 * 1000 + 8 * 4096, _weights(saved, "float32")
    free["cpu"] = weights + 10 * a_row + 5

    def check(rows: int) -> None:
        require_memory(saved, "float32", CPU, None, False, DecodedBatch(key="generate.batch", rows=rows, tokens=1000))

    check(10)
    with pytest.raises(UsageError) as found:
        check(64)
    said = str(found.value)
    assert said.startswith("generate.batch = 64: weights of ")
    assert "KV caches of 64 x 1,000 tokens of 250.0 MiB and logits of 2.0 MiB do not fit: " in said
    assert said.endswith("are free on cpu; set generate.batch to 10 or fewer")
    with pytest.raises(UsageError, match="do not fit"):
        check(11)


@pytest.mark.parametrize(("method", "width"), [("torchao", 4), ("fp8", 2)])
def test_quantized_weights_take_what_their_files_do(
    saved: Path, tmp_path: Path, free: dict[str, int], method: str, width: int
) -> None:
    """Whatever `dtype` says; but fp8 becomes bfloat16 when it is loaded. Caches are in bfloat16."""
    shutil.copytree(saved, tmp_path / "target")
    change_json(tmp_path / "target" / "config.json", quantization_config={"quant_method": method})
    parameters, row = _weights(saved, "bfloat16") // 2, 4 * 2 * 128 * 2 * 100 + 8 * 4096
    free["cpu"] = width * parameters + 2 * row

    def check(rows: int) -> None:
        batch = DecodedBatch(key="generate.batch", rows=rows, tokens=100)
        require_memory(tmp_path / "target", "bfloat16" if width == 4 else "float32", CPU, None, False, batch)

    check(2)
    with pytest.raises(UsageError, match=r"set generate\.batch to 2 or fewer"):
        check(3)
    free["cpu"] = width * parameters - 1
    with pytest.raises(UsageError, match=r"its weights take .* as they are quantized, and"):
        check(1)


def test_logits_of_a_large_vocabulary_count(saved: Path, free: dict[str, int]) -> None:
    """In fp32, and once more as log-probabilities: for short sequences they are most of a batch."""
    caches, logits, weights = 4 * 2 * 128 * 2 * 4, 8 * 4096, _weights(saved, "bfloat16")
    free["cpu"] = weights + 8 * (caches + logits)
    batch = DecodedBatch(key="generate.batch", rows=8, tokens=4)
    require_memory(saved, "bfloat16", CPU, None, False, batch)
    free["cpu"] -= 1
    with pytest.raises(UsageError, match=r"set generate\.batch to 7 or fewer"):
        require_memory(saved, "bfloat16", CPU, None, False, batch)


@pytest.mark.parametrize(
    ("device_map", "free_on", "fits"),
    [
        ("auto", {"cpu": 0, "cuda:0": 0.6, "cuda:1": 0.6}, True),
        ("auto", {"cpu": 0, "cuda:0": 0.4, "cuda:1": 0.4}, True),
        ("auto", {"cpu": 0.5, "cuda:0": 0.6}, True),
        ({"model": 0, "lm_head": 1}, {"cpu": 9, "cuda:0": 0.4, "cuda:1": 0.4}, False),
        ({"model": "cpu", "lm_head": 1}, {"cpu": 0.7, "cuda:0": 0, "cuda:1": 0.4}, True),
        ({"model": "disk", "lm_head": 0}, {"cpu": 0, "cuda:0": 0.1}, True),
    ],
)
def test_a_target_on_several_devices_has_the_memory_of_all(
    saved: Path, free: dict[str, int], device_map: Any, free_on: dict[str, float], fits: bool
) -> None:
    """As shares of its weights; the disk takes what is too large elsewhere, with `auto` too. The remedy is not what was done
    already."""
    free.clear()
    free |= {place: int(share * _weights(saved, "float32")) for place, share in free_on.items()}
    if fits:
        require_memory(saved, "float32", CPU, device_map, False)
        return
    with pytest.raises(UsageError, match=r"free on cuda:0, cuda:1.*; take a quantized checkpoint, or serve a target"):
        require_memory(saved, "float32", CPU, device_map, False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/meminfo": MEMINFO}, 4 * MIB),
        ({}, None),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "0::/a/b",
                "/sys/fs/cgroup/a/memory.max": str(3 * MIB),
                "/sys/fs/cgroup/a/memory.current": str(2 * MIB),
                "/sys/fs/cgroup/a/memory.stat": f"anon 7\nactive_file {MIB // 2}\ninactive_file {MIB // 2}",
                "/sys/fs/cgroup/a/b/memory.max": "max",
                "/sys/fs/cgroup/a/b/memory.current": str(9 * MIB),
            },
            2 * MIB,
        ),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "5:memory:/a",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(3 * MIB),
                "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(4 * MIB),
            },
            0,
        ),
        (
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "5:memory:/a",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(3 * MIB),
                "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(3 * MIB),
                "/sys/fs/cgroup/memory/a/memory.stat": f"active_file 5\ninactive_file 6\ntotal_active_file {MIB}\n"
                f"total_inactive_file {MIB}",
            },
            2 * MIB,
        ),
    ],
    ids=["machine", "not Linux", "control group", "full control group of version 1", "files in one of version 1"],
)
def test_free_memory_of_the_host(monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int | None) -> None:
    """Swap counts; a control group around the process limits it, and files in its cache do not count as used, however often they
    were read."""
    monkeypatch.setattr(memory, "read_text", lambda path: files.get(path, ""))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert expected == free_host_memory()


def test_what_a_gpu_has_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what torch keeps of it without using it. Of other devices nothing is known."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (5 * GIB, 80 * GIB) if place == "cuda:1" else (0, 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 3 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda place: GIB)
    assert (7 * GIB, 2 * GIB, None) == tuple(memory_plan._free_on(place) for place in ("cuda:1", "cuda:0", "mps"))


def test_a_card_that_does_not_say_refuses_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is full, or another process has it to itself: what is then loaded says so."""

    def no_answer(place: str) -> None:
        raise torch.OutOfMemoryError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", no_answer)
    assert memory_plan._free_on("cuda:0") is None
    require_memory(saved, "float32", torch.device("cuda", 0), None, False)


def test_the_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ulimit -v`: what it has of it is used up."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (pages + 50 * MIB, resource.RLIM_INFINITY))
    found = free_host_memory()
    assert found is not None
    assert abs(found - 50 * MIB) < 40 * MIB


def test_this_machine_says_what_is_free() -> None:
    """Where it runs Linux."""
    if Path("/proc/meminfo").exists():
        assert re.search("MemAvailable", Path("/proc/meminfo").read_text())
        assert (free_host_memory() or 0) > MIB


def test_the_disk_takes_weights_and_no_caches(saved: Path, free: dict[str, int]) -> None:
    """With `auto`: what a batch needs beside the weights must be free on GPUs and host."""
    free["cpu"] = 10 * (4 * 2 * 128 * 4 * 1000 + 8 * 4096)

    def check(rows: int) -> None:
        require_memory(saved, "float32", CPU, "auto", False, DecodedBatch(key="generate.batch", rows=rows, tokens=1000))

    check(10)
    with pytest.raises(
        UsageError, match=r"^generate\.batch = 11: KV caches of .*on cpu, disk; set generate\.batch to 10 or"
    ):
        check(11)


@pytest.mark.parametrize(("optimizer", "parts", "a_parameter"), [("adamw", 1, 16), ("adamw", 4, 7), ("muon", 8, 5)])
def test_a_training_that_does_not_fit_is_refused(
    optimizer: Any, parts: int, a_parameter: int, saved: Path, free: dict[str, int]
) -> None:
    """Weights, gradients and optimizer state; of processes that divide them each holds its part, and in an examination the whole
    weights beside it."""
    needed = _weights(saved, "float32") // 4 * a_parameter
    free["cpu"] = needed
    require_training_memory(saved, CPU, optimizer, parts, trusted=False)
    free["cpu"] = needed - 1
    said = (
        r"a training of its 4,\d+,\d+ parameters takes \d+\.\d MiB( in each of \d processes that divide it)? \(float32 "
    )
    with pytest.raises(UsageError, match=said) as refused:
        require_training_memory(saved, CPU, optimizer, parts, trusted=False)
    assert ("divide it among several GPUs (distill.shard)" in str(refused.value)) == (parts == 1)
