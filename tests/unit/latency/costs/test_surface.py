"""Measured forward times, and what lies between them."""

import json
import re
from typing import Any

import numpy as np
import pytest

from pipeline.errors import UnderstudyError
from pipeline.latency.costs.surface import Surface, read_surface

TABLE = Surface((1, 2, 8), (1, 4), (128,), np.array([[[1.0], [1.0]], [[4.0], [5.0]], [[10.0], [14.0]]]))


def test_what_was_measured_is_given_back() -> None:
    """Jumps and all."""
    batches, tokens = np.meshgrid(TABLE.batches, TABLE.tokens, indexing="ij")

    np.testing.assert_allclose(TABLE.at(batches, tokens, 128), TABLE.seconds_BTC[..., 0])


def test_between_points_it_is_linear_and_past_the_last_it_goes_on() -> None:
    """By the last two points; a context that was measured once stands for all."""
    np.testing.assert_allclose(TABLE.at([5, 14], 1, [128, 9999]), [7.0, 16.0])
    np.testing.assert_allclose(TABLE.at(2, [2, 3, 7], 128), [4 + 1 / 3, 4 + 2 / 3, 6.0])


def test_noise_at_the_end_leads_to_no_time_below_the_least() -> None:
    """Twice the batch in half the time is no forecast."""
    falling = Surface((1, 2), (1,), (0,), np.array([[[1.0]], [[0.9]]]))

    assert 0.9 == float(falling.at(64, 1, 0))


def test_one_point_is_a_table() -> None:
    """The same everywhere."""
    one = Surface((1,), (1,), (0,), np.array([[[0.5]]]))

    np.testing.assert_allclose(one.at([1, 5, 9], 1, 0), 0.5)


@pytest.mark.parametrize(("batch", "tokens", "expected"), [(8, 4, True), (9, 4, False), (8, 5, False)])
def test_it_says_where_it_ends(batch: int, tokens: int, expected: bool) -> None:
    """What lies beyond is a guess."""
    assert expected == TABLE.covers(batch, tokens, 128)


def test_it_survives_json() -> None:
    """Written and read."""
    again = read_surface(json.loads(json.dumps(TABLE.json())), "profile.json")

    assert (TABLE.batches, TABLE.tokens, TABLE.contexts) == (again.batches, again.tokens, again.contexts)
    np.testing.assert_array_equal(TABLE.seconds_BTC, again.seconds_BTC)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": [[[1.0]]]}, "seconds has shape (1, 1, 1), but batches, tokens and contexts give (3, 2, 1)"),
        ({"seconds": "fast"}, "seconds is not a table of numbers"),
        ({"seconds": [[[1.0], [1.0]], [[-4.0], [5.0]], [[1.0], [1.0]]]}, "must all be above 0, but the smallest is -4"),
        ({"batches": [1, 8, 2]}, "batches: [1, 8, 2] must be increasing whole numbers"),
        ({"batches": []}, "batches: [] must be"),
        ({"tokens": [1.5, 2]}, "tokens: [1.5, 2] must be"),
        ({"more": 1}, "needs batches, tokens, contexts and seconds"),
    ],
)
def test_a_table_that_is_none_is_one_line(change: dict[str, Any], message: str) -> None:
    """Naming the file and what is wrong with it."""
    with pytest.raises(UnderstudyError, match=re.escape(message)) as found:
        read_surface(TABLE.json() | change, "profile.json")

    assert str(found.value).startswith("profile.json: ")
