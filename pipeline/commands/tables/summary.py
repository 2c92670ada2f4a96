"""What a run did and found, in one object that every renderer reads. Figures come from the store, never recomputed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.acceptance.schema import Figure, SegmentFigures, read_profile
from pipeline.config.pair import SERVER
from pipeline.config.stored import run_config
from pipeline.distillation.learning_curve import LearningCurve, find_curve
from pipeline.drafts.kinds import KINDS
from pipeline.judgement.decision_file import recorded_decision
from pipeline.judgement.schema import BriefDecision
from pipeline.registry.registry import naming
from pipeline.registry.tracking import PAGE, ui_link
from pipeline.running.plan import Plan
from pipeline.store.artifacts import MANIFEST, Artifact, Store, read_manifest
from pipeline.store.runs import RunRecord, run_directory, shared_jobs, state_of

_SHOWN = ("pair", "distill", "evaluate")
_DIRECTORIES = {"pair": "target", "distill": "draft", "generate": "completions"}


@dataclass(frozen=True)
class StageLine:
    """A job of the run."""

    job: str
    state: str
    seconds: float
    shared_with: str = ""  # the job of this run that built its artifact
    resumed: bool = False  # `seconds` leave out what tasks of a scheduler, or a killed run, had made of it before


@dataclass(frozen=True, kw_only=True)
class DraftLine:
    """A row of the table of drafts. A broken draft has no figures."""

    name: str
    megabytes: float
    broken: str | None = None  # why the draft cannot be examined
    by_token: bool = True  # whether its acceptance rate is over all tokens
    acceptance_rate: Figure | None = None
    tokens_per_target_call: Figure | None = None
    acceptance_rate_greedy: float | None = None
    loop_share: float | None = None
    segments: dict[str, SegmentFigures] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What people see of a run."""

    run: str
    state: str
    stages: list[StageLine]
    gamma: int
    temperature: float
    confidence: float  # of the intervals
    drafts: list[DraftLine]
    perplexity: dict[str, float]
    decision: BriefDecision | None
    promotion: dict[str, Any] | None
    mlflow: str | None
    learning_curve: LearningCurve | None
    directories: dict[str, str]  # arguments of `probe`, `decode` and `check`: target, draft, completions
    examination: str | None  # argument of `latency`: the candidate's examination
    failure: str  # the job that failed and why; empty if none did
    naming: str = ""  # from which keys of the config the registered name is made; empty before a promotion
    page: str | None = None  # the path of the review page


def summarise(store: Store, record: RunRecord) -> Summary:
    """Collect the figures of a run; a run that is not finished has fewer of them."""
    gamma = int(record.config["evaluate"]["gamma"])
    stages, drafts, perplexity, directories = [], [], {}, {}
    curve, examination, shared = None, None, shared_jobs(record)
    for job in sorted(record.jobs, key=_order(store, record)):  # the file's own order is alphabetical
        entry = record.jobs[job]
        directory = store.directory(entry.stage, entry.key)
        owner = shared.get(job, "")
        stages.append(
            StageLine(
                job,
                entry.state,
                entry.seconds,
                shared_with=owner if owner and record.jobs[owner].state == "done" else "",
                resumed=entry.state == "done" and _was_resumed(directory),
            )
        )
        task = entry.task
        if entry.stage in _DIRECTORIES and not entry.part and directory.exists():
            directories[_DIRECTORIES[entry.stage]] = str(directory)
            served = record.config["pair"]["target"]["source"] == SERVER  # commands cannot load it
            if entry.stage == "pair" and served:
                del directories["target"]
            elif entry.stage == "pair" and not (directory / "target").is_dir():
                directories["target"] = _source(record.config["pair"]["target"])
        artifact = store.find(entry.stage, entry.key) if entry.stage in _SHOWN else None
        if artifact is None:
            continue
        if entry.stage == "evaluate" and (task.get("split") == "dev" or task.get("kind") == "speed"):
            continue  # the table shows examinations on the examination split
        if entry.stage == "evaluate":
            drafts.append(_draft(artifact, entry.part, gamma))
            examination = str(artifact.path) if task.get("variant") == "unquantized" else examination
        elif entry.stage == "distill":
            curve = find_curve(artifact.path)
        else:
            perplexity = {name: value for name, value in artifact.figures.items() if name.startswith("perplexity_")}
    promotion = record.promotion or None
    return Summary(
        run=record.id,
        state=state_of(store, record),
        stages=stages,
        gamma=gamma,
        temperature=float(record.config["sampling"]["temperature"]),
        confidence=float(record.config["evaluate"]["confidence"]),
        drafts=drafts,
        perplexity=perplexity,
        decision=recorded_decision(record),
        promotion=promotion,
        mlflow=ui_link(record, store),
        learning_curve=curve,
        directories=directories,
        examination=examination,
        failure=record.failure,
        naming=naming(run_config(record)) if promotion else "",
        page=str(page) if (page := run_directory(store, record.id) / PAGE).is_file() else None,
    )


def _was_resumed(directory: Path) -> bool:
    return (directory / MANIFEST).exists() and read_manifest(directory).resumed


def _source(model: dict[str, Any]) -> str:
    """The name by which commands find a model of the user's own: its directory, or org/name@revision."""
    return f"{model['source']}@{model['revision']}" if model["revision"] else str(model["source"])


def _draft(artifact: Artifact, name: str, gamma: int) -> DraftLine:
    profile = read_profile(artifact.path)
    megabytes = profile.draft.bytes / 1e6
    if profile.broken is not None:
        return DraftLine(name=name, megabytes=megabytes, broken=profile.broken)
    headline, greedy = profile.examined
    return DraftLine(
        name=name,
        megabytes=megabytes,
        by_token=KINDS[profile.draft.kind].by_token,
        acceptance_rate=headline.acceptance_rate,
        tokens_per_target_call=headline.tokens_per_target_call[gamma],
        acceptance_rate_greedy=greedy.acceptance_rate.value,
        loop_share=greedy.loop_share,
        segments=headline.by_segment,
    )


def _order(store: Store, record: RunRecord) -> Callable[[str], int]:
    """The position of a job in the run's plan."""
    jobs = Plan(run_config(record), store, record.outside).jobs
    positions = {job.id: position for position, job in enumerate(jobs)}
    return lambda job: positions.get(job, len(positions))
