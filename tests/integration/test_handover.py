"""What follows the champion: the exported link, records, notices. A kill between any two steps is repaired by the next call.

The registry is in memory, and MLflow's in tests that kill.
"""

import errno
import http.server
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from tenacity import wait_none

from pipeline.config.promote import NoticeConfig
from pipeline.config.root import Config
from pipeline.errors import Refused, UnderstudyError, UsageError
from pipeline.export import link
from pipeline.handover import records, settle
from pipeline.handover.difference import difference
from pipeline.handover.rollback import Rollback, roll_back
from pipeline.judgement.decision_file import write_decision
from pipeline.notices import send
from pipeline.notices.champion import Notice
from pipeline.registry import claims
from pipeline.registry.mlflow_port import MlflowPort
from pipeline.registry.registry import Registry, registry_for
from pipeline.store import state_files
from pipeline.store.artifacts import Store
from pipeline.store.state_files import StateFile
from tests.decisions import make_decision
from tests.exports import make_export
from tests.integration.mlflow_fixtures import Quiet, config_of, make_draft, mlflow_template, promote, store
from tests.registry_in_memory import PortInMemory, memory_store, on_mlflow, port_of, set_by_hand, store_of

__all__ = ["memory_store", "mlflow_template", "store"]

GATE = {"understudy.key.gate": "g"}


@dataclass
class Site:
    """A deployment: three drafts were champion in turn, exported, and a program is told of each change."""

    config: Config
    store: Store
    root: Path
    told: Path
    progress: Quiet = field(default_factory=Quiet)

    @property
    def registry(self) -> Registry:
        return registry_for(self.config, self.store)

    @property
    def out(self) -> Path:
        return self.root / "served"

    @property
    def link(self) -> str | None:
        path = self.out / "champion"
        return os.readlink(path) if path.is_symlink() else None

    @property
    def notices(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.told.read_text().splitlines()] if self.told.exists() else []

    @property
    def aliases(self) -> dict[str, str]:
        return dict(self.registry.entry().aliases)

    def promote(self, name: str, **changes: Any) -> None:
        draft = make_draft(self.root / name, name.encode())
        champion = self.registry.champion()
        fields: dict[str, Any] = {"run_id": f"run-{name}", "tags": GATE} | changes
        promoted = promote(self.registry, draft, champion, **fields)
        # Exported before; making an export is tested elsewhere.
        make_export(self.out / f"version-{promoted.version}", promoted.digest)

    def settle(self) -> None:
        settle.settle(self.config, self.store, self.progress)

    def roll_back(self, **asked: Any) -> str:
        with settle.handover(self.config, self.store, self.progress) as scope:
            return roll_back(scope, Rollback(**asked))

    def set_alias(self, version: str) -> None:
        set_by_hand(self.registry, "champion", version)


def site_of(store: Store, root: Path, **promote: Any) -> Site:
    told, program = root / "told.jsonl", root / "reload"
    program.write_text(f"#!/bin/sh\ncat >> '{told}'\necho >> '{told}'\n")
    program.chmod(0o755)
    known = {"export": {"engine": "vllm", "out": str(root / "served")}, "notice": {"program": str(program)}}
    return Site(config_of(promote=known | promote), store, root, told)


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    found = site_of(store_of(request), tmp_path)
    for name in ("a", "b", "c"):
        found.promote(name)
        found.settle()
    return found


def test_a_promotion_moves_the_link_and_tells(site: Site) -> None:
    """Each champion is announced once, with its number; settling again changes nothing and tells nobody."""
    site.settle()
    assert "version-3" == site.link
    assert [(1, "1", None), (2, "2", "1"), (3, "3", "2")] == [
        (one["change"], one["champion"]["version"], one["replaced"]) for one in site.notices
    ]
    last = site.notices[-1]
    found = [last[key] for key in ("schema", "name", "action")]
    assert [1, "reference-draft", "promote", "run-c"] == [*found, last["champion"]["run"]]
    assert str(site.out / "version-3") == last["champion"]["export"]


