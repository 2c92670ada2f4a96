"""What the engine's counters should show: the exported weights, examined on the run's stored completions as the engine counts."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.acceptance.intervals import Interval, ratio_gain
from pipeline.acceptance.prediction import prediction_interval
from pipeline.acceptance.profile import LengthCounts, count_at_length
from pipeline.acceptance.rounds import Acceptance, Convention
from pipeline.acceptance.schema import SamplingSettings
from pipeline.config.evaluate import Drafting, EvaluateConfig
from pipeline.drafts.loading import load_draft
from pipeline.engines.facts import EngineFacts
from pipeline.errors import UnderstudyError
from pipeline.examination.examiner import Examiner, OnDone, draft_independent
from pipeline.export.schema import CounterFigures, ExpectedCounters, ServedFigures
from pipeline.generation.completion_store import StoredCompletion, canonical, read_completions, stored_samplings
from pipeline.models.devices import choose_device
from pipeline.models.loading import load_model
from pipeline.progress import Progress
from pipeline.registry.named import Draft
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import GREEDY, Sampling

FRESH_PROMPTS = (100, 1_000, 10_000)  # that prediction intervals are given for
_MOST_DIFFERENCE = 0.01  # of the acceptance rate: rounding on another machine changes less


def expected_counters(
    draft: Draft, weights: Path, facts: EngineFacts, drafting: Drafting, served: Sequence[int], progress: Progress
) -> ExpectedCounters:
    """Counters at the draft lengths `served`, ascending, and at every other that the run examines.

    Raises UnderstudyError if the weights do not have the acceptance rate of the stored examination.
    """
    config = draft.config
    device, trusted = choose_device(config.device), config.pair.trust_remote_code

    def target() -> Any:
        pair, map_ = draft.pair, config.pair.target.device_map
        return load_model(pair.path("target"), pair.dtype("target"), device, trusted, map_)

    loaded = load_draft(draft.pair, weights, config.pair.draft.dtype, device, trusted, target, draft.given)
    most = config.evaluate.max_gamma if loaded.longest is None else min(config.evaluate.max_gamma, loaded.longest)
    gammas = examined_lengths(most, config.generate.lookahead, facts, served)
    settings, note = _as_the_engine(config.evaluate, facts, drafting, gammas[-1], config.generate.lookahead)
    deployed = canonical(Sampling.from_config(config.sampling))
    counted = stored_samplings(draft.completions, {"examination"})

    def examined(sampling: Sampling, by: EvaluateConfig = settings, at: Sequence[int] = gammas) -> ServedFigures | None:
        if sampling not in counted:
            return None
        stored = read_completions(draft.completions, {"examination"}, sampling)
        with progress.track("export: examine", counted[sampling], "completions") as track:
            own = None if by is config.evaluate else _drafts_as(draft, facts)
            return examine_as_served(loaded, stored, sampling, by, at, track.advance, own)

    figures = examined(deployed)
    if figures is None:
        raise UnderstudyError(
            f"{draft.completions}: no examination completions at the deployment's sampling settings; run the config again"
        )
    # A head's rate is over the tokens that it drafts, which depend on length and convention.
    again = figures if draft.kind.by_token else examined(deployed, config.evaluate, [config.evaluate.gamma])
    assert again is not None
    if not draft.given:
        _check_unchanged(draft, again, drafting)
    fixed = deployed.greedy or draft.kind.greedy
    other = None if fixed else _other_drafting(drafting, facts)
    return ExpectedCounters(
        convention=settings.convention,
        sampling=SamplingSettings.of(config.sampling),
        draft_sampling=drafting,
        gamma=served[-1],
        confidence=settings.confidence,
        notes=note,
        deployed=figures,
        temperature_0=None if deployed.greedy else examined(GREEDY),
        other_drafting=None
        if other is None
        else examined(deployed, settings.model_copy(update={"draft_sampling": other})),
    )


def _drafts_as(draft: Draft, facts: EngineFacts) -> str:
    """The convention of an engine that samples the draft as this one does: at the temperature alone where it can sample heads."""
    head = facts.heads.get(draft.kind.name)
    return "vllm" if head is not None and head.samples else facts.convention


def _other_drafting(drafting: Drafting, facts: EngineFacts) -> Drafting | None:
    """The way of drafting that the engine would have with another setting; None where there is no setting."""
    other: Drafting = "greedy" if drafting == "probabilistic" else "probabilistic"
    return other if other in facts.drafting and not facts.drafts_as_sampled else None


def examined_lengths(max_gamma: int, lookahead: int, facts: EngineFacts, served: Sequence[int]) -> list[int]:
    """The draft lengths that counters are computed for, ascending: up to `max_gamma`, or as far as the stored tokens past the end
    of a completion go where the engine counts these; and those that are served, in any case."""
    most = min(max_gamma, lookahead + 1) if facts.convention == "vllm" else max_gamma
    return list(range(1, max(most, served[-1]) + 1))


def examine_as_served(
    draft: LoadedDraft,
    completions: Iterable[StoredCompletion],
    sampling: Sampling,
    settings: EvaluateConfig,
    gammas: Sequence[int],
    on_done: OnDone,
    drafts_as: str | None = None,
) -> ServedFigures:
    """Figures by draft length, of completions generated at `sampling`. `drafts_as`: the convention by which the draft is sampled,
    where it is not that of the counts."""
    examiner = Examiner(sampling, settings, drafts_as=drafts_as)
    counts: dict[int, LengthCounts] = {}
    prompts, tokens, accepted, examined = 0, 0, 0.0, 0.0

    def add(window: Sequence[StoredCompletion], acceptance: Sequence[Acceptance]) -> None:
        facts = draft_independent(window)
        for gamma in gammas:
            added = count_at_length(facts, acceptance, gamma, examiner.counting)
            counts[gamma] = counts[gamma] + added if gamma in counts else added

    for item in chain.from_iterable(examiner.counts(draft, completions, on_done, add)):
        prompts, tokens = prompts + 1, tokens + item.tokens
        accepted, examined = accepted + item.accepted, examined + item.examined
    return ServedFigures(
        prompts,
        tokens,
        accepted / examined,
        {gamma: counter_figures(rows, gamma, examiner.counting, settings.confidence) for gamma, rows in counts.items()},
    )


def counter_figures(counts: LengthCounts, gamma: int, convention: Convention, confidence: float) -> CounterFigures:
    """Counts over all prompts at draft length `gamma`, and the ratios that a dashboard shows."""
    rounds_N, accepted_N = counts.rounds_N, counts.accepted_N
    drafts, accepted = float(rounds_N.sum()), float(accepted_N.sum())
    if not drafts:
        raise UnderstudyError(
            "every stored completion has one token, so no draft is counted; raise generate.max_new_tokens"
        )
    length = _one_more(counts, counts.domains, confidence)
    mixed = _one_more(counts, ["all"] * len(rounds_N), confidence)
    # Accepted tokens and rounds add up to the emitted tokens, so a round more is an accepted token less.
    decode_variance = float((length.value / drafts) ** 2 * counts.rounds_variance_N.sum())
    draft_tokens = None if convention.clipped else gamma * drafts  # not clipped: every draft has gamma tokens
    return CounterFigures(
        drafts=drafts,
        accepted=accepted,
        accepted_per_position=(counts.positions_G / drafts).tolist(),
        mean_acceptance_length=length.figure,
        fresh_prompts={
            prompts: prediction_interval(mixed, decode_variance, prompts, confidence) for prompts in FRESH_PROMPTS
        },
        draft_tokens=draft_tokens,
        draft_acceptance_rate=None if draft_tokens is None else accepted / draft_tokens,
        design_effect=design_effect(counts),
    )


def design_effect(counts: LengthCounts) -> float:
    """How much more the accepted tokens of conversations vary than those of as many independent drafts; 1 where they do not.

    Residuals of the ratio accepted / drafts, by conversation, over the variance of the accepted tokens of one draft, whose mean
    square is sum_j (2 j - 1) P(at least j). What one decode adds to the expectation is in the residuals: a round more is an
    accepted token less.
    """
    drafts = float(counts.rounds_N.sum())
    mean = float(counts.accepted_N.sum()) / drafts
    places = np.arange(1, len(counts.positions_G) + 1)
    of_one = float(((2 * places - 1) * counts.positions_G).sum()) / drafts - mean**2
    residual_N = counts.accepted_N - mean * counts.rounds_N
    _, conversation_N = np.unique(np.array(counts.conversations), return_inverse=True)
    between = float((np.bincount(conversation_N, residual_N) ** 2).sum())
    decode = float((1 + mean) ** 2 * counts.rounds_variance_N.sum())
    return max(1.0, (between + decode) / (drafts * of_one)) if of_one > 0 else 1.0


def _one_more(counts: LengthCounts, strata: Sequence[str], confidence: float) -> Interval:
    """1 + accepted / rounds."""
    accepted_N, rounds_N = counts.accepted_N, counts.rounds_N
    none_N = np.zeros_like(rounds_N)
    gain = ratio_gain(accepted_N, rounds_N, none_N, rounds_N, strata, confidence, counts.conversations)
    return replace(gain, value=1 + gain.value, low=1 + gain.low, high=1 + gain.high)


def _as_the_engine(
    settings: EvaluateConfig, facts: EngineFacts, drafting: Drafting, gamma: int, lookahead: int
) -> tuple[EvaluateConfig, list[str]]:
    """The examination's settings with the engine's convention and its way of drafting, and what is not exact about it."""
    notes = []
    convention = facts.convention
    if not facts.proven:
        notes.append(
            f"No test compares counters of {facts.title} with the examination: take the ratios, not the counts."
        )
    elif convention == "user":
        notes.append(
            f"{facts.title} counts rounds at the end of a completion in its own way (docs/engines.md): take the ratios, not the "
            "counts."
        )
    if convention == "vllm" and lookahead < gamma - 1:
        convention = "user"
        notes.append(
            f"generate.lookahead is {lookahead}: drafts past the end of a completion are not counted here, but vLLM counts them."
        )
    changes = {"convention": convention, "draft_sampling": drafting, "gamma": gamma, "max_gamma": gamma}
    return EvaluateConfig.model_validate(settings.model_dump() | changes), notes


def _check_unchanged(draft: Draft, figures: ServedFigures, drafting: Drafting) -> None:
    """The weights as exported must be those that were promoted."""
    profile, config = draft.profile, draft.config
    wanted = "greedy" if draft.kind.greedy else config.evaluate.draft_sampling
    alike = config.sampling.top_k == 0 and config.sampling.top_p == 1 and config.sampling.min_p == 0
    if alike and (drafting == wanted or config.sampling.temperature == 0):
        before, now = profile.examined[0].acceptance_rate.value, figures.acceptance_rate
        if abs(now - before) > _MOST_DIFFERENCE:
            raise UnderstudyError(
                f"{draft.label}: the exported weights have the acceptance rate {now:.4f}, and {before:.4f} was examined; "
                "the files were changed, or this machine computes otherwise; examine the draft again (`understudy run`)"
            )
