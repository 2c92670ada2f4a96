"""`understudy champion promote`: a person makes the draft of a run champion, with the checks of a promotion at once."""

import shlex

from pipeline.errors import Refused, UsageError
from pipeline.handover.settle import Handover, finish, recovered_entry
from pipeline.judgement.decision_file import read_decision
from pipeline.judgement.headline import gain_in_words
from pipeline.judgement.schema import ALREADY_CHAMPION, PROMOTE, Decision
from pipeline.registry.drafts import CHALLENGER, Proposed, RegisteredDraft
from pipeline.registry.history import NONE, acting_person
from pipeline.registry.registry import Registry
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, find_built, load_run


def approve_run(scope: Handover, record: RunRecord, force_promote: bool) -> None:
    """Make the draft that `record` registered champion, and settle.

    Raises UsageError if the run has registered no draft for approval, and Refused if its draft may not be promoted (any more).
    """
    decision, registry = _decision(scope.store, record), scope.registry
    entry = recovered_entry(scope)
    if not entry.champion or entry.version(entry.champion).digest != decision.candidate:
        proposed = registry.proposed(decision.candidate)
        if proposed is None:
            raise UsageError(
                f"run {record.id}: its draft was not registered for approval (promote.by_hand); name a run that was"
            )
        draft = RegisteredDraft(name=registry.name, version=proposed.version, digest=decision.candidate)
        expected = "" if decision.champion is None else decision.champion.version
        _require_allowed(registry, proposed, expected, force_promote)
        registry.fetch(draft, scope.store.champions / draft.digest)  # an error if the files are not intact
        registry.approve(proposed.version, expected, record.id, acting_person(), gain_in_words(decision))
        entry = registry.entry()
    digest = entry.version(entry.champion).digest
    finish(scope, entry, f"{registry.name}: version {entry.champion} is champion (draft {digest})")


def waiting_run(scope: Handover, which: str = "") -> RunRecord:
    """The run whose draft waits for approval. UsageError if none does, if the one that waits is not `which` (an alias or a
    version), or if the store lacks that run."""
    registry = scope.registry
    entry = recovered_entry(scope)
    if not entry.challenger:
        raise UsageError(
            f"{registry.name}: no draft waits for approval; the next run that passes its gate registers one"
        )
    if which not in ("", CHALLENGER, entry.challenger):
        raise UsageError(
            f"{registry.name}@{which}: not the draft that waits for approval, which is version {entry.challenger}; give "
            f"{registry.name}@{entry.challenger}"
        )
    run = entry.version(entry.challenger).run
    record = load_run(scope.store, run)
    if record is None:
        raise UsageError(
            f"{registry.name} version {entry.challenger}: run {run}, which registered it, is not in {scope.store}; name the "
            "--store that holds it"
        )
    return record


def approval_command(run: str, store: Store, force_promote: bool) -> str:
    """The command that approves, as it can be pasted into a shell."""
    words = ["understudy", "champion", "promote", run, "--store", str(store)]
    return shlex.join(words + (["--force-promote"] if force_promote else []))


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


def _require_allowed(registry: Registry, proposed: Proposed, expected: str, force_promote: bool) -> None:
    """Raises Refused in one line with what to do."""
    draft = f"refused: {registry.name} version {proposed.version}"
    if proposed.rolled_back and not force_promote:
        raise Refused(f"{draft} was rolled back at {proposed.rolled_back}; to promote it again, add --force-promote")
    if proposed.champion != expected:
        raise Refused(
            f"{draft} was compared with version {expected or NONE}, but the champion is {proposed.champion or NONE}; run again"
        )
    if proposed.is_overdue:
        registry.drop_overdue()
        raise Refused(
            f"{draft} was not approved before {proposed.approve_before} (promote.approval_days); "
            "to propose it again, use `understudy run CONFIG --force-promote`"
        )
    if (
        proposed.challenger != proposed.version and not proposed.rolled_back
    ):  # one that was rolled back is no challenger any more
        raise Refused(f"{draft} is not the challenger; that is {proposed.challenger or NONE}; approve its run")