def test_a_notice_can_be_sent_again(site: Site) -> None:
    """The same change, marked with a time that makes another key, since a receiver drops numbers that it has seen."""
    with settle.handover(site.config, site.store, site.progress) as scope:
        settle.tell_again(scope)
    first, again = site.notices[-2:]
    assert ("", True) == (first["repeated"], bool(again["repeated"]))
    assert first == again | {"repeated": ""}
    sent = Notice(**first | {"champion": None}), Notice(**again | {"champion": None})
    assert ["reference-draft/3", f"reference-draft/3/{again['repeated']}"] == [one.key for one in sent]
    site.settle()
    assert 4 == len(site.notices)


def test_a_notice_cannot_be_sent_again_to_nobody(memory_store: Store, tmp_path: Path) -> None:
    """Who reloads is not configured."""
    site = site_of(memory_store, tmp_path, notice=None)
    site.promote("a")
    with (
        pytest.raises(UnderstudyError, match=r"promote\.notice is not set, so nothing reloads"),
        settle.handover(site.config, site.store, site.progress) as scope,
    ):
        settle.tell_again(scope)


def test_a_damaged_record_of_an_earlier_run_stops_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """It is a copy for people: the new champion is announced, and the record is named in a warning."""
    record = site.store.runs / "run-a" / "run.json"
    record.parent.mkdir(parents=True)
    record.touch()
    site.promote("d")
    site.settle()
    assert (4, "version-4") == (site.notices[-1]["change"], site.link)
    assert f"run run-a is skipped: {record}: damaged" in capsys.readouterr().err


