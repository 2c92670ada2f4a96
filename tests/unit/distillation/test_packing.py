"""Packing of documents into rows."""

import random

import pytest

from pipeline.distillation.packing import pack_rows


@pytest.mark.parametrize("seed", range(5))
def test_every_document_is_in_one_row_that_holds_it(seed: int) -> None:
    """No row is longer than the longest document, and no two rows would fit into one."""
    generator = random.Random(seed)
    lengths = [generator.randint(1, 60) for _ in range(200)]
    rows = pack_rows(lengths)
    used = sorted(sum(lengths[number] for number in row) for row in rows)

    assert list(range(200)) == sorted(number for row in rows for number in row)
    assert used[-1] <= max(lengths)
    assert used[0] + used[1] > max(lengths)


def test_documents_of_one_length_have_a_row_each() -> None:
    """Packing gains nothing here."""
    assert [[0], [1], [2]] == list(pack_rows([7, 7, 7]))


def test_rows_by_hand() -> None:
    """Best-fit decreasing: 3 is packed with 7, not with 5, and rows are sorted by their first documents."""
    assert [[0, 3], [1, 2], [4]] == list(pack_rows([5, 3, 7, 4, 10]))


def test_nothing_packs_to_nothing() -> None:
    """No documents, no rows."""
    assert [] == list(pack_rows([]))


def test_the_fullest_row_that_holds_a_document_takes_it() -> None:
    """3 is packed with 7, which fills the row, not with 6, which is in an earlier row."""
    assert [[0], [1], [2, 3]] == list(pack_rows([10, 6, 7, 3]))
