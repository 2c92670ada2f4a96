"""evaluate: examines one draft, teacher-forced on stored completions. Writes its acceptance profile."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.profile_file import write_profile
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.acceptance.schema import (
    FILE,
    CrossCheck,
    ExaminedDraft,
    MeasuredTimes,
    Profile,
    ProfileConditions,
    SamplingFigures,
    SamplingSettings,
    figures_of,
)
from pipeline.config.evaluate import ConventionName
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.examination.cross_check import cross_check
from pipeline.examination.examiner import Examiner
from pipeline.examination.prompt_lookup import prompt_lookup_counts
from pipeline.examination.served_model import served_model
from pipeline.examination.token_acceptance import FILE as BY_TOKEN
from pipeline.examination.token_acceptance import TokenAcceptanceFile
from pipeline.examination.windows import tally_counts
from pipeline.generation.completion_store import StoredCompletion, canonical, read_completions, stored_samplings
from pipeline.latency.costs.forward_times import measure_times
from pipeline.models.draft_directory import find_draft
from pipeline.models.loading import choose_device, hardware_class, load_model, load_tokenizer
from pipeline.models.shape import measure_weights
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.models.surgery import added_tokens, extend_vocabulary
from pipeline.models.tokenizers import check_same_family
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import EvaluateSettings
from pipeline.running.tasks import Examination
from pipeline.servers.identity import Identity
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.store.row_files import RowFile

_TIMED_CONTEXT, _TIMED_REPEATS = 128, 5


def run(context: StageContext[EvaluateSettings]) -> Outcome:
    """Examine the draft of the task on stored completions and write `acceptance.json`.

    Inputs: the draft, the completions, and the pair for the cross-check. A draft that cannot be computed has `broken` instead of
    figures. UnderstudyError if the split has no completions at the deployment's sampling settings.
    """
    task = context.settings.task
    sets = _sets(context, task)
    with RowFile(context.out / FILE, list(sets)) as rows:
        if task.kind == "prompt-lookup":
            draft = ExaminedDraft("prompt-lookup", 0, 0)
            found = _look_up(context, task, sets, rows)
        else:
            path = find_draft(context.inputs["draft"], context.resources.models)
            weights = measure_weights(path)
            draft = ExaminedDraft("model", weights.bytes, weights.parameters, context.digests["draft"])
            try:
                found = _examine(context, task, path, sets, rows)
            except BrokenDraft as error:
                # A variant that cannot be computed does not end the run: it has no figures, and the gate promotes no draft
                # without figures.
                rows.clear()
                (context.out / BY_TOKEN).unlink(missing_ok=True)
                found = {"broken": str(error)}
        profile = Profile(draft=draft, conditions=_conditions(context, task), **found)
        write_profile(rows, profile)
    if profile.broken is not None:
        return Outcome({}, notes={"broken": profile.broken})
    return Outcome(_headline(context, profile), notes={"crosscheck": asdict(profile)["crosscheck"]})


@dataclass(frozen=True)
class _Set:
    """The completions at one sampling tuple."""

    sampling: Sampling
    completions: int


def _sets(context: StageContext[EvaluateSettings], task: Examination) -> dict[str, _Set]:
    """All stored tuples: `deployed`, `greedy` (unless that is the deployed one), and `also_1`, `also_2`, ..."""
    stored = stored_samplings(context.inputs["completions"], {task.split})
    deployed = canonical(Sampling.from_config(context.settings.sampling))
    names = {deployed: "deployed"} | ({} if deployed.greedy or task.split == "dev" else {GREEDY: "greedy"})
    if missing := [name for sampling, name in names.items() if sampling not in stored]:
        raise UnderstudyError(
            f"{context.inputs['completions']}: no {' and '.join(missing)} completions to examine; set "
            f"corpus.splits.{task.split} above 0"
        )
    further = [sampling for sampling in stored if sampling not in names]
    names |= {sampling: f"also_{number}" for number, sampling in enumerate(further, 1)}
    return {name: _Set(sampling, stored[sampling]) for sampling, name in names.items()}


def _completions(
    context: StageContext[EvaluateSettings], task: Examination, sampling: Sampling
) -> Iterator[StoredCompletion]:
    return read_completions(context.inputs["completions"], {task.split}, sampling)


def _convention(context: StageContext[EvaluateSettings], task: Examination) -> ConventionName:
    """How calls are counted. For dev completions no tokens past the end are stored, which an unclipped convention needs:
    there calls are counted as for a user."""
    convention = context.settings.evaluate.convention
    return convention if task.split == "examination" or CONVENTIONS[convention].clipped else "user"


def _look_up(
    context: StageContext[EvaluateSettings], task: Examination, sets: dict[str, _Set], rows: RowFile
) -> dict[str, Any]:
    settings = context.settings.evaluate
    tallies = {}
    for name, item in sets.items():
        counts = prompt_lookup_counts(_completions(context, task, item.sampling), settings)
        tallies[name] = tally_counts(counts, settings.max_gamma, rows, name)
    return _figures(context, sets, tallies)


def _examine(
    context: StageContext[EvaluateSettings], task: Examination, path: Path, sets: dict[str, _Set], rows: RowFile
) -> dict[str, Any]:
    settings, pair = context.settings.evaluate, read_pair(context.inputs["target"], context.resources.models)
    model = _load(context, pair, path)
    tallies, total = {}, sum(item.completions for item in sets.values())
    with context.progress.track(f"{context.job_id}: examine", total, "completions") as track:
        for name, item in sets.items():
            examiner = Examiner(item.sampling, settings, pair.vocabulary, count_as=_convention(context, task))
            completions = _completions(context, task, item.sampling)
            with contextlib.ExitStack() as stack:
                keep = stack.enter_context(TokenAcceptanceFile(context.out)).add if name == "deployed" else None
                counts = examiner.counts(model, completions, track.advance, keep)
                tallies[name] = tally_counts(counts, settings.max_gamma, rows, name)
    return _figures(context, sets, tallies) | _with_target(context, task, pair, model)


def _load(context: StageContext[EvaluateSettings], pair: Pair, path: Path) -> Any:
    """The draft with a row for every token of the pair. A champion may lack tokens that the target has gained since; it gets
    rows for them as the base draft did, because no engine accepts it otherwise."""
    resources = context.resources
    gained = _gained(pair, path, resources.trust_remote_code)
    model = load_model(path, context.settings.dtype, choose_device(resources.device), resources.trust_remote_code)
    if gained and getattr(model.config, "quantization_config", None) is not None:
        raise BrokenDraft(
            f"the draft is quantized and lacks {len(gained)} tokens that the target has gained since it was trained; rows for "
            "them cannot be added to quantized weights"
        )
    if gained:
        extend_vocabulary(model, gained)
    return model


def _gained(pair: Pair, path: Path, trusted: bool) -> list[int]:
    """Tokens that the draft lacks. BrokenDraft for a draft of another model family: the registry may hold a champion that
    another pair registered under the same name."""
    try:
        target, own = load_tokenizer(pair.tokenizer, trusted), load_tokenizer(path, trusted)
        gained = added_tokens(target, own)
        if not gained:
            check_same_family(target, own)
    except UnderstudyError as error:
        raise BrokenDraft(
            f"the draft is not of this pair (if it is the registry's champion, set promote.target_name): {error}"
        ) from error
    return gained


def _with_target(context: StageContext[EvaluateSettings], task: Examination, pair: Pair, draft: Any) -> dict[str, Any]:
    """What needs the target too. `crosscheck`: a real greedy decode of a few prompts, compared round by round with the
    examination's prediction, and the stored log p of their completions, compared with the target's own pass.
    `forward_times`: seconds of a forward pass of both models on this machine, unless the target is on servers."""
    settings = context.settings.evaluate
    if settings.crosscheck_prompts == 0 or task.split == "dev":
        return {}
    stored = list(islice(_completions(context, task, GREEDY), settings.crosscheck_prompts))
    deployed = canonical(Sampling.from_config(context.settings.sampling))
    sampled = (
        [] if deployed.greedy else list(islice(_completions(context, task, deployed), settings.crosscheck_prompts))
    )

    def check(target: Any) -> CrossCheck:
        return cross_check(target, draft, stored, settings, pair.vocabulary, pair.stop_tokens, sampled)

    server = context.resources.servers
    if server is not None and task.target == "target":
        identity = Identity.from_facts(pair.facts["served"])
        with served_model(server, identity, pair.vocabulary, context.progress) as served:
            return {"crosscheck": check(served)}
    device, trusted = choose_device(context.resources.device), context.resources.trust_remote_code
    target = load_model(pair.path(task.target), pair.dtype(task.target), device, trusted)
    return {"crosscheck": check(target), "forward_times": _forward_times(target, draft, pair, settings.gamma)}


def _forward_times(target: Any, draft: Any, pair: Pair, gamma: int) -> MeasuredTimes:
    """Seconds at batch 1: of the target by number of tokens (1 and gamma + 1), and of the draft over one token."""
    context = max(1, min(_TIMED_CONTEXT, pair.context - gamma - 1))
    times = measure_times(target, draft, pair.vocabulary, [gamma + 1], context=context, repeats=_TIMED_REPEATS)
    return MeasuredTimes(hardware_class(target.device), context, dict(times.target), times.draft)


def _conditions(context: StageContext[EvaluateSettings], task: Examination) -> ProfileConditions:
    settings = context.settings.evaluate
    return ProfileConditions(
        completions=context.digests["completions"],
        convention=_convention(context, task),
        draft_sampling=settings.draft_sampling,
        sampling=SamplingSettings.of(context.settings.sampling),
        dtype=context.settings.dtype,
        confidence=settings.confidence,
        gamma=settings.gamma,
        max_gamma=settings.max_gamma,
        batch_tokens=settings.batch_tokens,
    )


def _figures(
    context: StageContext[EvaluateSettings], sets: dict[str, _Set], tallies: dict[str, AcceptanceTally]
) -> dict[str, Any]:
    settings = context.settings.evaluate
    figures = {name: tally.figures(settings.confidence) for name, tally in tallies.items()}
    return {
        "headline": figures["deployed"],
        "greedy": figures.get("greedy", figures["deployed"]),
        "samplings": [
            SamplingFigures(
                prompts_as=name, sampling=SamplingSettings.of(sets[name].sampling), **figures_of(figures[name])
            )
            for name in sets
            if name not in ("deployed", "greedy")
        ],
        "domains": tallies["deployed"].domains(settings.gamma, settings.confidence),
    }


def _headline(context: StageContext[EvaluateSettings], profile: Profile) -> dict[str, float]:
    gamma, (headline, greedy) = context.settings.evaluate.gamma, profile.examined
    found = {
        "acceptance_rate": headline.acceptance_rate.value,
        f"tokens_per_target_call_gamma_{gamma}": headline.tokens_per_target_call[gamma].value,
        "acceptance_rate_greedy": greedy.acceptance_rate.value,
        "loop_share_greedy": greedy.loop_share,
        "draft_bytes": float(profile.draft.bytes),
    }
    found |= {f"acceptance_rate_{domain}": entry.acceptance_rate.value for domain, entry in profile.domains.items()}
    return {name: value for name, value in found.items() if np.isfinite(value)}
