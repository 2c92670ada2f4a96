"""Answers whether a draft is worth using on this machine: completions of some prompts, an examination of each draft, and the
speedup that follows from this machine's forward times. Works without a config or a store."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.acceptance.decoding_speed import least_turns, of_turns
from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.profile import shared_conversations
from pipeline.acceptance.schema import DomainFigures, Figure, Figures, counted, units_needed
from pipeline.acceptance.step_times import speed_at_best_length
from pipeline.config.corpus import PromptSource
from pipeline.config.evaluate import EvaluateConfig
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import stated_sampling
from pipeline.corpus.prompt_store import Prompt
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_buffer import token_hash
from pipeline.corpus.rows import BadRow, parse_row
from pipeline.drafts.kinds import LOOKUP, SUFFIX
from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.named_pair import NamedPair
from pipeline.drafts.suffix import SuffixMatching, SuffixSettings
from pipeline.errors import BrokenDraft, UsageError
from pipeline.examination.examiner import Examiner
from pipeline.generation.completion_plan import plan_completions
from pipeline.generation.completion_store import StoredCompletion, read_completions, stored_samplings
from pipeline.generation.generate import GenerationSettings, generate
from pipeline.latency.costs.flops import macs_per_token, operations_factor
from pipeline.latency.costs.forward_times import measure_times
from pipeline.latency.costs.ideal_speedup import ForwardTimes, break_even, from_cost_ratio
from pipeline.models.devices import timed_on
from pipeline.models.files import model_digest
from pipeline.models.out_of_memory import SmallerBatches
from pipeline.models.placement import input_device
from pipeline.progress import Progress
from pipeline.speculation.choice import passes_differ, passes_of
from pipeline.speculation.deployed import StatedSettings, of_log
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling
from pipeline.store.artifacts import MANIFEST, read_manifest

_GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
_PASSES, _MOST_PASSES = 3, 50  # of each kind in a turn of the forward-time measurement
_TURN_SECONDS = 0.3  # of a turn in which more of them than the fewest are made: short passes are noisy ones
_LEAST_PROMPTS = 40  # fewer prompts: inconclusive, as with gate.min_prompts_per_domain


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The findings on one draft. `speedup` is predicted from forward times alone at the best draft length, without prefill:
    an upper bound, because a decoder does more than forward passes."""

    name: str
    figures: Figures
    domains: Mapping[str, DomainFigures]
    cost_ratio: float  # a draft pass over a target pass
    gamma: int
    speedup: (
        Figure | None
    )  # with the errors of acceptance and of forward times, as in a run; None where it is not measurable
    not_measurable: str | None  # why
    # The acceptance rate at which the speedup is 1, at the measured forward times and at their lower bounds. None: above 1; and
    # where the speedup is not measurable, or acceptance is not of every token.
    break_even: float | None
    least_break_even: float | None
    verdict: str
    pays: bool | None  # None: inconclusive
    # operations per emitted token over those of plain decoding; None for unknown architectures
    arithmetic: float | None


@dataclass(frozen=True)
class Probe:
    """The findings, and what was left out."""

    findings: list[Finding]  # drafts in the given order, then those without a model
    broken: Mapping[str, str]  # drafts that could not be examined, with the reason
    stored: int  # completions
    examined: int
    seen: int = 0  # completions left out because a draft was trained on their prompts
    unequal_passes: bool = False  # whether the target is computed in compiled code there and a draft is not
    device: str = ""  # on which forward times were measured, and how (`devices.timed_on`)


@dataclass(frozen=True)
class PromptsToComplete:
    """Prompts as token ids. `notes`: what their source was read as, and each kind of row that was left out."""

    prompts: list[Prompt]
    notes: list[str]
    sampling: list[StatedSettings]  # what their rows state of the deployment's


