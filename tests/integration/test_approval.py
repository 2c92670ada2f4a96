"""Promotion by hand: what the stage promote proposes, and what `understudy champion promote` then allows."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.promote import PromoteConfig
from pipeline.config.stored import run_config
from pipeline.errors import Refused, UnderstudyError, UsageError
from pipeline.handover.approval import approve_run
from pipeline.handover.settle import handover, settle
from pipeline.models.files import model_digest
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.registry import Registry, registry_for
from pipeline.registry.tracking import PAGE
from pipeline.running.context import StageContext
from pipeline.store.artifacts import Store
from pipeline.store.files import file_sha256, write_json
from pipeline.store.runs import JobEntry, OutsideInput, RunRecord, load_run, run_directory
from pipeline.store.times import utc_now
from stages import promote
from tests.fakes import quiet
from tests.integration.conftest import RUN, SMOKE, Place
from tests.integration.mlflow_fixtures import config_of, make_draft, mlflow_template, store
from tests.integration.test_promote_stage import context, decide
from tests.integration.test_registry import aliases, roll_back
from tests.integration.test_registry import promote as promote_other
from tests.registry_in_memory import memory_store, on_mlflow, port_of

__all__ = ["context", "memory_store", "mlflow_template", "store"]


@pytest.fixture
def by_hand(context: StageContext[Any], monkeypatch: pytest.MonkeyPatch) -> StageContext[Any]:
    """A run whose gate decided to promote, and whose config leaves the promotion to a person."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    decide(context, "promote")
    return replace(context, settings=replace(context.settings, promote=PromoteConfig(by_hand=True, approval_days=14)))


def as_run(context: StageContext[Any], store: Store, **facts: Any) -> RunRecord:
    """The record of that run, with the gate's artifact as it is now."""
    gate = store.commit(
        _copied(context.inputs["decision"], store.open_work("gate", context.run_id, resumable=False)),
        {"stage": "gate", "key": context.run_id, "inputs": {}, "figures": {}, "provides": {}},
    )
    notes = {"name": "reference-draft", "version": "1", "result": "challenger", "approve_with": "..."}
    promotion = JobEntry(stage="promote", key="k", figures={}, notes=notes)
    jobs = {"gate": JobEntry(stage="gate", key=gate.key), "promote": promotion}
    record = RunRecord(
        id=context.run_id,
        name="loop",
        created=utc_now(),
        config=config_of().model_dump(mode="json"),
        outside={},
        jobs=jobs,
    )
    if facts:
        record.outside["champion"] = OutsideInput("", facts=facts)
    record.save(store)
    return record


def approve(store: Store, record: RunRecord, force_promote: bool) -> RegisteredDraft | None:
    """As `champion promote`; the champion afterwards."""
    config = run_config(record)
    with handover(config, store, quiet()) as scope:
        approve_run(scope, record, force_promote)
    return registry_for(config, store).champion()


def _copied(source: Path, target: Path) -> Path:
    (target / "decision.json").write_bytes((source / "decision.json").read_bytes())
    write_json(target / "examples.json", {"schema": 2, "gamma": 5, "examples": []})
    return target


@on_mlflow
def test_the_page_follows_the_approval(by_hand: StageContext[Any], store: Store) -> None:
    """Its first line says what became of the draft, also after a rollback, in the store and in MLflow."""
    promote.run(by_hand)
    record = as_run(by_hand, store)
    page = run_directory(store, record.id) / PAGE
    page.write_text("<h1>waits</h1>", encoding="utf-8")
    approve(store, record, False)
    approved = page.read_text(encoding="utf-8")
    roll_back(registry_of(by_hand))
    settle(run_config(record), store, quiet())
    found = load_run(store, record.id)

    assert "<h1>✓ Promoted as version 1</h1>" in approved
    assert "<h1>✗ Passed; version 1: rolled back at" in page.read_text(encoding="utf-8")
    assert found is not None
    assert found.mlflow is not None
    assert file_sha256(page) == found.mlflow.page


def registry_of(context: StageContext[Any]) -> Registry:
    return context.resources.registry


