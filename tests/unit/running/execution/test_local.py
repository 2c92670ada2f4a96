"""Which GPU each process gets."""

import pytest

from pipeline.running.execution import local
from pipeline.running.execution.local import devices_of


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        ("auto", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 4, ["cuda:0", "cuda:1", "cuda:2"]),
        ("auto", 0, ["auto"] * 3),
        ("cpu", 4, ["cpu"] * 3),
        ("cuda:1", 4, ["cuda:1"] * 3),
    ],
)
def test_processes_get_the_gpus_one_after_another(
    device: str, gpus: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the config names one."""
    monkeypatch.setattr(local, "_gpus", lambda: gpus)

    assert expected == devices_of(device, 3)