def test_a_rollback_moves_the_link_and_tells(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link points to the version that is champion again, and the notice says who did it and why."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    site.roll_back(reason="slow answers")
    assert "ann" == site.notices[-1]["by"]
    last = site.notices[-1]
    assert ("version-2", {"champion": "2", "previous": "1"}) == (site.link, site.aliases)
    assert (4, "rollback", "slow answers", "2", "3") == (
        *(last[key] for key in ("change", "action", "why")),
        last["champion"]["version"],
        last["replaced"],
    )


def test_the_last_rollback_needs_a_yes(site: Site) -> None:
    """Without a champion the link is removed, and the notice says so."""
    site.roll_back()
    site.roll_back()
    with pytest.raises(UsageError, match="add --yes"):
        site.roll_back()
    assert "version-1" == site.link
    site.roll_back(may_leave_none=True)

    assert (None, {}) == (site.link, site.aliases)
    assert (None, "1") == (site.notices[-1]["champion"], site.notices[-1]["replaced"])
    with pytest.raises(UnderstudyError, match="nothing to roll back"):
        site.roll_back()


def test_a_version_can_be_named(site: Site) -> None:
    """One that was champion and was not rolled back; repeated, it changes nothing."""
    with pytest.raises(UsageError, match=r"--to 9: reference-draft has no such version; it has 1, 2, 3"):
        site.roll_back(to="9")
    waiting = _registered(site, "waits", GATE)
    with pytest.raises(UsageError, match=f"--to {waiting}: it was never champion"):
        site.roll_back(to=waiting)
    site.roll_back(to="1")
    said = site.roll_back(to="1")
    with pytest.raises(UsageError, match="--to 3: it was rolled back at 20"):
        site.roll_back(to="3")

    assert ("version-1", {"champion": "1"}, "reference-draft: version 1 is champion already") == (
        site.link,
        site.aliases,
        said,
    )
    assert 4 == len(site.notices)


def test_a_dry_run_changes_nothing(site: Site) -> None:
    """It says what would happen."""
    said = site.roll_back(dry_run=True)
    assert said.startswith("reference-draft: version 3 was rolled back; version 2 is champion")
    assert ("version-3", "3", 3) == (site.link, site.aliases["champion"], len(site.notices))


def test_a_version_that_cannot_be_exported_is_settled_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alias moves, nobody is told, the link stays, and the command fails; the next settling does the rest."""
    (site.out / "version-2" / "expected.json").rename(site.out / "kept")
    with pytest.raises(
        UnderstudyError, match=r"version 2 is champion, but not settled: .*champion settle CONFIG"
    ) as caught:
        site.roll_back()
    between = (site.aliases["champion"], site.link, len(site.notices), difference(site.config, site.store))
    (site.out / "kept").rename(site.out / "version-2" / "expected.json")
    site.settle()

    assert 1 == caught.value.exit_code
    assert ("2", "version-3", 3) == between[:3]
    assert "points to version-3, and the champion is version 2" in between[3]
    assert ("version-2", 4, "") == (site.link, site.notices[-1]["change"], difference(site.config, site.store))


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda site: site.set_alias("3"), "version 3 was rolled back at 20"),
        (lambda site: site.set_alias(""), "the alias or its version was deleted by hand"),
        (lambda site: site.set_alias(_foreign(site)), "was not registered by Understudy"),
        (lambda site: site.set_alias(_untested(site)), "did not pass its gate"),
        (lambda site: site.set_alias(_refused(site)), "did not pass its gate"),
    ],
    ids=["rolled back", "deleted", "foreign", "no gate", "refused by the gate"],
)
def test_an_alias_moved_by_hand_is_not_followed(site: Site, prepare: Callable[[Site], None], reason: str) -> None:
    """Exit code 3; the last valid link stays, and nobody is told."""
    site.roll_back()
    prepare(site)
    with pytest.raises(Refused, match=reason) as caught:
        site.settle()
    assert 3 == caught.value.exit_code
    assert "the link stays at version-2; set the alias to version 2 again" in str(caught.value)
    assert ("version-2", 4) == (site.link, len(site.notices))
    assert "moved by hand" in difference(site.config, site.store)
    site.set_alias("2")
    site.settle()
    assert "" == difference(site.config, site.store)


def _foreign(site: Site) -> str:
    with port_of(site.registry) as port:
        return cast(PortInMemory, port).add_version("/nowhere", {})


def _untested(site: Site) -> str:
    return _registered(site, "untested", {})


def _refused(site: Site) -> str:
    """The store has its gate's decision."""
    version = _registered(site, "refused", {"understudy.key.gate": "other"})
    digest = site.registry.entry().version(version).digest
    gate = site.store.directory("gate", "other")
    gate.mkdir(parents=True)
    write_decision(gate, make_decision(verdict="refuse", candidate=digest))
    return version


def _registered(site: Site, name: str, tags: dict[str, str]) -> str:
    """A version that was registered and is not champion."""
    before = site.aliases["champion"]
    site.promote(name, tags=tags, approval_days=1)
    assert before == site.aliases["champion"]
    return site.aliases["challenger"]


def test_another_rollback_may_follow_one_that_is_not_settled(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one has printed its result; a receiver that is down, or a version that cannot be exported, blocks no second."""
    (site.out / "version-2" / "expected.json").unlink()
    with pytest.raises(UnderstudyError, match=r"version 2 is champion, but not settled"):
        site.roll_back()
    said = capsys.readouterr().out
    site.roll_back()

    assert "version 3 was rolled back; version 2 is champion" in said
    assert ("version-1", {"champion": "1"}, 5) == (site.link, site.aliases, site.notices[-1]["change"])


def test_a_rollback_by_another_machine_is_not_taken_for_the_one_asked_for(site: Site) -> None:
    """It is completed here, and only a rollback to the version that it left counts as done."""
    site.registry.rollback("3", "2")
    said = site.roll_back()
    between = site.aliases["champion"]
    site.registry.rollback("2", "1")
    site.promote("d")
    site.registry.rollback("4", "1")
    with pytest.raises(UsageError, match="--to 2: it was rolled back"):
        site.roll_back(to="2")

    assert ("2", True) == (between, "Nothing else was rolled back" in said)


@pytest.mark.parametrize("what", ["alias", "version"])
def test_a_champion_that_was_deleted_can_be_rolled_back(site: Site, what: str) -> None:
    """The way out that the refusal names: the previous version is champion, and everything follows."""
    if what == "alias":
        site.set_alias("")
    else:
        with port_of(site.registry) as port:
            cast(PortInMemory, port).delete_version("3")
    with pytest.raises(Refused, match="`understudy champion rollback CONFIG` returns to another version"):
        site.settle()
    site.roll_back()

    assert ("version-2", {"champion": "2", "previous": "1"}) == (site.link, site.aliases)
    last = site.notices[-1]
    assert ("rollback", "3", "") == (last["action"], last["replaced"], difference(site.config, site.store))


def test_a_link_that_no_champion_explains_is_left_alone(site: Site) -> None:
    """Such as with a mistyped deployment: servers keep the draft that they have."""
    promote = site.config.promote.model_dump() | {"deployment": "typo"}
    typo = site_of(site.store, site.root, **promote)
    with pytest.raises(
        UnderstudyError, match=r"points to version-3, but reference-draft--typo has never had a champion"
    ):
        typo.settle()
    assert ("version-3", 3) == (site.link, len(site.notices))


@pytest.mark.parametrize(
    "change", [{"deployment": "other"}, {"export": {"engine": "sglang", "out": "OUT"}}], ids=["deployment", "engine"]
)
def test_a_directory_with_another_export_is_not_linked(site: Site, change: dict[str, Any]) -> None:
    """Versions of two registry entries have the same numbers, and an export is for one engine."""
    if "export" in change:
        change = {"export": change["export"] | {"out": str(site.out)}}
    other = site_of(site.store, site.root, **change)
    if "deployment" in change:
        draft = make_draft(site.root / "other", b"other")
        promote(other.registry, draft, run_id="run-other", tags=GATE)
    with pytest.raises(UnderstudyError, match="holds another export"):
        other.settle()
    assert "version-3" == site.link


def test_each_receiver_is_told(site: Site) -> None:
    """A program is a receiver of its machine: another one on the same store is told as well."""
    second = site.root / "second"
    second.write_text(f"#!/bin/sh\ncat > '{site.root / 'heard'}'\n")
    second.chmod(0o755)
    export = site.config.promote.export
    assert export is not None
    other = Site(
        config_of(promote={"export": export.model_dump(), "notice": {"program": str(second)}}),
        site.store,
        site.root,
        site.told,
    )
    before = difference(other.config, other.store)
    other.settle()

    assert ("no notice of change 3 was accepted", 3) == (
        before,
        json.loads((site.root / "heard").read_text())["change"],
    )
    assert 3 == len(site.notices)


def test_an_alias_moved_by_hand_to_a_good_version_is_followed(site: Site) -> None:
    """It becomes a change of the history, the one before it is `previous`, and the link and the notice follow."""
    site.set_alias("1")
    site.settle()
    assert ({"champion": "1", "previous": "3"}, "version-1") == (site.aliases, site.link)
    assert ("move", "3", "1") == tuple(getattr(site.registry.history()[-1], key) for key in ("action", "old", "new"))
    assert ("move", "1") == (site.notices[-1]["action"], site.notices[-1]["champion"]["version"])


def test_approval_is_needed_for_a_move_by_hand_too(memory_store: Store, tmp_path: Path) -> None:
    """Where promote.by_hand is set, only a version that was approved or was champion before is followed."""
    site = site_of(memory_store, tmp_path, by_hand=True)
    site.promote("a")
    site.settle()
    version = _registered(site, "waits", GATE)
    site.set_alias(version)
    with pytest.raises(Refused, match="version 2 was not approved"):
        site.settle()
    assert "version-1" == site.link
    site.set_alias("1")
    site.promote("b")
    site.settle()
    site.set_alias("1")
    site.settle()
    assert "version-1" == site.link


class Killed(BaseException):
    """The process has died."""


class Killer:
    """Dies before step `at`, and lets nothing be written afterwards."""

    def __init__(self, at: int) -> None:
        self.at, self.steps, self.dead = at, 0, False

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.steps += 1
            self.dead |= self.steps == self.at
            if self.dead:
                raise Killed
            return function(*arguments, **named)

        return call


# Everything that changes something outside the process.
STEPS: tuple[tuple[Any, str], ...] = (
    *((port, name) for port in (MlflowPort, PortInMemory) for name in ("write", "create_prompt", "delete_prompt")),
    (send, "_call"),
    (records, "readable_run"),
    (StateFile, "write"),
    (link.os, "replace"),
    (link, "temporary_name"),
    (state_files, "write_json"),
    (Path, "symlink_to"),
)


def killed_at(at: int, site: Site, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Call `act` in a process that dies before step `at`. Returns the steps that it began."""
    killer = Killer(at)
    with monkeypatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, killer.before(getattr(owner, name)))
        patch.setattr(claims, "running_process", lambda pid: "999999999 1")  # it does not live
        try:
            act()
        except Killed:
            return killer.steps
    return 0


def consistent(site: Site) -> bool:
    """Alias, link and the last notice agree, no claim is left, and nothing differs."""
    entry = site.registry.entry()
    last = site.notices[-1]
    named = last["champion"]["version"] if last["champion"] else None
    wanted = f"version-{entry.champion}" if entry.champion else None
    with port_of(site.registry) as port:
        left = port.prompts("")
    return (site.link, named or "", left, difference(site.config, site.store)) == (wanted, entry.champion, [], "")


def test_a_rollback_killed_anywhere_is_settled_and_made_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed before each of its steps, then called again: one version was rolled back, and everything agrees."""
    _rollbacks_killed(site, monkeypatch, capsys, every=1)


@on_mlflow
def test_a_rollback_on_mlflow_killed_is_settled_and_made_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same before every sixteenth of its steps (tests/e2e kills processes at any moment)."""
    _rollbacks_killed(site, monkeypatch, capsys, every=16)


def _rollbacks_killed(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], every: int
) -> None:
    """After a kill with a result on the screen nobody calls again."""
    for at in itertools.count(1, every):
        champion, before = site.aliases["champion"], len(site.notices)
        capsys.readouterr()
        killed = killed_at(at, site, site.roll_back, monkeypatch)
        if "was rolled back" in capsys.readouterr().out:
            site.settle()
        else:
            site.roll_back()
        where = f"killed before step {at}"
        assert site.registry.entry().version(champion).rolled_back, where
        assert site.aliases["champion"] == str(int(champion) - 1), where
        assert consistent(site), where
        told = [one["change"] for one in site.notices[before:]]
        assert 1 == len(set(told)), where  # a repeat has the same number
        if not killed:
            break
        _promote_again(site, champion)
    assert at > 15


