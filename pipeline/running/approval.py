"""`understudy champion promote`: a person makes the draft of a run champion, with the checks of a promotion at once."""

import getpass
import os
import shlex
from pathlib import Path

from pipeline.config.stored import run_config
from pipeline.errors import Refused, UsageError
from pipeline.judgement.decision_file import read_decision
from pipeline.judgement.headline import gain_in_words
from pipeline.judgement.schema import ALREADY_CHAMPION, PROMOTE, Decision
from pipeline.registry.history import NONE
from pipeline.registry.registry import Proposed, RegisteredDraft, Registry, registry_for
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, find_built
from pipeline.store.times import utc_now


def approve_run(store: Store, record: RunRecord, force_promote: bool) -> RegisteredDraft:
    """Make the draft that `record` registered champion, and write that down in the record.

    Raises UsageError if the run has registered no draft for approval, and Refused if its draft may not be promoted (any more).
    """
    decision = _decision(store, record)
    registry = registry_for(run_config(record), store)
    champion = registry.champion()
    if champion is not None and champion.digest == decision.candidate:
        return champion
    found = registry.proposed(decision.candidate)
    if found is None:
        raise UsageError(
            f"run {record.id}: its draft was not registered for approval (promote.by_hand); name a run that was"
        )
    draft = RegisteredDraft(name=registry.name, version=found.version, digest=decision.candidate)
    expected = str(record.outside["champion"]["facts"]["version"]) if "champion" in record.outside else ""
    _require_allowed(registry, found, expected, force_promote)
    registry.fetch(draft, store.root / "champions" / draft.digest)  # an error if the registered files are not intact
    by = approver()
    champion = registry.approve(found.version, expected, record.id, by, gain_in_words(decision))
    entry = record.jobs.get("promote", {})
    if entry:
        kept = {name: note for name, note in entry["notes"].items() if name != "approve_with"}
        entry["notes"] = {**kept, "result": "promoted", "approved_by": by, "approved_at": utc_now()}
        record.save(store)
    return champion


def approval_command(run: str, store: Path, force_promote: bool) -> str:
    """The command that approves, as it can be pasted into a shell."""
    words = ["understudy", "champion", "promote", run, "--store", str(store)]
    return shlex.join(words + (["--force-promote"] if force_promote else []))


def approver() -> str:
    """Who approves: the user of MLflow, else of this machine."""
    if name := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return f"user {os.getuid()}"


def _decision(store: Store, record: RunRecord) -> Decision:
    """The gate's decision, from its artifact: a record is no proof."""
    if "gate" not in record.jobs:
        raise UsageError(f"run {record.id} has no decision; finish it with `understudy run`")
    artifact = find_built(store, record, "gate")
    artifact.check_hashes()
    decision = read_decision(artifact.path)
    if decision.verdict not in (PROMOTE, ALREADY_CHAMPION):
        raise Refused("refused: " + "; ".join(decision.reasons))
    return decision


def _require_allowed(registry: Registry, found: Proposed, expected: str, force_promote: bool) -> None:
    """Raises Refused in one line that says what to do."""
    draft = f"refused: {registry.name} version {found.version}"
    if found.rolled_back and not force_promote:
        raise Refused(f"{draft} was rolled back at {found.rolled_back}; to promote it again, add --force-promote")
    if found.champion != expected:
        raise Refused(
            f"{draft} was compared with version {expected or NONE}, but the champion is {found.champion or NONE}; run again"
        )
    if found.is_overdue:
        registry.drop_overdue()
        raise Refused(
            f"{draft} was not approved before {found.approve_before} (promote.approval_days); "
            "to propose it again, use `understudy run CONFIG --force-promote`"
        )
    if (
        found.challenger != found.version and not found.rolled_back
    ):  # one that was rolled back is no challenger any more
        raise Refused(f"{draft} is not the challenger; that is {found.challenger or NONE}")
