"""What is derived from the registry: nothing that fails keeps back what does not depend on it."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import UnderstudyError
from pipeline.handover import settle
from pipeline.handover.settled import Settled

STEPS = ["_follow_link", "update_records", "_notified", "write"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space"), UnderstudyError("No space")], ids=["disk", "ours"]
)
@pytest.mark.parametrize(
    ("failing", "left_out"),
    [("_follow_link", {"_notified"}), ("update_records", set()), ("_notified", set()), ("write", set())],
)
def test_each_step_fails_alone(
    monkeypatch: pytest.MonkeyPatch, failing: str, left_out: set[str], error: Exception
) -> None:
    """Only servers are not told of what is not exported. The error is raised at the end, and what was told is written down."""
    called, written = list[str](), list[Settled]()

    def step(name: str, result: Any) -> Any:
        def call(*arguments: Any) -> Any:
            called.append(name)
            if name == "write" and failing != "write":
                written.append(arguments[1])
            if name == failing:
                raise error
            return result

        return call

    for name, result in zip(STEPS[:3], (None, None, {"them": 3}), strict=True):
        monkeypatch.setattr(settle, name, step(name, result))
    monkeypatch.setattr(settle, "SETTLED", SimpleNamespace(find=lambda *_: None, write=step("write", None)))
    monkeypatch.setattr(settle, "Tracker", lambda *_: None)
    monkeypatch.setattr(settle, "_not_settled", lambda *found: UnderstudyError(f"not settled: {found[-1]}"))
    registry = SimpleNamespace(name="draft", change=lambda: 3)
    scope: Any = SimpleNamespace(registry=registry, store=None, config=None, progress=None)

    with pytest.raises(UnderstudyError, match=r"not settled: .*No space"):
        settle.finish(scope, SimpleNamespace(change=3))  # type: ignore[arg-type]

    assert [name for name in STEPS if name not in left_out] == called
    if failing != "write":
        told = {} if failing in ("_follow_link", "_notified") else {"them": 3}
        assert [Settled(change=3, noticed=told)] == written
