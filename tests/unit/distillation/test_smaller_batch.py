"""What is said where a batch does not fit, besides a size that does."""

import pytest

from pipeline.config.distill import DistillConfig
from pipeline.distillation import smaller_batch
from pipeline.distillation.smaller_batch import remedy


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
