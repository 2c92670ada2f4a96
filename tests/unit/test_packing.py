"""Which documents share a row."""

import random

import pytest

from pipeline.distillation.packing import pack_rows


@pytest.mark.parametrize("seed", range(5))
def test_every_document_is_in_one_row_that_holds_it(seed: int) -> None:
    """No row is longer than the longest document, and two rows that would fit into one do not both stand half empty."""
    generator = random.Random(seed)
    lengths = [generator.randint(1, 60) for _ in range(200)]
    rows = pack_rows(lengths)
    used = sorted(sum(lengths[number] for number in row) for row in rows)

    assert list(range(200)) == sorted(number for row in rows for number in row)
    assert used[-1] <= max(lengths)
    assert used[0] + used[1] > max(lengths)


def test_documents_of_one_length_have_a_row_each() -> None:
    """Nothing is gained by sharing."""
    assert [[0], [1], [2]] == pack_rows([7, 7, 7])


def test_rows_by_hand() -> None:
    """Best fit, longest first: 3 goes to 7, not to 5, and the order is that of the first documents."""
    assert [[0, 3], [1, 2], [4]] == pack_rows([5, 3, 7, 4, 10])


def test_nothing_packs_to_nothing() -> None:
    """No documents, no rows."""
    assert [] == pack_rows([])


def test_the_fullest_row_that_holds_a_document_takes_it() -> None:
    """3 goes to 7, which it fills, not to 6, which came first."""
    assert [[0], [1], [2, 3]] == pack_rows([10, 6, 7, 3])
