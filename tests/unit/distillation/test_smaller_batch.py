"""What is said where a training runs out of memory: the batch that fits, or how the draft takes less."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config.distill import DistillConfig
from pipeline.distillation import smaller_batch
from pipeline.distillation.smaller_batch import attempt, otherwise, remedy
from pipeline.errors import UnderstudyError
from pipeline.models.out_of_memory import batch_named


@pytest.mark.parametrize(
    ("batch", "accumulation", "processes", "fits", "said"),
    [
        (16, 1, 1, 4, "set distill.batch to 4 and distill.accumulation to 4, which trains the same,"),
        (16, 3, 4, 8, "set distill.batch to 8 and distill.accumulation to 6, which trains the same,"),
        (12, 1, 4, 6, "set distill.batch to 4 and distill.accumulation to 3, which trains the same,"),
        (10, 1, 1, 4, "set distill.batch to 4"),
    ],
)
def test_the_batch_that_is_named_can_be_divided_among_the_processes(
    batch: int, accumulation: int, processes: int, fits: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one would be refused."""
    monkeypatch.setattr(smaller_batch, "count", lambda: processes)

    assert said == remedy(DistillConfig(batch=batch, accumulation=accumulation))(fits)


@pytest.mark.parametrize(
    ("processes", "divided", "room", "said"),
    [
        (
            1,
            False,
            0,
            ", and in smaller batches too; train adapters (distill.lora), or on several GPUs with distill.shard",
        ),
        (
            4,
            False,
            3,
            ", and in smaller batches too; set distill.shard to true, so that the processes divide weights, ",
        ),
        (
            2,
            True,
            0,
            "; 6 may fit: set distill.batch to 6 and distill.accumulation to 2, which trains the same, and run",
        ),
        (8, True, 0, "; train in more processes, or on devices with more memory"),
    ],
)
def test_where_no_batch_fits_a_way_out_is_named(
    processes: int, divided: bool, room: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a divided draft cannot be tried in one process: half is named, untried."""

    def train(model: Any, batch: list[Any]) -> None:
        if len(batch) > room:
            raise MemoryError

    monkeypatch.setattr(smaller_batch, "count", lambda: processes)
    monkeypatch.setattr(smaller_batch, "is_divided", lambda model: divided)
    trainer = SimpleNamespace(model=None, training_step=train, data_collator=lambda rows: rows, optimizer=None)
    documents = cast(Any, SimpleNamespace(rows=range(20), length=lambda row: 5))
    step, todo = attempt(trainer, documents), remedy(DistillConfig(batch=12))
    with (
        pytest.raises(UnderstudyError) as found,
        batch_named("distill.batch", 12, step, todo, otherwise(None), tried=not divided),
    ):
        raise MemoryError

    assert str(found.value).startswith(f"distill.batch = 12: out of memory{said}")
