"""What a verification does at its end. Engines and the registry are stand-ins; the whole is in tests/integration."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.canary import verify as module
from pipeline.canary.decision import VerifyDecision
from pipeline.canary.production import Production
from pipeline.errors import UnderstudyError


def _never(*arguments: Any) -> None:
    raise AssertionError("nothing may be done")


@pytest.mark.parametrize("action", ["reload", "roll_back", "alarm"])
@pytest.mark.parametrize(("champion", "said"), [("3", "meanwhile version 3 is champion"), ("", "there is no champion")])
def test_another_champion_meanwhile_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, action: Any, champion: str, said: str
) -> None:
    """A person promoted or rolled back while the engines were asked: the new one is not banned for the one before."""
    asked = SimpleNamespace(draft=SimpleNamespace(name="d", version="2"), examined=SimpleNamespace(draft=None))
    scope = SimpleNamespace(registry=SimpleNamespace(entry=lambda: SimpleNamespace(champion=champion)))

    def look(state: Any, progress: Any) -> Production:
        state.canary = SimpleNamespace(draft=SimpleNamespace(verdict="as_examined"))
        return Production(state="short", why="")

    for name, stand_in in {
        "question": lambda *_: asked,
        "CanaryDraft": lambda *_: None,
        "_look": look,
        "_decide": lambda *_: VerifyDecision(action, "why"),
        "handover": lambda *_: nullcontext(scope),
        "tell_again": _never,
        "roll_back": _never,
        "VERIFICATION": SimpleNamespace(write=_never),
    }.items():
        monkeypatch.setattr(module, name, stand_in)
    with pytest.raises(UnderstudyError, match=said):
        module.verify(None, None, SimpleNamespace(warn=lambda line: None), 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("looks", [1, 2, 5])
def test_a_wait_is_told_once(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """For what, and for how long at most; a verification that ends at once says nothing."""
    found = [*[VerifyDecision("wait", "engine a is starting")] * (looks - 1), VerifyDecision("verified", "as examined")]
    decisions, said = iter(found), list[str]()
    asked = SimpleNamespace(draft=SimpleNamespace(name="d", version="2"), examined=SimpleNamespace(draft=None))

    def look(state: Any, progress: Any) -> Production:
        state.canary = SimpleNamespace(draft=SimpleNamespace(verdict="as_examined"))
        return Production(state="short", why="")

    for name, stand_in in {
        "question": lambda *_: asked,
        "CanaryDraft": lambda *_: None,
        "_look": look,
        "_decide": lambda *_: next(decisions),
        "EngineCheck": lambda **facts: SimpleNamespace(**facts),
        "VERIFICATION": SimpleNamespace(write=lambda *_: None),
    }.items():
        monkeypatch.setattr(module, name, stand_in)
    module.verify(None, None, SimpleNamespace(line=said.append), 0.2)  # type: ignore[arg-type]
    told = ["verify: engine a is starting; waiting for at most 0 s (--wait)"]
    assert said == (told if looks > 1 else [])
