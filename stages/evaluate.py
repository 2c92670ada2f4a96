"""evaluate: examines one draft, teacher-forced on stored completions, and writes its acceptance profile."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.acceptance.profile_file import write_profile
from pipeline.acceptance.schema import (
    FILE,
    AcceptanceProfile,
    CrossCheck,
    ExaminedDraft,
    ProfileConditions,
    SamplingSettings,
)
from pipeline.config.tasks import Examination
from pipeline.drafts.directory import find_draft
from pipeline.drafts.head_config import kind_of
from pipeline.drafts.head_tensors import measure_draft
from pipeline.drafts.kinds import KINDS, Kind
from pipeline.drafts.loading import DraftOrigin, DraftWithWeights, load_draft
from pipeline.errors import BrokenDraft
from pipeline.examination.completion_sets import CompletionSets, completion_sets
from pipeline.examination.cross_check import attempt_prompts, cross_check
from pipeline.examination.profile_figures import headline_figures, profile_figures
from pipeline.examination.served_model import served_model
from pipeline.examination.shard_worker import (
    ExaminationWork,
    ExaminedShard,
    merged,
    open_examination,
    shards_to_examine,
)
from pipeline.examination.token_acceptance import FILE as BY_TOKEN
from pipeline.examination.token_acceptance import TokenAcceptanceFile
from pipeline.examination.windows import tally_counts
from pipeline.models.devices import choose_device
from pipeline.models.loading import load_model
from pipeline.models.out_of_memory import batch_named, remedy_named
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.running.context import Outcome, StageContext
from pipeline.running.execution.spread import Spread
from pipeline.running.parts import Part, Work, kept_parts
from pipeline.running.settings import EvaluateSettings
from pipeline.servers.identity import Identity
from pipeline.speculation.settings import GREEDY
from pipeline.store.row_files import RowFile


def run(context: StageContext[EvaluateSettings]) -> Outcome:
    """Examine the draft of the task on stored completions and write `acceptance.json`.

    Inputs: the draft, the completions, and the pair for the cross-check. A draft that cannot be computed has `broken` instead of
    figures. UnderstudyError if the split has no completions at the deployment's sampling settings.
    """
    task, settings = context.settings.task, context.settings
    sets = completion_sets(context.inputs["completions"], task.split, settings.deployed)
    origin, draft = _origin(context, task)
    parts, kept = shards_to_examine(sets), kept_parts(context.store, context.out.name)
    missing = _examine(context, parts, sets, origin, kept)
    if context.share is not None:
        return Outcome(notes={"missing": missing})
    with RowFile(context.out / FILE, list(parts)) as rows:
        try:
            figures = _added_up(context, KINDS[origin.kind], parts, sets, kept, rows)
            if origin.files is not None:
                with remedy_named("cross-check", "set evaluate.crosscheck_prompts to 0 for none"):
                    figures |= _with_target(context, task, sets, *origin.files)
        except BrokenDraft as error:
            # A variant that cannot be computed does not end the run: it has no figures, and the gate promotes no draft without
            # figures.
            rows.clear()
            (context.out / BY_TOKEN).unlink(missing_ok=True)
            figures = {"broken": str(error)}
        profile = AcceptanceProfile(draft=draft, conditions=_conditions(context, sets), **figures)
        write_profile(rows, profile)
    if profile.broken is not None:
        return Outcome({}, notes={"broken": profile.broken})
    return Outcome(headline_figures(profile), notes={"crosscheck": asdict(profile)["crosscheck"]})


def _origin(context: StageContext[EvaluateSettings], task: Examination) -> tuple[DraftOrigin, ExaminedDraft]:
    """What the draft is loaded from, and what its profile states of it."""
    settings, resources = context.settings, context.resources
    files, kind, draft = None, task.kind, ExaminedDraft(task.kind, 0, 0)
    if KINDS[task.kind].has_weights:
        path = find_draft(context.inputs["draft"], resources.models)
        kind = kind_of(path).name
        weights = measure_draft(path, resources.trust_remote_code)
        draft = ExaminedDraft(kind, weights.bytes, weights.parameters, context.digests["draft"])
        files = (read_pair(context.inputs["target"], resources.models), path)
    origin = DraftOrigin(
        kind=kind,
        files=files,
        dtype=settings.dtype,
        target=task.target,
        target_device_map=resources.device_map(task.target),
        trust_remote_code=resources.trust_remote_code,
        lookup_ngram=settings.evaluate.lookup_ngram,
    )
    return origin, draft


def _examine(
    context: StageContext[EvaluateSettings],
    parts: Mapping[str, Sequence[ExaminedShard]],
    sets: CompletionSets,
    draft: DraftOrigin,
    kept: Path,
) -> int:
    """Examine shard by shard, wherever the config has workers, and keep the counts. Returns how many shards are missing: of other
    shares."""
    settings = context.settings.evaluate
    work = ExaminationWork(
        draft=draft,
        settings=settings,
        count_as=sets.counted_as(settings.convention),
        split=sets.split,
    )
    todo = [
        Part(part.name, part.files, part.completions, partial(_same, part)) for own in parts.values() for part in own
    ]
    kept.mkdir(parents=True, exist_ok=True)
    with Spread(context, Work(open_examination, work), kept) as spread:
        return spread.make(todo, f"{context.job_id}: examine", "completions")


def _same(part: ExaminedShard) -> ExaminedShard:
    return part


def _added_up(
    context: StageContext[EvaluateSettings],
    kind: Kind,
    parts: Mapping[str, Sequence[ExaminedShard]],
    sets: CompletionSets,
    kept: Path,
    rows: RowFile,
) -> dict[str, Any]:
    """The figures of all shards, added up in the order of the shards. BrokenDraft for a draft that cannot be examined."""
    settings, tallies = context.settings.evaluate, {}
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(TokenAcceptanceFile(context.out / BY_TOKEN)) if kind.by_token else None
        for name, own in parts.items():
            counts = merged(own, kept, file if name == "deployed" else None)
            tallies[name] = tally_counts(counts, settings.max_gamma, rows, name, sets.shared(own[0].sampling))
    return profile_figures({name: own[0].sampling for name, own in parts.items()}, tallies, settings)


def _with_target(
    context: StageContext[EvaluateSettings], task: Examination, sets: CompletionSets, pair: Pair, path: Path
) -> dict[str, Any]:
    """What needs the target too. `crosscheck`: a real greedy decode of a few prompts, compared round by round with the
    examination's prediction, and the stored log p of their completions, compared with the target's own pass."""
    settings, resources = context.settings.evaluate, context.resources
    if settings.crosscheck_prompts == 0 or task.split == "dev":
        return {}
    stored = list(islice(sets.read(GREEDY), settings.crosscheck_prompts))
    device = choose_device(resources.device)

    def draft_of(target: Any) -> DraftWithWeights:
        return load_draft(
            pair, path, context.settings.dtype, device, resources.trust_remote_code, target=lambda: target
        )

    sampled = [] if sets.deployed.greedy else list(islice(sets.read(sets.deployed), settings.crosscheck_prompts))

    def check(target: Any) -> CrossCheck:
        given = (target, draft_of(target), stored, settings, pair.stop_tokens, sampled)
        with batch_named("evaluate.crosscheck_prompts", len(stored), attempt_prompts(*given)):
            return cross_check(*given)

    if resources.servers is not None and task.target == "target":
        identity = Identity.from_facts(pair.facts["served"])
        with served_model(resources.servers, identity, pair.vocabulary, context.progress) as served:
            return {"crosscheck": check(served)}
    placed = resources.device_map(task.target)
    target = load_model(pair.path(task.target), pair.dtype(task.target), device, resources.trust_remote_code, placed)
    return {"crosscheck": check(target)}


def _conditions(context: StageContext[EvaluateSettings], sets: CompletionSets) -> ProfileConditions:
    settings = context.settings.evaluate
    return ProfileConditions(
        completions=context.digests["completions"],
        convention=sets.counted_as(settings.convention),
        draft_sampling=settings.draft_sampling,
        sampling=SamplingSettings.of(context.settings.sampling),
        dtype=context.settings.dtype,
        confidence=settings.confidence,
        gamma=settings.gamma,
        max_gamma=settings.max_gamma,
        batch_tokens=settings.batch_tokens,
    )
