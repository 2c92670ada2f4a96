"""How long a claim counts, by its holder."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.registry import claims
from pipeline.registry.claims import STALE_SECONDS, Claim, Held, take
from pipeline.registry.mlflow_client import Location
from pipeline.store.artifacts import Store
from tests.registry_in_memory import PortInMemory, Server


@pytest.mark.parametrize(
    ("wall", "passed", "expected"),
    [(0, 0, False), (-3600, 10, False), (-3600, STALE_SECONDS, True), (3600, 10, True)],
    ids=["young", "clock set back", "clock set back, stopped for long", "clock set forward: others may take it over"],
)
def test_a_claim_expires_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, wall: float, passed: float, expected: bool
) -> None:
    """Such as that of a process that was stopped: it must not move an alias that another one has moved in the meantime."""
    claim = Claim("draft", 1, 1, taken_at=1e9, ticks=100.0)
    monkeypatch.setattr("pipeline.registry.claims.time.time", lambda: 1e9 + wall)
    monkeypatch.setattr(claims, "_ticks", lambda: 100.0 + passed)
    assert expected is claim.expired


@pytest.mark.parametrize(
    ("server_seconds", "expected"),
    [(5.0, Held), (STALE_SECONDS + 5, Claim)],
    ids=["by the server's clock it is young", "it is old"],
)
def test_a_clock_that_is_ahead_takes_no_live_claim_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server_seconds: float, expected: type
) -> None:
    """Two machines, of which one's clock is an hour ahead of the server's: to it each claim of the other looks abandoned. The
    server's clock, which dates both generations, decides, and what was created too early is gone again."""
    now = [time.time()]
    monkeypatch.setattr("tests.registry_in_memory.time", SimpleNamespace(time=lambda: now[0]))
    store = Store(tmp_path / "store")
    server = Server()
    port = PortInMemory(server, Location("memory", None, "x", store), "draft")
    with monkeypatch.context() as other:
        other.setattr(claims, "machine", lambda: "elsewhere")
        assert isinstance(take(port, 1, {}), Claim)
    now[0] += server_seconds
    ahead = {name: getattr(time, name) for name in ("strftime", "gmtime", "clock_gettime", "CLOCK_MONOTONIC")}
    monkeypatch.setattr(claims, "time", SimpleNamespace(**ahead, time=lambda: now[0] + 3600))

    found = take(port, 1, {})

    assert expected is type(found)
    assert (["draft--claim-1"] if expected is Held else ["draft--claim-1", "draft--claim-1.2"]) == list(server.prompts)


def test_a_killed_takeover_that_was_too_early_opens_no_way_past_a_live_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process whose clock is ahead was killed before it deleted the second generation: the first one is still at work, and
    nobody moves the alias beside it until the server's clock says that it is old."""
    now = [time.time()]
    monkeypatch.setattr("tests.registry_in_memory.time", SimpleNamespace(time=lambda: now[0]))
    port = PortInMemory(Server(), Location("memory", None, "x", Store(tmp_path / "store")), "draft")
    for generation, place, process in (("", "elsewhere", "1 1"), (".2", claims.machine(), f"{2**22 + 1} 1")):
        tags = {"understudy.claim.machine": place, "understudy.claim.process": process}
        port.create_prompt(f"draft--claim-1{generation}", tags, "")

    assert isinstance(take(port, 1, {}), Held)
    assert not claims.is_abandoned(port, 1)
    now[0] += STALE_SECONDS + 5
    assert isinstance(take(port, 1, {}), Claim)


@pytest.mark.parametrize(("ended", "expected"), [(True, Claim), (None, Held), (False, Held)])
def test_a_process_of_which_nothing_is_known_holds_its_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: bool | None, expected: type
) -> None:
    """/proc hides processes of other users (`hidepid`): only one that has certainly ended is followed before its claim is old."""
    port = PortInMemory(Server(), Location("memory", None, "x", Store(tmp_path / "store")), "draft")
    assert isinstance(take(port, 1, {}), Claim)
    monkeypatch.setattr(claims, "has_ended", lambda _: ended)

    assert expected is type(take(port, 1, {}))
    assert (ended is True) is claims.is_abandoned(port, 1)
