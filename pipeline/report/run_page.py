"""The review page of a run in the store: the page that its gate made, with what only the run knows."""

from pipeline.judgement.decision_file import read_decision
from pipeline.report.page import review_page
from pipeline.store.artifacts import Store
from pipeline.store.files import read_json
from pipeline.store.runs import RunRecord, find_built


def run_page(store: Store, record: RunRecord) -> str:
    """HTML. UnderstudyError for a run without a decision, or with one of another version."""
    gate = find_built(store, record, "gate").path
    decision = read_decision(gate)
    promotion = record.jobs.get("promote", {}).get("notes")
    run = {"id": record.id, "promotion": promotion if promotion and "version" in promotion else None}
    return review_page(decision, read_json(gate / "examples.json"), record.config, run)
