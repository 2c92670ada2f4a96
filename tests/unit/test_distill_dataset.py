"""Batches of distillation: every teacher column beside the position that predicts its token."""

import numpy as np
import pytest
import torch

from pipeline.distillation.dataset import Collator
from pipeline.generation.store import Spoken
from tests.fakes import spoken


@pytest.fixture
def rows() -> list[Spoken]:
    """Three completions of different lengths; the second has three tokens of overrun."""
    return [
        spoken([5, 6, 7], [8, 9], name="a", seed=1),
        spoken([11], [12, 13, 14, 15, 16, 17], name="b", length=3, seed=2),
        spoken([21, 22], [23], name="c", seed=3),
    ]


def test_a_position_predicts_the_token_behind_it(rows: list[Spoken]) -> None:
    """The first distribution stands at the prompt's last token, the last one before the last token; nowhere else."""
    batch = Collator(rows)([{"row": 0}, {"row": 2}])

    assert [[5, 6, 7, 8, 9], [21, 22, 23, 0, 0]] == batch["input_ids"].tolist()
    assert [[0, 0, 1, 1, 0], [0, 1, 0, 0, 0]] == batch["predicts"].int().tolist()
    assert [8, 9, 23] == batch["next_tokens"][batch["predicts"]].tolist()
    assert [0, 2] == batch["rows"].tolist()


def test_every_marked_position_is_followed_by_its_token(rows: list[Spoken]) -> None:
    """What `predicts` marks at t is the input at t + 1, in every row."""
    batch = Collator(rows)([{"row": 0}, {"row": 1}, {"row": 2}])
    row, position = batch["predicts"].nonzero(as_tuple=True)

    assert batch["input_ids"][row, position + 1].tolist() == batch["next_tokens"][row, position].tolist()


def test_teacher_columns_stand_with_their_tokens(rows: list[Spoken]) -> None:
    """Read out at the marked positions, each column is the store's, row after row, in the batch's order."""
    batch = Collator(rows)([{"row": 2}, {"row": 0}])
    order, marked = [rows[2], rows[0]], batch["predicts"]

    for name in ("top_ids", "top_log_p", "tail_log_p"):
        stored = np.concatenate([getattr(row, name) for row in order])
        np.testing.assert_array_equal(stored, batch[name][marked].numpy())


def test_the_overrun_is_not_trained_on(rows: list[Spoken]) -> None:
    """Tokens past the end are for the examination alone."""
    batch = Collator(rows)([{"row": 1}])

    assert [[11, 12, 13, 14]] == batch["input_ids"].tolist()
    assert [[True, True, True, False]] == batch["predicts"].tolist()


def test_columns_have_the_types_a_loss_takes(rows: list[Spoken]) -> None:
    """Ids are int64 and log-probabilities fp32, although the store keeps fp16."""
    batch = Collator(rows)([{"row": 0}])

    assert {torch.int64} == {batch[name].dtype for name in ("input_ids", "next_tokens", "top_ids")}
    assert {torch.float32} == {batch[name].dtype for name in ("top_log_p", "tail_log_p")}
