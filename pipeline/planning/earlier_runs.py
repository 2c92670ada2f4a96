"""What earlier runs of a config have measured: lengths of prompts and completions, seconds and bytes of each job. Read from run
records, manifests and the stored prompts. Torch-free."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from pipeline.config.root import Config
from pipeline.config.stored import run_config
from pipeline.errors import UsageError
from pipeline.planning.same_inputs import PlannedInputs, draft_kind
from pipeline.planning.work import Amounts, Work, completions_of, work_of
from pipeline.running.jobs import jobs_of
from pipeline.store.artifacts import Artifact, Store
from pipeline.store.runs import RunRecord, read_runs, shared_jobs

# Settings that change how fast a job is, and not only how much it has to do.
_SPEED = (
    "device",
    "execution",
    "pair.target.source",
    "pair.target.dtype",
    "pair.draft.source",
    "pair.draft.layers",
    "pair.draft.head",
    "pair.draft.vocabulary",
    "generate.engine",
    "generate.batch",
    "generate.server.api",
    "generate.server.concurrency",
    "distill.batch",
    "distill.prompt_weight",
    "distill.processes",
    "distill.shard",
    "distill.bf16",
    "distill.gradient_checkpointing",
    "distill.lora",
    "distill.on_policy.rounds",
    "distill.unrolled_steps",
    "evaluate.batch_tokens",
)


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """A job that a run has built: its cost and its work."""

    run: str
    seconds: float
    stored_bytes: int
    device: str  # class of the machine's device; empty where no manifest has it
    resumed: bool  # `seconds` leave out what tasks of a scheduler, or a killed run, had made of it before
    work: Work


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """What a run found its rows to be."""

    source: str  # the run, for people
    kept: float  # share of the rows that are prompts
    prompt_tokens: float
    longest_prompt: float
    max_new_tokens: int  # the limit under which the completions were made
    completion_tokens: float | None = None  # None: no completions yet
    turns: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What runs of one name have measured: the latest of each; of a job the latest that was made in one go, if there is one."""

    jobs: Mapping[str, MeasuredJob] = field(default_factory=dict)
    differences: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # by run: settings that change its throughputs
    lengths: Lengths | None = None
    draft_parameters: float | None = None
    target_parameters: float | None = None
    parameters_source: str = ""


def measurements(store: Store, config: Config) -> Measurements:
    """The measurements of runs of `config` by its name whose target costs the same: of each job the latest that was built in one
    go, else the latest, and the lengths of the latest run of the same prompts with completions. A run of another version, whose
    config or figures cannot be read, is left out."""
    known, wanted, inputs = (
        Measurements(),
        {job.id for job in jobs_of(config) if not job.shares},
        PlannedInputs.of(config, store),
    )
    for record in reversed(read_runs(store)):
        if record.name == config.name and inputs.same_speed(record):
            with contextlib.suppress(UsageError, KeyError):
                known = _with_run(known, record, store, config, inputs)
        timed = {name for name, job in known.jobs.items() if not job.resumed}
        if known.lengths is not None and known.lengths.completion_tokens and wanted <= timed:
            break
    return known


def _with_run(
    earlier: Measurements, record: RunRecord, store: Store, planned: Config, inputs: PlannedInputs
) -> Measurements:
    """The measurements with those that another, earlier run adds."""
    config, built = run_config(record), _built(store, record)
    source, parameters, target_size = earlier.parameters_source, earlier.draft_parameters, earlier.target_parameters
    of_target = ("layers", "head")  # a draft that is made of the target has no digest of its own
    same_draft = all(getattr(config.pair.draft, key) == getattr(planned.pair.draft, key) for key in of_target)
    if parameters is None and "pair" in built and same_draft and inputs.same_draft(record):
        figures, source = built["pair"].figures, f"those of run {record.id}"
        parameters, target_size = figures.get("draft_parameters"), figures.get("target_parameters")
    if "corpus" not in built:
        return replace(earlier, draft_parameters=parameters, target_parameters=target_size, parameters_source=source)
    lengths = _lengths(record.id, config, built)
    jobs = _measured(record, built, work_of(config, _amounts(config, lengths, built)))
    better = {
        name
        for name, job in jobs.items()
        if name not in earlier.jobs or (earlier.jobs[name].resumed and not job.resumed)
    }
    known = earlier.lengths
    own = lengths if inputs.same_target(record) else replace(lengths, completion_tokens=None, turns=1.0)
    if inputs.same_prompts(record) and (
        known is None or (known.completion_tokens is None and own.completion_tokens is not None)
    ):
        known = own
    return Measurements(
        jobs={**earlier.jobs, **{name: jobs[name] for name in better}},
        differences={**earlier.differences, record.id: differences(config, planned)},
        lengths=known,
        draft_parameters=parameters,
        target_parameters=target_size,
        parameters_source=source,
    )


