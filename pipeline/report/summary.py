"""One object that says what a run did and found; every renderer reads it. Figures come from the store, never recomputed."""

from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import Artifact, Store, read_json
from pipeline.runs import RunRecord
from pipeline.tracking import ui_link


@dataclass(frozen=True)
class StageLine:
    """A job of the run."""

    job: str
    state: str
    seconds: float


@dataclass(frozen=True)
class DraftLine:
    """A row of the table of drafts. Intervals are {"value", "low", "high", "prompts"}."""

    name: str
    acceptance_rate: dict[str, Any]
    tokens_per_target_call: dict[str, Any]
    acceptance_rate_greedy: float
    loop_share: float
    megabytes: float


@dataclass(frozen=True)
class Summary:
    """What people see of a run."""

    run: str
    state: str
    stages: list[StageLine]
    gamma: int
    temperature: float
    drafts: list[DraftLine]
    perplexity: dict[str, float]
    decision: dict[str, Any] | None
    promotion: dict[str, Any] | None
    mlflow: str | None


def summarise(store: Store, record: RunRecord) -> Summary:
    """Gather a run's figures; a run that is not finished has fewer of them."""
    gamma = int(record.config["evaluate"]["gamma"])
    stages, drafts, perplexity = [], [], {}
    for job, entry in record.jobs.items():
        stages.append(StageLine(job, entry["state"], entry["seconds"]))
        artifact = store.find(entry["stage"], entry["key"]) if entry["stage"] in ("pair", "evaluate") else None
        if artifact is None:
            continue
        if entry["stage"] == "evaluate":
            drafts.append(_draft(artifact, entry["part"], gamma))
        else:
            perplexity = {name: value for name, value in artifact.figures.items() if name.startswith("perplexity_")}
    promotion = record.jobs.get("promote", {}).get("notes")
    return Summary(
        record.id,
        record.state,
        stages,
        gamma,
        float(record.config["sampling"]["temperature"]),
        drafts,
        perplexity,
        record.decision,
        promotion,
        ui_link(record),
    )


def _draft(artifact: Artifact, name: str, gamma: int) -> DraftLine:
    profile = read_json(artifact.path / "acceptance.json")
    return DraftLine(
        name,
        profile["headline"]["acceptance_rate"],
        profile["headline"]["tokens_per_target_call"][str(gamma)],
        profile["greedy"]["acceptance_rate"]["value"],
        profile["greedy"]["loop_share"],
        profile["draft"]["bytes"] / 1e6,
    )
