"""The learning curve: nested subsets, and the extrapolation to twice the data."""

import pytest

from pipeline.distillation.learning_curve import CurvePoint, curve_json, next_doubling
from pipeline.distillation.task import subset
from tests.fakes import stored_completion

SPOKEN = [
    stored_completion([3, 4], [5, 6], name=f"{domain}-{n // 2}", domain=domain, seed=n)
    for domain, count in (("code", 80), ("chat", 20))
    for n in range(count)
]


def _points(*values: tuple[int, float]) -> list[CurvePoint]:
    return [CurvePoint(count, 10 * count, acceptance, 2.0) for count, acceptance in values]


def test_parts_are_nested_whole_and_even() -> None:
    """A smaller subset is contained in a larger one, prompts keep all their completions, and every domain has the same share."""
    parts = [subset(SPOKEN, share) for share in (0.2, 0.5, 0.8)]
    ids = [[item.id for item in some] for some in parts]

    assert [20, 50, 80] == [round(100 * len(some) / len(SPOKEN)) for some in parts]
    assert set(ids[0]) < set(ids[1]) < set(ids[2])
    for some in parts:
        assert 4 * sum(item.domain == "chat" for item in some) == sum(item.domain == "code" for item in some)
        assert all(2 == [one.id for one in some].count(item.id) for item in some)


def test_a_part_is_never_empty() -> None:
    """The smallest share of a small domain is one prompt."""
    assert {"code", "chat"} == {item.domain for item in subset(SPOKEN, 0.001)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (((100, 0.60), (200, 0.64), (400, 0.66)), 0.01),  # 4 points, then 2: next 1
        (((400, 0.66), (100, 0.60), (200, 0.64)), 0.01),
        (((100, 0.60), (400, 0.66)), 0.03),  # two doublings, 3 points each
        (((100, 0.60), (200, 0.61), (400, 0.64)), 0.03),  # gains that grow are not said to grow on
        (((100, 0.60), (200, 0.64), (400, 0.63)), 0.0),
        (((100, 0.60), (200, 0.59), (400, 0.61)), 0.02),
    ],
    ids=str,
)
def test_gains_go_on_shrinking(values: tuple[tuple[int, float], ...], expected: float) -> None:
    """Values computed by hand."""
    assert pytest.approx(expected) == next_doubling(_points(*values))


def test_one_point_is_no_curve() -> None:
    """Nor are two of one size."""
    assert next_doubling(_points((100, 0.6))) is None
    assert next_doubling(_points((100, 0.6), (100, 0.7))) is None


def test_the_file_is_in_order() -> None:
    """Sorted by size, for any order in the config."""
    found = curve_json(_points((400, 0.66), (100, 0.60)))

    assert [100, 400] == [point["completions"] for point in found["points"]]
    assert pytest.approx(0.03) == found["next_doubling"]