def weeks_later(monkeypatch: pytest.MonkeyPatch, days: float = 15) -> None:
    later = time.time() + days * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    real = time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda seconds=None: real(later if seconds is None else seconds))


def said(registry: Registry) -> list[tuple[str, str, str, str, str]]:
    return [(change.action, change.old, change.new, change.run, change.by) for change in registry.history()]


def test_a_draft_waits_for_approval_and_is_approved(by_hand: StageContext[Any], memory_store: Store) -> None:
    """The stage makes it challenger and says how to go on (exit 0); a second run with it changes nothing; a person makes it
    champion once."""
    registry, outcome = registry_of(by_hand), promote.run(by_hand)
    waiting = aliases(registry)
    again = promote.run(replace(by_hand, run_id="run-2"))
    champion = approve(memory_store, as_run(by_hand, memory_store), False)
    record = load_run(memory_store, "run-1")

    assert ({"challenger": "1"}, "") == (waiting, outcome.refused)
    assert outcome.notes["result"].startswith("challenger, to be approved before 20")
    assert f"understudy champion promote run-1 --store {memory_store.root}" == outcome.notes["approve_with"]
    assert by_hand.progress.lines[-1].endswith(f"understudy champion promote run-2 --store {memory_store.root}")  # type: ignore[attr-defined]
    assert outcome.notes["result"] == again.notes["result"]
    assert {"champion": "1"} == aliases(registry)
    assert (
        champion
        == registry.champion()
        == approve(memory_store, as_run(by_hand_as("run-3", by_hand), memory_store), False)
    )
    assert champion == registry.approve(
        "1", "", "run-1", "bob", ""
    )  # approved by two at once: the second finds it done
    assert [("register", "none", "1", "run-1", ""), ("approve", "none", "1", "run-1", "ann")] == said(registry)
    assert record is not None
    assert ("promoted", "ann") == tuple(record.promotion[key] for key in ("result", "approved_by"))
    assert "approve_with" not in record.promotion


def by_hand_as(run: str, context: StageContext[Any]) -> StageContext[Any]:
    return replace(context, run_id=run)


def test_no_flag_approves_a_refused_run(by_hand: StageContext[Any], memory_store: Store) -> None:
    """Nor a run without a decision, nor one whose draft was never registered: those are wrong runs, not refusals."""
    unregistered = as_run(by_hand, memory_store)
    with pytest.raises(UsageError, match="run-1: its draft was not registered for approval"):
        approve(memory_store, unregistered, True)
    decide(by_hand, "refuse")
    with pytest.raises(Refused, match="refused: too slow"):
        approve(memory_store, as_run(by_hand_as("run-2", by_hand), memory_store), True)
    unregistered.jobs.clear()
    with pytest.raises(UsageError, match="run-1 has no decision"):
        approve(memory_store, unregistered, True)