def read_prompts(
    source: PromptSource, pair: NamedPair, chat: bool | None, count: int, most_tokens: int
) -> PromptsToComplete:
    """`count` prompts of a source, independent of the order of the rows. UsageError where no prompt is left, naming the first bad
    row."""
    path = Path(source.path)
    reader = SourceReader(0, source, path, option="--prompts")
    renderer = Renderer(pair.tokenizer, chat, {}, pair.vocabulary)
    prompts: dict[str, Prompt] = {}
    longer, templated, bad, stated = 0, 0, list[str](), Counter[tuple[tuple[str, float], ...]]()
    for row in reader:
        try:
            request = parse_row(row.value, reader.source, renderer.names)
            tokens = renderer.token_ids([renderer.text(request)])[0]
            renderer.check_ids(tokens, request.facts)
        except BadRow as reason:
            bad.append(f"{reader.unit} {row.number}: {reason}")
            continue
        if not 0 < len(tokens) <= most_tokens:
            longer += 1
            continue
        templated += request.plain and renderer.template_for_plain
        if reader.columns.foreign_answers is None:
            with contextlib.suppress(UnusableAnswer):  # values that cannot be
                stated[tuple(stated_sampling(row.value).items())] += 1
        digest = f"{token_hash(tokens):016x}"
        domain = min(request.domain, prompts[digest].domain) if digest in prompts else request.domain
        text_id, conversation = request.text_id, request.conversation
        prompts[digest] = Prompt(
            digest, "examination", domain, 0, tuple(tokens), text_id=text_id, conversation=conversation
        )
    if prompts:
        reader.require_named()
    limit = f"{most_tokens} tokens (the shorter context of target and draft, minus --max-new-tokens)"
    notes = [f"{longer} prompts left out: no token, or more than {limit}"]
    by_default = (
        f"chat template: applied to {templated:,} plain prompts, as the tokenizer has one; --no-chat leaves it out"
    )
    notes = (notes if longer else []) + ([by_default] if templated and chat is None else [])
    notes += [f"{len(bad)} rows are not prompts; the first: {bad[0]}"] if bad else []
    if not prompts:
        raise UsageError(f"--prompts {path}: no prompt to complete{''.join('; ' + note for note in notes)}")
    trained_on = pair.trained_on.among({name: prompt.text_id for name, prompt in prompts.items()})
    if trained_on:
        notes.append(f"{len(trained_on)} prompts left out: a draft was trained on them")
    fresh = sorted(prompts.keys() - trained_on)
    if not fresh:
        raise UsageError(f"--prompts {path}: a draft was trained on every one of these prompts; use other prompts")
    chosen = [prompts[digest] for digest in fresh[:count]]
    return PromptsToComplete(chosen, [f"{path}: {reader.summary}", *notes], of_log(stated))


def complete(
    pair: NamedPair, prompts: list[Prompt], sampling: Sampling, new_tokens: int, out: Path, progress: Progress
) -> None:
    """Generate the target's completion of each prompt into `out`."""
    planned = [item for item in plan_completions(prompts, sampling) if item.sampling == sampling]

    def work(batch: int) -> None:
        settings = GenerationSettings(
            sampling=sampling,
            max_new_tokens=new_tokens,
            lookahead=0,
            distribution_tokens=1,
            distribution_selection="top_k",
            batch=batch,
            shard=128,
            seed=0,
        )
        generate(pair.target, planned, settings, pair.vocabulary, pair.stop_tokens, out, progress)

    SmallerBatches("probe: completions of a batch", 32, progress.warn).run(work)


def sampling_of(completions: Path) -> list[StatedSettings]:
    """The deployment's sampling for which a generate artifact was made."""
    manifest = read_manifest(completions) if (completions / MANIFEST).is_file() else None
    settings = manifest.settings.get("sampling") if manifest is not None else None
    return [StatedSettings("the run of the completions", settings)] if isinstance(settings, dict) else []


def check_completions(directory: Path, sampling: Sampling, target: Path) -> None:
    """Raise UsageError unless `directory` is a generate artifact with examination completions at `sampling`, by `target`."""
    manifest = read_manifest(directory) if (directory / MANIFEST).is_file() else None
    stage, stored_target = (manifest.stage, manifest.inputs.get("target")) if manifest else ("generate", None)
    if stage == "generate" and stored_target not in (None, model_digest(target)):
        raise UsageError(
            f"--completions {directory}: completions of another target than --target {target}; `understudy show` names the "
            "directories of a run"
        )
    stored = stored_samplings(directory, {"examination"}) if stage == "generate" else {}
    if not stored:
        raise UsageError(
            f"--completions {directory}: not a generate artifact with examination completions; `understudy show` prints one"
        )
    if sampling not in stored:
        present = ", ".join(map(str, stored))
        raise UsageError(
            f"--completions {directory}: contains completions at {present}, not at {sampling}; set --temperature and the filters"
        )


