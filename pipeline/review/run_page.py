"""The review page of a run, and its summary in Markdown: the decision in its gate's artifact, with what only the run's record
has."""

from pathlib import Path

from pipeline.config.stored import run_config
from pipeline.judgement.decision_file import find_decision, read_decision
from pipeline.judgement.example_file import read_examples
from pipeline.registry.run_content import markdown_summary, registered
from pipeline.review.page import review_page
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord, find_built, state_of


def run_page(store: Store, record: RunRecord) -> str:
    """HTML. UnderstudyError for a run without a decision, or with one of another version."""
    return render_page(record, find_built(store, record, "gate").path)


def run_markdown(store: Store, record: RunRecord) -> str:
    """Markdown, such as for the summary of a CI job; also of a run without a decision, with its state."""
    entry = record.jobs.get("gate")
    artifact = store.find(entry.stage, entry.key) if entry else None
    decision = find_decision(artifact.path) if artifact else None
    state = "" if decision else f"**{state_of(store, record)}**\n\n"
    return f"{state}{markdown_summary(record, decision)}\n"


def render_page(record: RunRecord, gate: Path) -> str:
    """HTML of the decision in the artifact `gate`, which another run may have made, with the config of the run `record`."""
    decision = read_decision(gate)
    run = {"id": record.id, "promotion": registered(record)}
    config = run_config(record).model_dump(mode="json")
    return review_page(decision, read_examples(gate), config, run)