def test_a_challenger_that_nobody_approved_is_refused(
    by_hand: StageContext[Any], memory_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command that meets it removes the alias; later runs with the same draft are refused until a person insists."""
    registry = registry_of(by_hand)
    promote.run(by_hand)
    record = as_run(by_hand, memory_store)
    early = registry.drop_overdue()
    weeks_later(monkeypatch)
    with pytest.raises(Refused, match=r"version 1 was not approved before 20.*approval_days"):
        approve(memory_store, record, False)
    left = aliases(registry)
    with pytest.raises(Refused, match="was not approved before"):
        approve(memory_store, record, True)
    nightly = promote.run(by_hand)
    insisted = promote.run(replace(by_hand, force_promote=True))

    assert (None, {}) == (early, left)
    assert "version 1, which was not approved before 20" in nightly.refused
    assert insisted.notes["result"].startswith("challenger")
    assert {"challenger": "1"} == aliases(registry)
    assert ["register", "expire", "register"] == [action for action, *_ in said(registry)]
    assert registry.drop_overdue() is None


def test_another_draft_replaces_the_challenger(by_hand: StageContext[Any], memory_store: Store, tmp_path: Path) -> None:
    """The replaced one is refused, and so is one that was compared with another champion."""
    registry = registry_of(by_hand)
    promote.run(by_hand)
    first = as_run(by_hand, memory_store)
    _propose(registry, make_draft(tmp_path / "b", b"b"))
    with pytest.raises(Refused, match="version 1 is not the challenger; that is 2"):
        approve(memory_store, first, False)
    promote_other(registry, make_draft(tmp_path / "c", b"c"), run_id="run-3")
    with pytest.raises(Refused, match=r"compared with version none, but the champion is 3; run again"):
        approve(memory_store, first, False)
    assert {"champion": "3"} == aliases(registry)
    assert ("register", "1", "2", "run-1", "") == said(registry)[1]
    assert "challenger 2 was compared with another champion" == registry.history()[-1].why


def _propose(registry: Registry, draft: Path) -> RegisteredDraft:
    return promote_other(registry, draft, approval_days=14)


def test_altered_and_rolled_back_drafts_are_not_approved(by_hand: StageContext[Any], memory_store: Store) -> None:
    """The registered files must be those that were examined; a rollback is undone only with --force-promote."""
    registry = registry_of(by_hand)
    promote.run(by_hand)
    record = as_run(by_hand, memory_store)
    with port_of(registry) as port:
        source = Path(port.files_of("1"))
    weights = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(b"other")
    with pytest.raises(UnderstudyError, match="not the files that were registered"):
        approve(memory_store, record, False)
    (source / "model.safetensors").write_bytes(weights)
    approve(memory_store, record, False)
    roll_back(registry)
    with pytest.raises(Refused, match=r"version 1 was rolled back at 20.*add --force-promote"):
        approve(memory_store, record, False)

    assert model_digest(source) == getattr(approve(memory_store, record, True), "digest", None)
    assert {"champion": "1"} == aliases(registry)


def test_a_run_waits_for_its_approval_from_the_command_line(loop: Place) -> None:
    """The run exits 0 and prints the command; `champion promote` takes that run and no other; the history says who and why."""
    by_hand = ("--set", "promote.by_hand=true", "--set", "promote.deployment=hand")
    ended = loop.understudy("run", SMOKE, *by_hand, "--run", "proposal")
    waiting = loop.registry()["reference-draft--hand"]["aliases"]
    wrong = [loop.understudy("champion", "promote", run) for run in ("nowhere", RUN, "reference-draft--hand@2")]
    approved = loop.understudy("champion", "promote", "reference-draft--hand", MLFLOW_TRACKING_USERNAME="ann")
    again = loop.understudy("champion", "promote", "proposal")
    history = loop.understudy("champion", "history", "reference-draft--hand", COLUMNS="200")
    shown = loop.understudy("show", "proposal")

    assert (0, {"challenger": "1"}) == (ended.code, waiting), ended.err
    assert f"understudy champion promote proposal --store {loop.store}" in ended.err
    assert "promotion: challenger, to be approved before 20" in ended.out
    # The first run's draft is the champion of its own deployment.
    assert [2, 0, 2] == [one.code for one in wrong], wrong[1].err
    assert "nowhere: no run and no registered draft of" in wrong[0].complaint
    assert (
        "not the draft that waits for approval, which is version 1; give reference-draft--hand@1" in wrong[2].complaint
    )
    assert (
        "reference-draft--hand is made of the last part of pair.target.source, then -draft, then -- and" in approved.out
    )
    assert (0, 0, {"champion": "1"}) == (approved.code, again.code, loop.registry()["reference-draft--hand"]["aliases"])
    assert "reference-draft--hand: version 1 is champion" in approved.out
    assert ["register", "approve"] == re.findall(r"register|approve", history.out)
    assert 2 == len(re.findall(r"none -> 1 .* proposal ", history.out))
    assert 2 == len(
        re.findall(r"change [12]: (?:by ann, )?\+\d+\.\d\d points \[.*\] over the base draft\n", history.out)
    )
    assert "change 2: by ann, +" in history.out
    assert "promotion: promoted, reference-draft--hand version 1" in shown.out
