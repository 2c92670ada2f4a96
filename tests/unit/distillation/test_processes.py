"""What the processes of a training tell each other, without the others. With them: `test_training_processes.py`."""

from typing import Any

import pytest
import torch

from pipeline.distillation import processes
from pipeline.errors import UsageError


def test_one_process_is_all_and_the_first() -> None:
    assert (1, 0, True) == (processes.count(), processes.number(), processes.is_first())
    assert 7 == processes.from_first(lambda: 7)
    assert [3.0] == processes.summed(torch.tensor([3.0])).tolist()


def test_devices_that_cannot_exchange_tensors_train_in_one_process() -> None:
    with pytest.raises(UsageError, match=r"^distill\.processes: torch has no exchange .* kind meta; set it to 1$"):
        processes.join("meta")


@pytest.mark.parametrize("number", [0, 1])
def test_what_the_first_process_finds_is_what_all_have(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of dev prompts decide when a training ends: by its own, rounded otherwise, one process would end before another."""
    sent = list[Any]()

    def broadcast(found: list[Any]) -> None:
        sent.append(found[0])
        found[0] = "of the first"

    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "number", lambda: number)
    monkeypatch.setattr(processes.dist, "broadcast_object_list", broadcast)
    assert "of the first" == processes.from_first(lambda: f"of {number}")
    assert [["of 0"], [None]][number] == sent
