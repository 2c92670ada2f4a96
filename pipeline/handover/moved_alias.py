"""Whether an alias `champion` that a person moved by hand may be followed. The checks are those of a promotion and an approval,
from what the registry and the store still have of them."""

from pipeline.judgement.decision_file import find_decision
from pipeline.judgement.schema import ALREADY_CHAMPION, PROMOTE
from pipeline.registry.aliases import Entry
from pipeline.store.artifacts import Store

_GATE = "understudy.key.gate"  # a version's tag, written when its draft has passed the gate


def reason_not_to_follow(entry: Entry, store: Store, needs_approval: bool) -> str:
    """Why the champion, which was set by hand, is not followed; empty if it is. `needs_approval`: promote.by_hand."""
    version = entry.champion
    if not version:
        return "the alias or its version was deleted by hand (`understudy champion rollback CONFIG` returns to another version)"
    state = entry.version(version)
    if not state.digest:
        return f"version {version} was not registered by Understudy"
    if state.rolled_back:
        return f"version {version} was rolled back at {state.rolled_back}"
    if not _has_passed(entry, store, version):
        return f"version {version} did not pass its gate"
    if needs_approval and not entry.is_approved(version):
        return f"version {version} was not approved (promote.by_hand)"
    return ""


def _has_passed(entry: Entry, store: Store, version: str) -> bool:
    """Whether the draft has passed: by the gate's decision where this store has it, else by the tag that only a promotion
    writes."""
    state = entry.version(version)
    key = state.tags.get(_GATE)
    if key is None:
        return False
    decision = find_decision(store.directory("gate", key))
    if decision is None:
        return True
    return decision.verdict in (PROMOTE, ALREADY_CHAMPION) and decision.candidate == state.digest