def probe(
    pair: NamedPair,
    completions: Path,
    sampling: Sampling,
    settings: EvaluateConfig,
    cost_ratio: float | None,
    count: int,
    progress: Progress,
) -> Probe:
    """Every draft, and those without a model, on the same completions. `cost_ratio` None measures forward times here. Raises
    BrokenDraft if no draft with a model could be examined."""
    stored = {item.id: item.text_id for item in read_completions(completions, {"examination"}, sampling)}
    ids = sorted(stored.keys() - pair.trained_on.among(stored))
    if not ids:
        raise UsageError("a draft was trained on every one of these prompts; use other prompts")
    chosen = frozenset(ids[:count])  # ids are digests: a random choice that does not depend on the store's order
    shared = shared_conversations(item.conversation for item in _chosen(completions, sampling, chosen, pair.vocabulary))
    examiner = Examiner(sampling, settings)
    without_model: dict[str, LoadedDraft] = {
        LOOKUP.name: PromptLookup(settings.lookup_ngram),
        SUFFIX.name: SuffixMatching(SuffixSettings()),
    }
    named: dict[str, LoadedDraft] = {**pair.drafts, **without_model}

    def work(batch_tokens: int) -> tuple[dict[str, AcceptanceTally], dict[str, str]]:
        tallies, broken = {name: AcceptanceTally(settings.max_gamma, shared) for name in named}, dict[str, str]()
        with progress.track("examine", len(chosen), "completions") as track:
            stored_completions = _chosen(completions, sampling, chosen, pair.vocabulary)
            for window in examiner.in_batches(batch_tokens).counts_of_all(named, stored_completions, track.advance):
                for name, counts in window.items():
                    if isinstance(counts, BrokenDraft):
                        broken[name] = str(counts)
                    else:
                        tallies[name].add(counts)
        return tallies, broken

    tallies, broken = SmallerBatches("examine: tokens of a batch", settings.batch_tokens, progress.warn).run(work)
    copied = {name: tallies.pop(name) for name in without_model}
    whole = {name: tally for name, tally in tallies.items() if name not in broken}
    if not whole:
        raise BrokenDraft("; ".join(f"--draft {name}: {reason}" for name, reason in broken.items()))
    times = _times_by_draft(pair, whole, cost_ratio, least_turns(settings.confidence))
    findings = [
        _finding(name, tally, times[name], _operations_ratio(pair, name), settings) for name, tally in whole.items()
    ]
    # A search in the text costs nothing compared with a forward pass.
    free = [ForwardTimes(turn.target, 0.0) for turn in next(iter(times.values()))]
    findings += [_finding(name, tally, free, 0.0, settings) for name, tally in copied.items()]
    device = timed_on(input_device(pair.target), passes_of(_models(pair), pair.vocabulary))
    unequal = cost_ratio is None and passes_differ(pair.target, _models(pair)[1:], pair.vocabulary)
    return Probe(findings, broken, len(ids), len(chosen), len(stored) - len(ids), unequal, device)


def _models(pair: NamedPair) -> list[Any]:
    return [pair.target, *(model for draft in pair.drafts.values() for model in draft.models)]


def _chosen(directory: Path, sampling: Sampling, chosen: frozenset[str], vocabulary: int) -> Iterator[StoredCompletion]:
    for item in read_completions(directory, {"examination"}, sampling):
        if item.id in chosen:
            if max(int(item.prompt.max(initial=0)), int(item.tokens.max(initial=0))) >= vocabulary:
                raise UsageError(
                    f"--completions {directory}: holds tokens that this pair does not have; give completions of this target"
                )
            yield item


def _times_by_draft(
    pair: NamedPair, names: Iterable[str], cost_ratio: float | None, turns: int
) -> dict[str, list[ForwardTimes]]:
    """Measured once for drafts of equal shape, which differ by their acceptance alone."""
    times, by_shape = dict[str, list[ForwardTimes]](), dict[str, list[ForwardTimes]]()
    for name in names:
        shape = pair.shapes.get(name, name)
        if shape not in by_shape:
            by_shape[shape] = _times(pair, pair.drafts[name].models[0], cost_ratio, turns)
        times[name] = by_shape[shape]
    return times


def _times(pair: NamedPair, draft: Any, cost_ratio: float | None, turns: int) -> list[ForwardTimes]:
    """Forward times in each turn; a ratio that is given has no error."""
    if cost_ratio is not None:
        return [from_cost_ratio(cost_ratio, max(_GAMMAS))] * turns
    context = min(128, pair.context - max(_GAMMAS) - 1)
    widths = [gamma + 1 for gamma in _GAMMAS]

    def turn(passes: int) -> ForwardTimes:
        return measure_times(pair.target, draft, pair.vocabulary, widths, context=context, repeats=passes)

    first = turn(_PASSES)
    passes = min(_MOST_PASSES, int(_TURN_SECONDS / (sum(first.target.values()) + first.draft)))
    if passes <= _PASSES:
        return [first, *(turn(_PASSES) for _ in range(turns - 1))]
    return [turn(passes) for _ in range(turns)]


