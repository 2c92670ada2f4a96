"""gate: applies the promotion rules. Chooses the variant of the candidate with the lowest predicted latency at the stated load,
and compares it with the champion, or with the base draft where there is no champion."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.acceptance.profile_file import read_examination
from pipeline.acceptance.schema import read_profile
from pipeline.acceptance.step_times import StepTimes, find_step_times
from pipeline.config.quantize import UNQUANTIZED, Variant
from pipeline.config.tasks import CHAMPION_PROFILE, draft_input, examination_input, profile_input
from pipeline.distillation.learning_curve import find_curve
from pipeline.drafts.directory import seen_prompts
from pipeline.judgement.at_load import StatedLoad
from pipeline.judgement.benefit import with_load
from pipeline.judgement.choice import Contender, choose, chosen, contender, not_made
from pipeline.judgement.decision_file import read_training, write_decision
from pipeline.judgement.evidence import Sides, case_of, compare, gather, provenance, round_ratio, target_source
from pipeline.judgement.new_vocabulary import read_new_vocabulary
from pipeline.judgement.policy import Case
from pipeline.judgement.schema import BASELINE, CANDIDATE, LOOKUP, REFUSE, Decision, Side, brief
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.latency.load.workload import read_workload
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.registry.run_content import decision_figures
from pipeline.running.context import Outcome, StageContext
from pipeline.running.pair_checks import left_out_variants
from pipeline.running.settings import GateSettings
from pipeline.speculation.settings import Sampling
from pipeline.store.artifacts import age_in_days, read_manifest
from pipeline.store.files import write_json


def run(context: StageContext[GateSettings]) -> Outcome:
    """Choose the variant, apply the rules to it and write `decision.json`.

    Inputs: the acceptance profiles of the candidate, of the champion or base draft, and of prompt-lookup; the step times for
    `gate.load`; completions, for the texts of their prompts and the examples of the review page, which the run renders with its
    own config.
    """
    settings, inputs, digests = context.settings, context.inputs, context.digests
    champion, deployed = settings.champion, Sampling.from_config(settings.sampling)
    pair = read_pair(inputs["pair"], context.resources.models)
    standings = choose([_contender(context, variant) for variant in (UNQUANTIZED, *settings.variants)])
    variant = chosen(standings)
    sides = _sides(context, variant)
    case = case_of(sides)
    if case is not None:
        case = _completed(context, variant, case, sides, pair)
    compared = compare(sides, case, settings.rules)
    del sides  # whose counts are of all prompts
    curve = find_curve(inputs["distilled"])
    evidence = gather(compared, None if curve is None else curve.next_doubling)
    decision = Decision(
        **vars(compared.judgement),
        **vars(evidence),
        candidate=digests[draft_input(variant)],
        variant=variant,
        variants=[*standings, *(not_made(name, why) for name, why in left_out_variants(pair.facts).items())],
        baseline="champion" if champion else "base",
        champion=champion,
        gamma=settings.gamma,
        confidence=settings.confidence,
        dropped_prompts=compared.dropped,
        training=read_training(inputs["distilled"] / "training.json"),
        new_vocabulary=read_new_vocabulary(
            pair,
            inputs["examination_base"],
            inputs[examination_input(variant)],
            inputs["completions"],
            deployed,
            context.resources.trust_remote_code,
        ),
        provenance=provenance(pair.facts, read_manifest(inputs["completions"]), settings.sampling, settings.seed),
    )
    shown = None if compared.is_champion else case
    write_json(context.out / "examples.json", _examples(context, variant, shown, pair))
    write_decision(context.out, decision)
    return Outcome(
        decision_figures(decision),
        notes={"verdict": decision.verdict, "reasons": decision.reasons},
        refused="refused: " + "; ".join(decision.reasons) if decision.verdict == REFUSE else "",
        decision=brief(decision),
    )


def _contender(context: StageContext[GateSettings], variant: Variant) -> Contender:
    """The contender with its examination and, at a stated load, its workload on dev prompts."""
    profile, load = read_profile(context.inputs[examination_input(variant)]), _load(context, profile_input(variant))
    on_dev = context.inputs.get(examination_input(variant, "dev"))
    is_predicted = load is not None and profile.headline is not None
    workload = read_workload(on_dev) if on_dev is not None and is_predicted else None
    return contender(variant, profile, load, workload, context.settings.gamma)


def _load(context: StageContext[GateSettings], profile: str) -> StatedLoad | None:
    """The load that `gate.load` states, with the step costs of an input; None without a load or without step costs."""
    path = context.inputs.get(profile)
    costs = None if path is None else read_step_costs(path)
    return StatedLoad.of(context.settings.rules, costs, context.settings.gamma)


def _sides(context: StageContext[GateSettings], variant: Variant) -> Sides:
    """The baseline is the champion, or the base draft where there is none."""
    settings = context.settings
    examinations = {side: read_examination(path) for side, path in _examinations(context, variant).items()}
    unquantized = examinations[CANDIDATE]
    if variant != UNQUANTIZED:
        unquantized = read_examination(context.inputs[examination_input(UNQUANTIZED)])
    is_champion = context.digests[draft_input(variant)] == context.digests.get("champion")
    return Sides(
        examinations=examinations,
        unquantized=unquantized,
        times=_step_times(context, is_champion=is_champion),
        seen=_seen(context, variant),
        baseline_name="champion" if settings.champion else "base draft",
        is_champion=is_champion,
        gamma=settings.gamma,
        max_gamma=settings.max_gamma,
        convention=settings.convention,
        confidence=settings.confidence,
    )


def _examinations(context: StageContext[GateSettings], variant: Variant) -> dict[Side, Path]:
    """The evaluate artifact of each side."""
    baseline = "examination_champion" if "champion" in context.inputs else "examination_base"
    names: dict[Side, str] = {
        CANDIDATE: examination_input(variant),
        BASELINE: baseline,
        LOOKUP: "examination_lookup",
    }
    return {side: context.inputs[name] for side, name in names.items()}


def _step_times(context: StageContext[GateSettings], *, is_champion: bool) -> dict[Side, StepTimes]:
    """The step times of the unquantized candidate, and of what it is compared with, where they were measured."""
    inputs: dict[Side, str] = {CANDIDATE: "speed"} if is_champion else {CANDIDATE: "speed", BASELINE: "speed_baseline"}
    by_side = {side: find_step_times(context.inputs[name]) for side, name in inputs.items() if name in context.inputs}
    return {side: times for side, times in by_side.items() if times is not None}


def _seen(context: StageContext[GateSettings], variant: Variant) -> frozenset[str]:
    """The examined prompts that the candidate or the champion was trained on."""
    from pipeline.generation.completion_files import text_ids

    trained = [context.inputs[name] for name in (draft_input(variant), "champion") if name in context.inputs]
    examined = text_ids(context.inputs["completions"], {"examination"})
    return seen_prompts(trained, context.resources.models).among(examined)


def _champion_modes(context: StageContext[GateSettings]) -> frozenset[str]:
    return seen_prompts([context.inputs["champion"]], context.resources.models).modes


def _examined_modes(context: StageContext[GateSettings]) -> frozenset[str]:
    from pipeline.generation.completion_files import modes

    return modes(context.inputs["completions"], {"examination"})


def _completed(context: StageContext[GateSettings], variant: Variant, case: Case, sides: Sides, pair: Pair) -> Case:
    """The case with what is known beside the counts."""
    settings, load = context.settings, _load(context, profile_input(variant))
    case = replace(case, target=target_source(pair.facts), examination_days=age_in_days(context.inputs["completions"]))
    if settings.champion is not None:
        case = replace(case, champion_modes=_champion_modes(context), examined_modes=_examined_modes(context))
    if not case.candidate:
        return case
    if settings.rules.load is not None:
        memory = pair.serving_bytes(
            float("nan") if case.draft_bytes is None else case.draft_bytes, *settings.rules.served
        )
        case = replace(case, serving_bytes=memory)
    if load is not None:
        from pipeline.review.at_load import plot_at_load

        workload = sides.workload(case.candidate)
        plot_at_load(load, workload, variant, context.out)
        case = with_load(case, load, workload, settings.confidence)
    if case.round_ratio is not None:
        ratio = round_ratio(case, sides, variant, load, _load(context, CHAMPION_PROFILE))
        case = replace(case, round_ratio=ratio)
    return case


def _examples(context: StageContext[GateSettings], variant: Variant, case: Case | None, pair: Pair) -> dict[str, Any]:
    """Completions with the outcome of each token, for the page. The only step that loads torch."""
    if case is None or not case.candidate:
        return {"examples": []}
    from pipeline.examination.examples import choose_examples, examples_of
    from pipeline.models.loading import load_tokenizer

    settings, directories = context.settings, _examinations(context, variant)
    return examples_of(
        choose_examples(case.candidate, case.baseline, settings.rules.examples),
        {side: directories[side] for side in (CANDIDATE, BASELINE)},
        context.inputs["completions"],
        Sampling.from_config(settings.sampling),
        partial(load_tokenizer, pair.tokenizer, context.resources.trust_remote_code),
        settings.gamma,
        settings.convention,
    )
