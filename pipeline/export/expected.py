"""What the engine's counters should show: the exported weights, examined on the run's stored completions as the engine counts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.acceptance.intervals import ratio_gain
from pipeline.acceptance.profile import PromptCounts, count_completions
from pipeline.acceptance.rounds import Convention, Floats
from pipeline.acceptance.schema import SamplingSettings
from pipeline.config.evaluate import Drafting, EvaluateConfig
from pipeline.engines.facts import EngineFacts
from pipeline.errors import UnderstudyError
from pipeline.examination.examiner import Examiner, draft_independent
from pipeline.export.schema import CounterFigures, ExpectedCounters, ServedFigures
from pipeline.export.subject import Subject
from pipeline.generation.completion_store import StoredCompletion, canonical, read_completions
from pipeline.models.loading import choose_device, load_model
from pipeline.progress import Progress
from pipeline.speculation.settings import GREEDY, Sampling

_MOST_DIFFERENCE = 0.01  # of the acceptance rate: rounding on another machine changes less


def expected_counters(
    subject: Subject, weights: Path, facts: EngineFacts, drafting: Drafting, gammas: Sequence[int], progress: Progress
) -> ExpectedCounters:
    """`gammas`: draft lengths, the longest last.

    Raises UnderstudyError if the weights do not have the acceptance rate of the stored examination.
    """
    config = subject.config
    settings, note = _as_the_engine(config.evaluate, facts, drafting, gammas[-1], config.generate.lookahead)
    device = choose_device(config.device)
    model = load_model(weights, config.pair.draft.dtype, device, config.pair.trust_remote_code)
    deployed = canonical(Sampling.from_config(config.sampling))

    def examined(sampling: Sampling) -> ServedFigures | None:
        stored = list(read_completions(subject.completions, {"examination"}, sampling))
        if not stored:
            return None
        return examine_as_served(model, stored, sampling, settings, subject.pair.vocabulary, gammas, progress)

    found = examined(deployed)
    if found is None:
        raise UnderstudyError(
            f"{subject.completions}: no examination completions at the deployment's sampling settings"
        )
    _check_unchanged(subject, found, drafting)
    return ExpectedCounters(
        convention=settings.convention,
        sampling=SamplingSettings.of(config.sampling),
        draft_sampling=drafting,
        gamma=gammas[-1],
        notes=note,
        deployed=found,
        temperature_0=None if deployed.greedy else examined(GREEDY),
    )


def examine_as_served(
    model: Any,
    completions: Sequence[StoredCompletion],
    sampling: Sampling,
    settings: EvaluateConfig,
    vocabulary: int,
    gammas: Sequence[int],
    progress: Progress,
) -> ServedFigures:
    """Figures by draft length, of completions generated at `sampling`."""
    examiner = Examiner(sampling, settings, vocabulary)
    counts: dict[int, list[PromptCounts]] = {gamma: [] for gamma in gammas}

    def add(window: Sequence[StoredCompletion], a: Sequence[Floats]) -> None:
        facts = draft_independent(window)
        for gamma in gammas:
            counts[gamma] += count_completions(facts, a, gamma, examiner.counting)

    with progress.track("export: examine", len(completions), "completions") as track:
        for _ in examiner.counts(model, completions, track.advance, add):
            pass
    longest = counts[gammas[-1]]
    return ServedFigures(
        len(longest),
        sum(item.tokens for item in longest),
        sum(item.accepted for item in longest) / sum(item.examined for item in longest),
        {gamma: counter_figures(rows, gamma, examiner.counting, settings.confidence) for gamma, rows in counts.items()},
    )


def counter_figures(
    counts: Sequence[PromptCounts], gamma: int, convention: Convention, confidence: float
) -> CounterFigures:
    """Counts over all prompts at draft length `gamma`, and the ratios that a dashboard shows. `counts` reach up to `gamma`."""
    rounds_N = np.array([item.rounds[gamma - 1] for item in counts])
    accepted_N = np.array([item.accepted_drafts[gamma - 1] for item in counts])
    positions_G = np.sum([item.per_position for item in counts], axis=0)
    drafts, accepted = float(rounds_N.sum()), float(accepted_N.sum())
    if not drafts:
        raise UnderstudyError(
            "every stored completion has one token, so no draft is counted; raise generate.max_new_tokens"
        )
    nothing_N = np.zeros_like(rounds_N)
    length = ratio_gain(accepted_N, rounds_N, nothing_N, rounds_N, [item.domain for item in counts], confidence)
    above = replace(length, value=1 + length.value, low=1 + length.low, high=1 + length.high)
    draft_tokens = None if convention.clipped else gamma * drafts  # not clipped: every draft has gamma tokens
    return CounterFigures(
        drafts=drafts,
        accepted=accepted,
        accepted_per_position=(positions_G / drafts).tolist(),
        mean_acceptance_length=above.figure,
        draft_tokens=draft_tokens,
        draft_acceptance_rate=None if draft_tokens is None else accepted / draft_tokens,
    )


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


def _check_unchanged(subject: Subject, found: ServedFigures, drafting: Drafting) -> None:
    """The weights as exported must be those that were promoted."""
    profile, config = subject.profile, subject.config
    alike = config.sampling.top_k == 0 and config.sampling.top_p == 1 and config.sampling.min_p == 0
    if alike and (drafting == config.evaluate.draft_sampling or config.sampling.temperature == 0):
        before, now = profile.examined[0].acceptance_rate.value, found.acceptance_rate
        if abs(now - before) > _MOST_DIFFERENCE:
            raise UnderstudyError(
                f"{subject.label}: the exported weights have the acceptance rate {now:.4f}, and {before:.4f} was examined; "
                "the files were changed, or this machine computes otherwise; examine the draft again (`understudy run`)"
            )
