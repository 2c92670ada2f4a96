"""gate: applies the promotion rules. Chooses the variant of the candidate with the lowest predicted latency at the stated load,
and compares it with the champion, or with the base draft where there is no champion."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.profile_file import Examination, read_examination
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.acceptance.schema import SamplingSettings, read_profile
from pipeline.config.quantize import Variant
from pipeline.judgement.benefit import benefit_at_load, benefit_of_forward_times
from pipeline.judgement.choice import CHOSEN, Contender, choose, not_made
from pipeline.judgement.comparison import draft_figures, paired_gains
from pipeline.judgement.decision import already_champion, judge, without_prompts
from pipeline.judgement.decision_file import read_training, write_decision
from pipeline.judgement.policy import Case, apply_rules
from pipeline.judgement.schema import (
    BASELINE,
    CANDIDATE,
    LOOKUP,
    REFUSE,
    ChampionVersion,
    Decision,
    ModelSource,
    Provenance,
    Side,
    Standing,
    TargetSource,
    brief,
)
from pipeline.latency.costs.step_costs import StepCosts, read_step_costs
from pipeline.latency.load.prediction import chosen_lengths, predict
from pipeline.latency.load.schedule import DraftOption, make_schedule
from pipeline.latency.load.serving import latency_at_load, point_at_load
from pipeline.latency.load.workload import Workload, examined_workload, read_workload
from pipeline.models.draft_directory import find_draft, trained_on
from pipeline.models.stored_pair import read_pair
from pipeline.registry.run_content import decision_figures
from pipeline.running.context import Outcome, StageContext
from pipeline.running.pair_checks import left_out_variants
from pipeline.running.settings import GateSettings
from pipeline.running.tasks import UNQUANTIZED, draft_input, examination_input, profile_input
from pipeline.store.artifacts import age_in_days, read_manifest
from pipeline.store.files import write_json


def run(context: StageContext[GateSettings]) -> Outcome:
    """Choose the variant, apply the rules to it and write `decision.json`.

    Inputs: the acceptance profiles of the candidate, of the champion or base draft, and of prompt-lookup; the step times for
    `gate.load`; completions, for the examples of the review page, which the run renders with its own config.
    """
    settings, digests = context.settings, context.digests
    results = choose(_contenders(context))
    chosen = next(result.name for result in results if result.verdict == CHOSEN)
    has_champion = "champion" in context.inputs
    directories = _examined(context, chosen, has_champion)
    examinations = {side: read_examination(directory) for side, directory in directories.items()}
    whole = _case(examinations, has_champion)
    case = _with_latency(context, chosen, without_prompts(whole, _seen(context, chosen, has_champion)))
    case = replace(case, target=_target(context), examination_days=age_in_days(context.inputs["completions"]))
    champion, candidate = context.facts["champion"], digests[draft_input(chosen)]
    if candidate == digests.get("champion"):
        judgement = already_champion()
    else:
        judgement = judge(apply_rules(case, settings.rules, settings.gamma, settings.confidence))
    decision = Decision(
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        rules=judgement.rules,
        candidate=candidate,
        variant=chosen,
        variants=[*results, *_left_out(context)],
        baseline="champion" if has_champion else "base",
        champion=ChampionVersion(champion["name"], str(champion["version"])) if champion else None,
        gamma=settings.gamma,
        confidence=settings.confidence,
        dropped_prompts=len(whole.candidate) - len(case.candidate),
        **_evidence(context, examinations, case),
    )
    write_json(context.out / "examples.json", _examples(context, directories, examinations, case))
    write_decision(context.out, decision)
    return Outcome(
        decision_figures(decision),
        notes={"verdict": decision.verdict, "reasons": decision.reasons},
        refused="refused: " + "; ".join(decision.reasons) if decision.verdict == REFUSE else "",
        decision=brief(decision),
    )


def _contenders(context: StageContext[GateSettings]) -> list[Contender]:
    """All variants of the candidate. One that can be chosen has a draft among the inputs, and step times if there is a load."""
    found = []
    for variant in (UNQUANTIZED, *context.settings.variants):
        acceptance, timed = _acceptance(context, variant), _timed(context, variant)
        seconds = _seconds(context, variant) if timed and acceptance is not None else None
        found.append(Contender(name=variant, acceptance=acceptance, timed=timed, seconds=seconds))
    return found


def _left_out(context: StageContext[GateSettings]) -> list[Standing]:
    """The default variants that the draft cannot have."""
    facts = read_pair(context.inputs["pair"], context.resources.models).facts
    return [not_made(variant, reason) for variant, reason in left_out_variants(facts).items()]


def _timed(context: StageContext[GateSettings], variant: Variant) -> bool:
    return context.settings.rules.load is not None and profile_input(variant) in context.inputs


def _acceptance(context: StageContext[GateSettings], variant: Variant) -> float | None:
    found = read_profile(context.inputs[examination_input(variant)]).headline
    return None if found is None else found.acceptance_rate.value


def _seconds(context: StageContext[GateSettings], variant: Variant) -> float | None:
    """Predicted mean request latency on dev prompts. With a single contender nothing was examined on dev."""
    examined = context.inputs.get(examination_input(variant, "dev"))
    if examined is None:
        return None
    found = point_at_load(*_serving(context, variant, read_workload(examined))).speculative
    return found.mean if found else None


def _serving(
    context: StageContext[GateSettings], variant: Variant, workload: Workload
) -> tuple[Workload, StepCosts, float, int, int]:
    """The arguments of `point_at_load` and `latency_at_load`: workload, step costs, request rate, batch cap, draft length."""
    load, step_costs = context.settings.rules.load, read_step_costs(context.inputs[profile_input(variant)])
    assert load is not None  # callers have checked
    gamma = context.settings.gamma
    return workload.up_to(step_costs.max_gamma), step_costs, load.requests_per_second, load.max_batch, gamma


def _examined(context: StageContext[GateSettings], chosen: Variant, has_champion: bool) -> dict[Side, Path]:
    """The directory of the examination by side: candidate, baseline (champion, or base draft), prompt_lookup."""
    names: dict[Side, str] = {
        CANDIDATE: examination_input(chosen),
        BASELINE: "examination_champion" if has_champion else "examination_base",
        LOOKUP: "examination_lookup",
    }
    return {side: context.inputs[name] for side, name in names.items()}


def _case(examinations: Mapping[Side, Examination], has_champion: bool) -> Case:
    profile = examinations[CANDIDATE].profile
    return Case(
        candidate=examinations[CANDIDATE].counts,
        baseline=examinations[BASELINE].counts,
        baseline_name="champion" if has_champion else "base draft",
        prompt_lookup=examinations[LOOKUP].counts,
        draft_bytes=profile.draft.bytes,
        crosscheck_agrees=None if profile.crosscheck is None else profile.crosscheck.agrees,
    )


def _seen(context: StageContext[GateSettings], chosen: Variant, has_champion: bool) -> Collection[str]:
    """Prompts that candidate or champion was trained on."""
    drafts = [draft_input(chosen), *(["champion"] if has_champion else [])]
    return frozenset().union(
        *(trained_on(find_draft(context.inputs[name], context.resources.models)) for name in drafts)
    )


def _evidence(
    context: StageContext[GateSettings], examinations: Mapping[Side, Examination], case: Case
) -> dict[str, Any]:
    """The figures of the decision, what they buy, and where they come from."""
    settings = context.settings
    counts: dict[Side, Sequence[PromptCounts]] = {
        CANDIDATE: case.candidate,
        BASELINE: case.baseline,
        LOOKUP: case.prompt_lookup or (),
    }
    if context.digests.get("champion") == examinations[CANDIDATE].profile.draft.digest:
        del counts[BASELINE]  # the candidate itself
    present = {side: found for side, found in counts.items() if found}
    drafts = {
        side: draft_figures(examinations[side], found, settings.gamma, settings.confidence)
        for side, found in present.items()
    }
    both = CANDIDATE in present and BASELINE in present
    times = {side: examination.profile.forward_times for side, examination in examinations.items()}
    return {
        "drafts": drafts,
        "gains": paired_gains(present[CANDIDATE], present[BASELINE], settings.confidence) if both else None,
        "benefit": case.benefit or benefit_of_forward_times(times, drafts, settings.gamma),
        "training": read_training(context.inputs["distilled"] / "training.json"),
        "provenance": _provenance(context),
    }


def _target(context: StageContext[GateSettings]) -> TargetSource:
    facts = read_pair(context.inputs["pair"], context.resources.models).facts["target"]
    return TargetSource(facts["source"], facts["revision"], facts["digest"], facts["dtype"])


def _provenance(context: StageContext[GateSettings]) -> Provenance:
    base = read_pair(context.inputs["pair"], context.resources.models).facts["draft"]
    completions = read_manifest(context.inputs["completions"])
    return Provenance(
        target=_target(context),
        base_draft=ModelSource(base["source"], base["revision"], base["digest"]),
        completions=completions["key"],
        completions_made_at=completions["created"],
        corpus=completions["inputs"]["corpus"],
        sampling=SamplingSettings.of(context.settings.sampling),
        seed=context.settings.seed,
        environment=completions["environment"],
    )


def _examples(
    context: StageContext[GateSettings],
    directories: Mapping[Side, Path],
    examinations: Mapping[Side, Examination],
    case: Case,
) -> dict[str, Any]:
    """Completions with the outcome of each token, for the page."""
    if not case.candidate or context.digests.get("champion") == examinations[CANDIDATE].profile.draft.digest:
        return {"examples": []}  # nothing was decided, and a repeated run loads no torch
    from pipeline.examination.examples import choose_examples, make_examples
    from pipeline.generation.completion_store import canonical, read_completions
    from pipeline.models.loading import load_tokenizer
    from pipeline.speculation.settings import Sampling

    settings, resources = context.settings, context.resources
    sides: dict[str, Path] = {side: directories[side] for side in (CANDIDATE, BASELINE)}
    sampling = canonical(Sampling.from_config(settings.sampling))
    return make_examples(
        choose_examples(case.candidate, case.baseline, settings.rules.examples),
        read_completions(context.inputs["completions"], {"examination"}, sampling),
        sides,
        load_tokenizer(read_pair(context.inputs["pair"], resources.models).tokenizer, resources.trust_remote_code),
        settings.gamma,
        CONVENTIONS[settings.convention],
    )


def _with_latency(context: StageContext[GateSettings], chosen: Variant, case: Case) -> Case:
    """The case with the predicted latency at the stated load, where one is stated."""
    settings, load = context.settings, context.settings.rules.load
    if load is None or not case.candidate:
        return case
    served = benefit = None
    if _timed(context, chosen):
        convention = CONVENTIONS[settings.convention]
        workload = examined_workload(case.candidate, convention, settings.max_gamma)
        arguments = _serving(context, chosen, workload)
        served = latency_at_load(*arguments, confidence=settings.confidence, quantiles=settings.rules.quantiles)
        benefit = benefit_at_load(*arguments, settings.rules.quantiles)
        if arguments[1].plain:
            _plot(context, chosen, *arguments)
    pair = read_pair(context.inputs["pair"], context.resources.models)
    draft = float("nan") if case.draft_bytes is None else case.draft_bytes
    return replace(
        case, served=served, benefit=benefit, serving_bytes=pair.serving_bytes(draft, *settings.rules.served)
    )


def _plot(
    context: StageContext[GateSettings],
    chosen: Variant,
    workload: Workload,
    step_costs: StepCosts,
    _: float,
    cap: int,
    gamma: int,
) -> None:
    """Figures of the variant at other loads and draft lengths, for people who review the decision."""
    from pipeline.report.latency_predict import plot_prediction
    from pipeline.report.latency_schedule import plot_schedule

    steps_GN = step_costs.steps(cap, round(workload.context), workload.max_gamma)
    found = predict(workload, step_costs, chosen_lengths(workload, step_costs, cap, gamma), [])
    plot_prediction(found, context.settings.rules.quantiles, context.out / "latency.png")
    plot_schedule(make_schedule([DraftOption(chosen, workload.rounds_G, steps_GN)]), context.out / "draft_lengths.png")