def _operations_ratio(pair: NamedPair, name: str) -> float | None:
    """Operations per token of a draft over those of the target; None for unknown architectures."""
    model, target = pair.drafts[name].models[0], macs_per_token(pair.target.config.to_dict())
    draft = model.macs_per_token if hasattr(model, "macs_per_token") else macs_per_token(model.config.to_dict())
    return draft / target if draft and target else None


def _finding(
    name: str, tally: AcceptanceTally, turns: list[ForwardTimes], ratio: float | None, settings: EvaluateConfig
) -> Finding:
    figures, confidence = tally.figures(settings.confidence), settings.confidence
    per_round = {gamma: _per_round(figures, gamma) for gamma in _GAMMAS if gamma <= settings.max_gamma}
    plain = [turn.target[1] for turn in turns]
    rounds = {gamma: [turn.round(gamma) for turn in turns] for gamma in per_round}
    best = speed_at_best_length(plain, rounds, per_round, confidence)
    gamma, measured = best.gamma, best.speedup
    speedup = None
    if measured is not None:
        speedup = replace(per_round[gamma], value=measured.median, low=measured.low, high=measured.high)
    costs = {
        gamma: of_turns([own_seconds / other for own_seconds, other in zip(seconds, plain, strict=True)], confidence)
        for gamma, seconds in rounds.items()
    }
    has_break_even = speedup is not None and figures.by_output_position is not None
    low = {gamma: cost.median if cost.low is None else cost.low for gamma, cost in costs.items()}
    pays = _pays(speedup)
    return Finding(
        name=name,
        figures=figures,
        domains=tally.domains(gamma, confidence),
        cost_ratio=median(turn.cost_ratio for turn in turns),
        gamma=gamma,
        speedup=speedup,
        not_measurable=best.not_measurable,
        break_even=break_even({gamma: cost.median for gamma, cost in costs.items()}) if has_break_even else None,
        least_break_even=break_even(low) if has_break_even else None,
        verdict=f"{name}: {_verdict(pays, gamma, per_round[gamma], speedup, best.not_measurable)}",
        pays=pays,
        arithmetic=None if ratio is None else operations_factor(per_round[gamma].value, gamma, ratio),
    )


def _per_round(figures: Figures, gamma: int) -> Figure:
    """The decode time is the number of rounds times the time of one. A convention may count the prefill as a call, which plain
    decoding needs too; a round yields 1 + accepted / rounds tokens under every convention, with the relative error of those per
    target call."""
    omega, value = figures.tokens_per_target_call[gamma], figures.mean_acceptance_length[gamma]
    low, high = (None if bound is None else value * bound / omega.value for bound in (omega.low, omega.high))
    return replace(omega, value=value, low=low, high=high)


def _pays(speedup: Figure | None) -> bool | None:
    if speedup is None or speedup.units < _LEAST_PROMPTS or speedup.low is None or speedup.high is None:
        return None
    return True if speedup.low > 1 else False if speedup.high < 1 else None


def _verdict(
    pays: bool | None, gamma: int, per_round: Figure, speedup: Figure | None, not_measurable: str | None
) -> str:
    if per_round.units < _LEAST_PROMPTS:
        count = counted(per_round.prompts, per_round.conversations)
        return (
            f"{count} are too few for a verdict; give at least {units_needed(_LEAST_PROMPTS, per_round.conversations)}"
        )
    if speedup is None:
        return f"speedup not measurable: {not_measurable} Call it again on an idle machine"
    if speedup.low is None or speedup.high is None:
        return (
            "no interval: a few prompts have most of the tokens; give more prompts with completions of similar length"
        )
    predicted = f"the predicted speedup, an upper bound, is {speedup.value:.2f} [{speedup.low:.2f}, {speedup.high:.2f}]"
    if pays:
        return f"may be faster than plain decoding: {predicted} with {gamma} draft token{'s' if gamma > 1 else ''} per round"
    if pays is False:
        return f"is not faster than plain decoding: {predicted} at its best draft length ({gamma})"
    return f"inconclusive: {predicted}, and its interval includes 1; use more prompts or an idle machine"