def differences(earlier: Config, planned: Config) -> list[str]:
    """Settings that change a throughput, with both values."""
    rows = []
    for key in _SPEED:
        was, now = (attrgetter(key)(config) for config in (earlier, planned))
        if was != now:
            rows.append(f"{key} (was {was}, now {now})")
    return rows


def _built(store: Store, record: RunRecord) -> dict[str, Artifact]:
    artifacts = {job: store.find(entry.stage, entry.key) for job, entry in record.jobs.items()}
    return {job: artifact for job, artifact in artifacts.items() if artifact is not None}


def _measured(record: RunRecord, built: Mapping[str, Artifact], works: Mapping[str, Work]) -> dict[str, MeasuredJob]:
    """The jobs with an artifact of their own, and those that leave none."""
    artifacts, shared = {}, shared_jobs(record)
    for job, entry in record.jobs.items():
        work, artifact = works.get(job), built.get(job)
        if job in shared or work is None or (artifact is None and entry.figures is None):
            continue
        manifest = artifact.manifest if artifact else None
        artifacts[job] = MeasuredJob(
            run=record.id,
            seconds=manifest.seconds if manifest else entry.seconds,
            stored_bytes=sum(file.size for file in manifest.files.values()) if manifest else 0,
            device=manifest.environment.get("device", "") if manifest else "",
            resumed=manifest.resumed if manifest else False,
            work=work,
        )
    return artifacts


def _prompts(corpus: Artifact) -> dict[str, float]:
    return {split: float(corpus.figures[split]) for split in ("train", "dev", "examination")}


def _amounts(config: Config, lengths: Lengths, built: Mapping[str, Artifact]) -> Amounts:
    """The amounts of a run that has completions; for another one those of the longest completions."""
    return Amounts(
        rows=float(built["corpus"].figures["rows"]),
        prompts=_prompts(built["corpus"]),
        prompt_tokens=lengths.prompt_tokens,
        completion_tokens=lengths.completion_tokens or config.generate.max_new_tokens,
        longest_prompt=lengths.longest_prompt,
        turns=lengths.turns,
        processes=float(built["distill"].figures.get("processes", 1.0)) if "distill" in built else 1.0,
        recorded=_recorded(built),
        target_passes=draft_kind(config).reads_states,
    )


def _recorded(built: Mapping[str, Artifact]) -> float:
    """The share of the prompts whose recorded answer was scored."""
    figures = built["generate"].figures if "generate" in built else {}
    return float(figures.get("recorded_answers", 0.0)) / sum(_prompts(built["corpus"]).values())


def _lengths(run: str, config: Config, built: Mapping[str, Artifact]) -> Lengths:
    corpus, prompts = built["corpus"].figures, _prompts(built["corpus"])
    lengths = Lengths(
        source=f"run {run}",
        kept=corpus["prompts"] / corpus["rows"],
        prompt_tokens=corpus["tokens"] / corpus["prompts"],
        longest_prompt=_longest_prompt(built["corpus"].path),
        max_new_tokens=config.generate.max_new_tokens,
    )
    if "generate" not in built:
        return lengths
    figures, planned = built["generate"].figures, sum(completions_of(config, prompts, prompts).values())
    mean, turns = figures["tokens"] / figures["completions"], figures["completions"] / planned
    return replace(lengths, completion_tokens=mean, turns=turns)


def _longest_prompt(corpus: Path) -> float:
    # Imported here because pyarrow takes half a second, and a plan without an earlier run does without it.
    from pipeline.corpus.prompt_store import PromptColumns, open_prompts

    return float(PromptColumns.of(open_prompts(corpus)).length.max())


def with_small_runs(
    known: Measurements, lengths: Lengths | None, draft_parameters: float | None, target_parameters: float | None
) -> Measurements:
    """What small runs of the config at hand have found goes before what earlier runs had."""
    if draft_parameters:
        known = replace(
            known,
            draft_parameters=draft_parameters,
            target_parameters=target_parameters,
            parameters_source="measured in two small runs",
        )
    return replace(known, lengths=lengths or known.lengths)
