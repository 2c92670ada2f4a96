"""Begins a run, or goes on with one: pins its outside inputs and looks up the champion."""

from collections.abc import Mapping
from datetime import date

from pipeline.config.resources import differing
from pipeline.config.root import Config
from pipeline.config.stored import given_config
from pipeline.distillation.launchers import current, process_count
from pipeline.errors import RegistryUnavailable, UnderstudyError, UsageError
from pipeline.progress import Progress
from pipeline.registry.registry import Registry, registry_for
from pipeline.registry.target_identity import identity_of
from pipeline.running import certain_refusals
from pipeline.running.abandoned import close_abandoned
from pipeline.running.certain_refusals import stop_or_warn
from pipeline.running.champion_check import require_profile_of, require_same_target
from pipeline.running.clear_text import clear_text_warnings
from pipeline.running.environment import require_ray
from pipeline.running.inputs import MACHINE, is_prompts, resolve_inputs
from pipeline.running.jobs import jobs_of
from pipeline.running.local_pair import check_local_pair
from pipeline.running.plan import Plan
from pipeline.running.prompt_survey import require_prompts
from pipeline.store.artifacts import Store
from pipeline.store.processes import sign_life
from pipeline.store.runs import GC_LOCK, OutsideInput, RunRecord, load_run, new_run_id, read_runs, run_directory
from pipeline.store.times import utc_after, utc_now


def begin(
    config: Config,
    store: Store,
    run_id: str | None,
    progress: Progress,
    verify: bool = False,
    even_if_refused: bool = False,
) -> RunRecord:
    """A new record with its outside inputs pinned, or the existing one called `run_id`.

    An existing run keeps its pinned inputs, but for prompts that were not read yet. The champion is looked up again, because the
    registry may have changed.
    `verify`: hash the inputs instead of trusting remembered digests. `even_if_refused`: go on where the gate must refuse.
    Raises UsageError for a number of processes that cannot train, such as a launcher's, if `run_id` exists with a config that
    differs in more than resources, if a pinned input has changed since, or for a new run that cannot work; then nothing is
    recorded.
    """
    _check_processes(config)
    if config.execution.ray is not None:
        require_ray()
    for warning in clear_text_warnings(config, store):
        progress.warn(warning)
    store.create()
    record = load_run(store, run_id) if run_id is not None else None
    given = config.model_dump(mode="json")
    inputs = resolve_inputs(config, store, verify)
    stop_or_warn(certain_refusals.of_config(config), progress, even_if_refused)
    if record is None and next(Plan(config, store, inputs).steps()).find() is None:  # the pair
        _check_before_paying(config, inputs, progress, even_if_refused)
    if record is None:
        record = RunRecord(
            id=run_id if run_id is not None else new_run_id(config.name),
            name=config.name,
            created=_created(store),
            config=given,
            outside=inputs,
        )
    else:
        _take_resources(record, config)
        _check_pinned(record, config, inputs)
    record.state, record.ended, record.failure = "running", "", ""
    for name in ("registry_down", "champion"):
        record.outside.pop(name, None)
    record.outside |= _champion(config, record.outside, registry_for(config, store), progress)
    # From here on `store gc` sees the run, and keeps what it needs; what it is about to delete is gone before the run looks.
    with store.lock(GC_LOCK, lambda by: progress.line(f"`store gc` is running ({by}); waiting"), shared=True):
        sign_life(run_directory(store, record.id))  # before the record has the state `running`
        record.save(store)
    close_abandoned(store, progress)
    return record


def _check_processes(config: Config) -> None:
    """UsageError for a number of processes that cannot train, such as a launcher's."""
    alone = config.distill.on_policy.rounds > 0 and config.pair.target.device_map is not None
    process_count(config.distill.processes, config.distill.batch, 0, current(), alone)


def join(config: Config, store: Store, run_id: str) -> RunRecord:
    """The record of a run that a share of a stage is made for, with the resources of `config`; nothing is written. UsageError
    for a run that is not there, or is of another config."""
    record = load_run(store, run_id)
    if record is None:
        raise UsageError(f"--run {run_id}: no such run in {store}; run the stages before this one")
    _take_resources(record, config)
    return record


