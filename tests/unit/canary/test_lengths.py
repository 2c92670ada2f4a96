"""Which draft lengths an engine should have, by the champion's export."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.canary.lengths import ExpectedLengths, exported_lengths

CHAMPION = "d"


def _expected(digest: str, gamma: int, *by_batch: int) -> Any:
    return SimpleNamespace(draft=SimpleNamespace(digest=digest), gamma=gamma, draft_lengths_by_batch=list(by_batch))


@pytest.mark.parametrize(
    ("expected", "at_once", "lengths"),
    [
        (None, None, ExpectedLengths((7,), exported=False)),
        (_expected("another", 3), None, ExpectedLengths((7,), exported=False)),  # of a version before
        (_expected(CHAMPION, 3), None, ExpectedLengths((3,), exported=True)),
        (_expected(CHAMPION, 5, 5, 3, 1, 0), None, ExpectedLengths((1, 3, 5), exported=True)),
        (_expected(CHAMPION, 5, 5, 3, 1, 0), 2, ExpectedLengths((3, 5), exported=True)),
        (_expected(CHAMPION, 5, 5, 3, 1, 0), 9, ExpectedLengths((1, 3, 5), exported=True)),
    ],
)
def test_lengths_of_an_export(expected: Any, at_once: int | None, lengths: ExpectedLengths) -> None:
    """One for all batch sizes, or those of a schedule, up to the requests that an idle engine has at once."""
    assert lengths == exported_lengths(expected, CHAMPION, 7, at_once)