@pytest.mark.parametrize("full", ["update_records", "write"], ids=["records", "what was told"])
def test_a_full_disk_of_copies_keeps_no_notice_back(site: Site, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """A rollback whose records, or whose own note of it, cannot be written: servers are told all the same, the error says who
    is champion, and once there is room the next call writes the rest."""

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(
            settle if full == "update_records" else state_files, {"write": "write_json"}.get(full, full), no_space
        )
        if full == "write":
            patch.setattr("pipeline.handover.rollback._remember_start", lambda *_: None)
        with pytest.raises(
            UnderstudyError, match=r"version 2 is champion, but not settled: .*No space left.*champion settle"
        ):
            site.roll_back()
    assert ("version-2", "2") == (site.link, site.notices[-1]["champion"]["version"])
    site.settle()
    assert consistent(site)


def _promote_again(site: Site, version: str) -> None:
    """The version is champion again, as before."""
    entry = site.registry.entry()
    site.registry.approve(version, entry.champion, "run-again", "ann", "")
    site.settle()


@on_mlflow
@pytest.mark.long
def test_a_promotion_killed_anywhere_is_settled(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before each of its steps, then repeated: the new version is champion, and everything agrees."""
    for at in itertools.count(1):
        site.registry.rollback(site.aliases["champion"], "2")
        site.settle()

        def act() -> None:
            site.registry.approve("3", "2", "run-c", "ann", "")
            site.settle()

        killed = killed_at(at, site, act, monkeypatch)
        if site.aliases["champion"] != "3":
            site.registry.approve("3", "2", "run-c", "ann", "")
        site.settle()
        assert ("3", "version-3", True) == (site.aliases["champion"], site.link, consistent(site)), at
        if not killed:
            break
    assert at > 15


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator["Hook"]:
    monkeypatch.setattr(send, "wait_exponential", lambda **_: wait_none())
    found = Hook()
    yield found
    found.close()


class Hook:
    """A webhook that answers with the given statuses, then with 200."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.statuses: list[int] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((dict(self.headers), body))
                status = outer.statuses.pop(0) if outer.statuses else 200
                self.send_response(status)
                if status == 307:
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/reload"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_a_webhook_gets_json_and_the_token(
    memory_store: Store, tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A POST with the number of the change; a receiver that is busy is asked again."""
    monkeypatch.setenv("HOOK_TOKEN", "secret-token")
    site = site_of(memory_store, tmp_path, notice={"url": hook.url, "key_variable": "HOOK_TOKEN"})
    hook.statuses = [503, 429]
    site.promote("a")
    site.settle()
    site.settle()

    headers, body = hook.requests[-1]
    assert 3 == len(hook.requests)
    assert ("Bearer secret-token", "application/json", "reference-draft/1") == tuple(
        headers[name] for name in ("Authorization", "Content-Type", "Idempotency-Key")
    )
    assert ("promote", 1, "1") == (body["action"], body["change"], body["champion"]["version"])
    assert [] == [path for path in memory_store.root.rglob("*.json") if "secret-token" in path.read_text()]


@pytest.mark.parametrize(("status", "tries"), [(401, 1), (307, 1), (500, 3)])
def test_a_notice_that_is_not_accepted_is_sent_again_later(
    memory_store: Store, tmp_path: Path, hook: Hook, status: int, tries: int
) -> None:
    """The command fails, the champion and the link stay, and the next settling sends the notice again. Redirects are not
    followed."""
    site = site_of(memory_store, tmp_path, notice={"url": hook.url})
    hook.statuses = [status] * tries
    site.promote("a")
    with pytest.raises(
        UnderstudyError, match=f"not settled: notice: {re.escape(hook.url)} answered with HTTP {status}"
    ):
        site.settle()
    asked, differs = len(hook.requests), difference(site.config, memory_store)
    site.settle()

    assert (tries, "no notice of change 1 was accepted") == (asked, differs)
    assert (tries + 1, "version-1", "") == (len(hook.requests), site.link, difference(site.config, memory_store))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo one; echo two >&2; exit 4", "ended with exit code 4: two"),
        (r"printf '\377' ; exit 1", "ended with exit code 1: \ufffd"),
        ("sleep 30", "did not end within 0.5 s"),
    ],
)
def test_a_program_that_fails_is_named(memory_store: Store, tmp_path: Path, script: str, said: str) -> None:
    """With its last line."""
    site = site_of(memory_store, tmp_path)
    program = tmp_path / "fails"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    site.config = config_of(promote={"notice": {"program": str(program), "timeout_seconds": 0.5}})
    site.promote("a")
    with pytest.raises(UnderstudyError, match=said):
        site.settle()


def test_a_program_may_leave_something_in_the_background(memory_store: Store, tmp_path: Path) -> None:
    """A reload that goes on is not waited for."""
    site = site_of(memory_store, tmp_path)
    program = tmp_path / "reloads"
    program.write_text("#!/bin/sh\nsleep 20 &\nexit 0\n")
    program.chmod(0o755)
    site.config = config_of(promote={"notice": {"program": str(program), "timeout_seconds": 5}})
    site.promote("a")
    site.settle()
    assert "" == difference(site.config, memory_store)


@pytest.mark.parametrize(("token", "said"), [("", "is not set"), ("a\nb", "no HTTP header can have"), (" t\n", "")])
def test_a_token_that_cannot_be_sent_is_found_before(token: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a promotion; the line break at the end of a file of secrets is no fault."""
    monkeypatch.setenv("HOOK_TOKEN", token)
    settings = NoticeConfig(url="http://127.0.0.1:9/", key_variable="HOOK_TOKEN")
    if said:
        with pytest.raises(UsageError, match=said):
            send.check_receiver(settings)
    else:
        send.check_receiver(settings)