def _take_resources(record: RunRecord, config: Config) -> None:
    """The run goes on with the resources of `config`. UsageError where more differs."""
    given = config.model_dump(mode="json")
    keys = differing(given_config(record).model_dump(mode="json"), given)  # as this version writes it
    if keys:
        named = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        raise UsageError(f"--run {record.id}: exists with another config ({named}); leave --run out or name a new one")
    record.config = given


def _created(store: Store) -> str:
    """Now, but after the latest run: runs are ordered by this time, also if two begin in one second or the clock was set back.
    A run that is dated more than a day ahead had a wrong clock itself, and is not followed."""
    now = utc_now()
    latest = max((record.created for record in read_runs(store)), default="")
    try:
        return utc_after(latest) if now <= latest < utc_now(days=1) else now
    except ValueError:  # a record that was edited by hand
        return now


def _check_before_paying(
    config: Config, inputs: Mapping[str, OutsideInput], progress: Progress, even_if_refused: bool
) -> None:
    """What the pair stage and the corpus stage would find, before a model is downloaded or trained. Where the pair is in the
    store, the corpus stage comes at once."""
    resolved, _ = check_local_pair(config, progress.warn)
    today = inputs["today"].digest if "today" in inputs else None
    require_prompts(resolved, progress, even_if_refused, date.fromisoformat(today) if today else None)


def _check_pinned(record: RunRecord, config: Config, inputs: Mapping[str, OutsideInput]) -> None:
    """All stages of a run must read the same files. Only the corpus stage reads prompts, and a log goes on growing: until that
    stage is done the run takes them as they are now, and afterwards they may change. So with the machine and the speed stage:
    tasks of a scheduler run on several machines, and step times are those of the one that measures them all."""
    measured = sum(entry.stage == "speed" for entry in record.jobs.values())
    settled = {
        "corpus": any(entry.stage == "corpus" for entry in record.jobs.values()),
        "speed": measured >= sum(job.stage == "speed" for job in jobs_of(config)),
    }
    for name, item in inputs.items():
        if name == "today":  # the run keeps the day on which it began
            continue
        if is_prompts(name) or name == MACHINE:
            if not settled["corpus" if is_prompts(name) else "speed"]:
                record.outside[name] = item
        elif record.outside[name].digest != item.digest:
            raise UsageError(
                f"--run {record.id}: {name} ({item.path or item.digest}) has changed since this run began; start a new run"
            )


def _champion(
    config: Config, pinned: Mapping[str, OutsideInput], registry: Registry, progress: Progress
) -> dict[str, OutsideInput]:
    """The champion as an outside input, if there is one; the reason if the registry does not answer. UsageError for the champion
    of another target."""
    try:
        _drop_overdue_challenger(registry, progress)
        return champion_input(config, pinned, registry)
    except RegistryUnavailable as error:
        progress.warn(f"{error}; continuing without it; the gate cannot decide until it answers")
        return {"registry_down": OutsideInput("", facts={"reason": str(error)})}


def champion_input(config: Config, pinned: Mapping[str, OutsideInput], registry: Registry) -> dict[str, OutsideInput]:
    """The champion by the name `champion`, if there is one. RegistryUnavailable; UsageError for drafts of another target than the
    one in `pinned` under a name that nobody chose, and for a `gate.champion_profile` of another draft."""
    require_same_target(config, identity_of(config, pinned), registry)
    champion = registry.champion()
    if champion is None:
        return {}
    require_profile_of(config, champion)
    facts = {"name": champion.name, "version": champion.version, "shape": champion.shape}
    return {"champion": OutsideInput(champion.digest, facts=facts)}


def _drop_overdue_challenger(registry: Registry, progress: Progress) -> None:
    """Nothing runs between two runs, so the next one reports that nobody approved the last one's draft."""
    try:
        overdue = registry.drop_overdue()
    except UnderstudyError as error:  # such as an account that may only read; approving it is refused all the same
        progress.warn(f"an overdue challenger keeps its alias: {error}")
        return
    if overdue is not None:
        progress.line(
            f"{registry.name} version {overdue.version}: nobody approved it before {overdue.approve_before}; "
            "it is refused and no longer challenger"
        )
