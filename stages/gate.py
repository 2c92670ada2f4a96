"""gate: applies the promotion rules. Chooses the variant of the candidate with the lowest predicted latency at the stated load,
and compares it with the champion, or with the base draft where there is no champion."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.acceptance.decoding_speed import DecodingSpeed
from pipeline.acceptance.profile_file import read_examination
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.acceptance.schema import read_profile
from pipeline.acceptance.step_times import StepTimes, find_step_times
from pipeline.config.quantize import UNQUANTIZED, Variant
from pipeline.distillation.learning_curve import find_curve
from pipeline.drafts.directory import seen_prompts
from pipeline.drafts.kinds import KINDS
from pipeline.drafts.token_rows import read_token_rows
from pipeline.judgement.at_load import StatedLoad, latency, mean_seconds
from pipeline.judgement.benefit import benefit_at_load
from pipeline.judgement.choice import Contender, choose, chosen, not_made
from pipeline.judgement.decision import already_champion, judge, unseen, without_prompts
from pipeline.judgement.decision_file import read_training, write_decision
from pipeline.judgement.evidence import (
    counts_of,
    gather,
    make_case,
    provenance,
    reasons_not_examined,
    target_source,
)
from pipeline.judgement.measured_speed import measured_speed
from pipeline.judgement.new_vocabulary import new_vocabulary
from pipeline.judgement.policy import Case, apply_rules, not_examined
from pipeline.judgement.relative_speed import RoundRatio, measured_ratio, predicted_ratio
from pipeline.judgement.schema import (
    BASELINE,
    CANDIDATE,
    LOOKUP,
    REFUSE,
    Decision,
    NewVocabulary,
    Side,
    VariantFigures,
    brief,
)
from pipeline.judgement.speed import speed_warnings
from pipeline.judgement.what_now import what_now
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.latency.load.workload import examined_workload, read_workload
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.registry.run_content import decision_figures
from pipeline.running.context import Outcome, StageContext
from pipeline.running.pair_checks import left_out_variants
from pipeline.running.settings import GateSettings
from pipeline.running.tasks import CHAMPION_PROFILE, draft_input, examination_input, profile_input
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
    pair = read_pair(inputs["pair"], context.resources.models)
    standings = choose([_contender(context, variant) for variant in (UNQUANTIZED, *settings.variants)])
    variant, champion = chosen(standings), settings.champion
    gamma, confidence, seen = settings.gamma, settings.confidence, _seen(context, variant)
    candidate = digests[draft_input(variant)]
    is_champion = candidate == digests.get("champion")
    directories, name = _examinations(context, variant), "champion" if champion else "base draft"
    examinations = {side: read_examination(directory) for side, directory in directories.items()}
    profiles = {side: examination.profile for side, examination in examinations.items()}
    times, unquantized = _step_times(context, is_champion=is_champion), examinations[CANDIDATE]
    if variant != UNQUANTIZED:
        unquantized = read_examination(inputs[examination_input(UNQUANTIZED)])
    speed = measured_speed(times, {CANDIDATE: unquantized, BASELINE: examinations[BASELINE]}, seen, confidence)
    case, counts = make_case(examinations, name), counts_of(examinations)
    prompts = len(counts.get(CANDIDATE, ()))
    if case is None:
        rules = [not_examined(reasons_not_examined(examinations, name))]
        counts = {side: unseen(found, seen) for side, found in counts.items()}
    else:
        case = _completed(context, variant, without_prompts(case, seen), pair)
        if case.round_ratio is not None and case.candidate:
            case = replace(case, round_ratio=_round_ratio(context, variant, case, times, speed))
        rules, counts = apply_rules(case, settings.rules, gamma, confidence), counts_of(case)
    headline = unquantized.profile.headline
    del examinations, unquantized  # whose counts are of all prompts

    judgement = already_champion() if is_champion else judge(rules)
    curve = find_curve(inputs["distilled"])
    evidence = gather(
        profiles,
        counts,
        None if case is None else case.benefit,
        speed,
        is_champion=is_champion,
        gamma=gamma,
        confidence=confidence,
    )
    decision = Decision(
        **vars(judgement),
        warnings=speed_warnings(judgement.verdict, judgement.rules, evidence.speed),
        candidate=candidate,
        variant=variant,
        variants=[*standings, *(not_made(name, why) for name, why in left_out_variants(pair.facts).items())],
        baseline="champion" if champion else "base",
        champion=champion,
        gamma=gamma,
        confidence=confidence,
        dropped_prompts=prompts - len(counts.get(CANDIDATE, ())),
        **vars(evidence),
        training=read_training(inputs["distilled"] / "training.json"),
        new_vocabulary=_new_vocabulary(context, directories[CANDIDATE], pair),
        what_now=what_now(
            judgement.rules,
            times.get(CANDIDATE) if speed is not None and speed.candidate.speedup is not None else None,
            headline,
            None if curve is None else curve.next_doubling,
        ),
        provenance=provenance(pair.facts, read_manifest(inputs["completions"]), settings.sampling, settings.seed),
    )
    examples = {"examples": []} if is_champion or case is None else _examples(context, directories, case, pair)
    write_json(context.out / "examples.json", examples)
    write_decision(context.out, decision)
    return Outcome(
        decision_figures(decision),
        notes={"verdict": decision.verdict, "reasons": decision.reasons},
        refused="refused: " + "; ".join(decision.reasons) if decision.verdict == REFUSE else "",
        decision=brief(decision),
    )


def _step_times(context: StageContext[GateSettings], *, is_champion: bool) -> dict[Side, StepTimes]:
    """With the unquantized candidate, and with what it is compared with, where they were measured."""
    inputs: dict[Side, str] = {CANDIDATE: "speed"} if is_champion else {CANDIDATE: "speed", BASELINE: "speed_baseline"}
    found = {side: find_step_times(context.inputs[name]) for side, name in inputs.items() if name in context.inputs}
    return {side: times for side, times in found.items() if times is not None}


def _load(context: StageContext[GateSettings], profile: str) -> StatedLoad | None:
    """The load that `gate.load` states, with the step costs of an input; None without a load or without step costs."""
    load, path = context.settings.rules.load, context.inputs.get(profile)
    if load is None or path is None:
        return None
    return StatedLoad(
        step_costs=read_step_costs(path),
        requests_per_second=load.requests_per_second,
        max_batch=load.max_batch,
        gamma=context.settings.gamma,
        quantiles=context.settings.rules.quantiles,
    )


def _round_ratio(
    context: StageContext[GateSettings],
    variant: Variant,
    case: Case,
    times: Mapping[Side, StepTimes],
    speed: DecodingSpeed | None,
) -> RoundRatio | str:
    """What compares the speeds of candidate and champion: step times at the stated load where both are known, and otherwise those
    of this machine, which are of the unquantized candidate."""
    settings, ours, theirs = context.settings, profile_input(variant), CHAMPION_PROFILE
    candidate, champion = _load(context, ours), _load(context, theirs)
    if candidate is not None and champion is not None:
        convention = CONVENTIONS[settings.convention]
        of_candidate, of_champion = (
            examined_workload(counts, convention, settings.max_gamma) for counts in (case.candidate, case.baseline)
        )
        return predicted_ratio(candidate, of_candidate, champion, of_champion)
    if variant != UNQUANTIZED:
        return (
            f"step times of {variant} are not measured; set gate.load, gate.profile.{variant} and gate.champion_profile"
        )
    return measured_ratio(times, speed, settings.gamma, settings.confidence)


def _contender(context: StageContext[GateSettings], variant: Variant) -> Contender:
    """A variant with its acceptance rate and, at a stated load, its predicted latency on dev prompts. With a single contender
    nothing was examined on dev."""
    profile, gamma = read_profile(context.inputs[examination_input(variant)]), context.settings.gamma
    headline, figures = profile.headline, None
    if headline is not None:
        figures = VariantFigures(
            bytes=profile.draft.bytes,
            acceptance_rate=headline.acceptance_rate,
            tokens_per_target_call=headline.tokens_per_target_call[gamma],
        )
    load, on_dev = _load(context, profile_input(variant)), context.inputs.get(examination_input(variant, "dev"))
    seconds = None
    if load is not None and on_dev is not None and headline is not None:
        seconds = mean_seconds(load, read_workload(on_dev))
    return Contender(name=variant, figures=figures, timed=load is not None, seconds=seconds)


def _examinations(context: StageContext[GateSettings], variant: Variant) -> dict[Side, Path]:
    """The evaluate artifact of each side. The baseline is the champion, or the base draft where there is none."""
    baseline = "examination_champion" if "champion" in context.inputs else "examination_base"
    names: dict[Side, str] = {
        CANDIDATE: examination_input(variant),
        BASELINE: baseline,
        LOOKUP: "examination_lookup",
    }
    return {side: context.inputs[name] for side, name in names.items()}


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


def _completed(context: StageContext[GateSettings], variant: Variant, case: Case, pair: Pair) -> Case:
    """With what is known beside the counts."""
    case = _with_latency(context, variant, case, pair)
    days = age_in_days(context.inputs["completions"])
    case = replace(case, target=target_source(pair.facts), examination_days=days)
    if context.settings.champion is None:
        return case
    return replace(case, champion_modes=_champion_modes(context), examined_modes=_examined_modes(context))


def _with_latency(context: StageContext[GateSettings], variant: Variant, case: Case, pair: Pair) -> Case:
    """The case with the predicted latency and the memory at the stated load, where one is stated; plots it too."""
    settings, load = context.settings, _load(context, profile_input(variant))
    if settings.rules.load is None or not case.candidate:
        return case
    memory = pair.serving_bytes(float("nan") if case.draft_bytes is None else case.draft_bytes, *settings.rules.served)
    if load is None:
        return replace(case, serving_bytes=memory)
    from pipeline.report.at_load import plot_at_load

    workload = examined_workload(case.candidate, CONVENTIONS[settings.convention], settings.max_gamma)
    plot_at_load(load, workload, variant, context.out)
    return replace(
        case,
        served=latency(load, workload, settings.confidence),
        benefit=benefit_at_load(workload, load),
        serving_bytes=memory,
    )


def _new_vocabulary(context: StageContext[GateSettings], candidate: Path, pair: Pair) -> NewVocabulary | None:
    """None where the base draft has always had the target's tokenizer."""
    facts = pair.facts.get("transplant")
    if facts is None:
        return None
    from pipeline.examination.token_acceptance import read_token_acceptance
    from pipeline.generation.completion_store import canonical
    from pipeline.generation.stored_completions import StoredCompletions
    from pipeline.models.loading import load_tokenizer

    tokenizer = load_tokenizer(pair.tokenizer, context.resources.trust_remote_code)
    names = facts.get("unmatched", [])
    sampling = canonical(Sampling.from_config(context.settings.sampling))
    completions = StoredCompletions.open(context.inputs["completions"], {"examination"}, sampling)
    ids, sides = {item.id for item in completions}, (context.inputs["examination_base"], candidate)
    profiles = [read_profile(side).headline for side in sides]
    before, after = (
        {} if profile is None else read_token_acceptance(side, ids)
        for profile, side in zip(profiles, sides, strict=True)
    )
    return new_vocabulary(
        facts,
        read_token_rows(pair.directory),
        dict(zip(tokenizer.convert_tokens_to_ids(names), names, strict=True)),
        completions,
        before,
        after,
        profiles[0].acceptance_rate if profiles[0] is not None else None,
    )


def _examples(
    context: StageContext[GateSettings], directories: Mapping[Side, Path], case: Case, pair: Pair
) -> dict[str, Any]:
    """Completions with the outcome of each token, for the page. The only step that loads torch."""
    if not case.candidate:
        return {"examples": []}
    from pipeline.examination.examples import choose_examples, make_examples
    from pipeline.generation.completion_store import canonical, read_completions
    from pipeline.models.loading import load_tokenizer

    settings = context.settings
    sides: dict[str, Path] = {side: directories[side] for side in (CANDIDATE, BASELINE)}
    kinds = [KINDS[read_profile(directory).draft.kind] for directory in sides.values()]
    if not all(kind.by_token for kind in kinds):  # whether a token is accepted depends on where its round began
        return {"examples": []}
    sampling = canonical(Sampling.from_config(settings.sampling))
    return make_examples(
        choose_examples(case.candidate, case.baseline, settings.rules.examples),
        read_completions(context.inputs["completions"], {"examination"}, sampling),
        sides,
        load_tokenizer(pair.tokenizer, context.resources.trust_remote_code),
        settings.gamma,
        CONVENTIONS[settings.convention],
    )
