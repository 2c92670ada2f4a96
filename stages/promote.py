"""promote: compares with the registry as it is now, registers the draft, and moves the aliases."""

from dataclasses import asdict
from typing import Any

from pipeline.config.quantize import UNQUANTIZED, Variant
from pipeline.config.tasks import draft_input, examination_input
from pipeline.errors import UnderstudyError
from pipeline.handover.approval import approval_command
from pipeline.judgement.age import examination_age
from pipeline.judgement.decision_file import read_decision
from pipeline.judgement.headline import gain_in_words
from pipeline.judgement.rule_result import PASS
from pipeline.judgement.schema import ALREADY_CHAMPION, PROMOTE, Decision
from pipeline.models.files import tokenizer_digest
from pipeline.models.step_shape import step_shape
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.registry.drafts import Proposed, RegisteredDraft, Withdrawn
from pipeline.registry.packaging import Package
from pipeline.registry.registry import Registry
from pipeline.registry.run_content import model_figures
from pipeline.registry.version_tags import version_tags
from pipeline.review.card import card, examined, version_description
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import PromoteSettings
from pipeline.store.artifacts import age_in_days, read_manifest
from pipeline.store.files import write_json
from pipeline.store.times import utc_now


def run(context: StageContext[PromoteSettings]) -> Outcome:
    """Register the chosen draft in MLflow and make it champion, or with `promote.by_hand` challenger.

    Inputs: the decision, and the draft. Refused if the gate refused the draft. A draft that was
    rolled back, or that nobody approved in time, is registered only with --force-promote.
    """
    decision = read_decision(context.inputs["decision"])
    registry = context.resources.registry
    if decision.verdict == ALREADY_CHAMPION:
        return _already_champion(context, registry, decision.candidate)
    if decision.verdict != PROMOTE:
        return Outcome(refused="refused: " + "; ".join(decision.reasons))
    if (most := context.settings.max_examination_days) is not None:  # the gate's decision may be a stored one
        age = examination_age(age_in_days(context.inputs["completions"]), most)
        if age.verdict != PASS:
            return Outcome(refused=f"refused: {age.name} ({age.verdict}): {age.text}")
    chosen = decision.variant
    facts = _card_facts(context, decision)
    withdrawn = None if context.force_promote else registry.withdrawn(facts["digest"])
    if withdrawn is not None:
        return _stays_off(context, registry.name, withdrawn)
    text = card(facts)
    (context.out / "card.md").write_text(text, encoding="utf-8")
    by_hand = context.settings.promote.by_hand
    _check_export(context, chosen)
    compared = context.settings.champion
    draft = registry.promote(
        Package(
            model_dir=context.inputs[draft_input(chosen)] / "draft",
            digest=facts["digest"],
            card=text,
            description=version_description(decision, registry.name, context.run_id, utc_now()),
            tags=version_tags(facts, context.settings.promote.deployment),
            metrics=model_figures(decision),
            dataset=(f"{context.settings.name}-corpus", facts["provenance"]["corpus"]),
            run_id=context.run_id,
        ),
        expected=RegisteredDraft(name=registry.name, version=compared.version) if compared else None,
        why=gain_in_words(decision),
        approval_days=context.settings.promote.approval_days if by_hand else None,
    )
    waiting = registry.proposed(facts["digest"]) if by_hand else None
    if waiting is not None and waiting.champion != waiting.version:
        return _waits(context, draft, waiting)
    return _report(context, draft, "promoted" if draft.run == context.run_id else "already champion")


def _card_facts(context: StageContext[PromoteSettings], decision: Decision) -> dict[str, Any]:
    """The content of the card and of the tags. UnderstudyError if the corpus is no longer in the store."""
    chosen, served = decision.variant, context.settings.served
    pair = read_pair(context.inputs["pair"], context.resources.models)
    provenance = _provenance(context, chosen)
    corpus = context.store.find("corpus", provenance["corpus"])
    if corpus is None:
        raise UnderstudyError(f"corpus {provenance['corpus']} is no longer in {context.store}; run again to rebuild it")
    return {
        "name": context.resources.registry.name,
        "digest": context.digests[draft_input(chosen)],
        "shape": step_shape(context.inputs[draft_input(chosen)] / "draft") or "",
        "quantization": chosen,
        "run": context.run_id,
        "target": pair.facts["target"],
        "target_place": _target_place(context, pair),
        "tokenizer": tokenizer_digest(pair.tokenizer),
        "base": pair.facts["draft"],
        "license": context.settings.promote.license or pair.facts["draft"]["license"],
        "serving": {
            "bytes": pair.serving_bytes(examined(decision).draft.bytes, *served),
            "cache_bytes_per_token": pair.cache_bytes_per_token,
            "batch": served[0],
            "context": served[1],
        },
        "train_prompts": corpus.figures["train"],
        "decision": decision,
        "provenance": provenance,
    }


def _target_place(context: StageContext[PromoteSettings], pair: Pair) -> str:
    """The place where the target was found. For one on servers, what they report that they serve."""
    known = context.resources.models.get("target")
    return known.place if known is not None and known.tokenizer is None else pair.facts["target"]["source"]


def _provenance(context: StageContext[PromoteSettings], chosen: Variant) -> dict[str, str]:
    """Key of every artifact that the draft was made from or examined with."""
    completions = read_manifest(context.inputs["completions"])
    keys = {
        "pair": read_manifest(context.inputs["pair"]).key,
        "corpus": completions.inputs["corpus"],
        "generate": completions.key,
        "distill": read_manifest(context.inputs["distilled"]).key,
        "evaluate": read_manifest(context.inputs[examination_input(chosen)]).key,
        "gate": read_manifest(context.inputs["decision"]).key,
    }
    if chosen != UNQUANTIZED:
        keys["quantize"] = read_manifest(context.inputs[draft_input(chosen)]).key
    return keys


def _check_export(context: StageContext[PromoteSettings], chosen: Variant) -> None:
    """What the engine cannot load is found before the draft is registered."""
    settings = context.settings.promote.export
    if settings is not None:
        from pipeline.handover.champion_export import check_export
        from pipeline.registry.named import run_draft
        from pipeline.store.runs import require_run

        store = context.store
        check_export(settings, run_draft(store, require_run(store, context.run_id), chosen, "the candidate"))


def _already_champion(context: StageContext[PromoteSettings], registry: Registry, digest: str) -> Outcome:
    registry.recover()
    champion = registry.champion()
    if champion is None or champion.digest != digest:
        raise UnderstudyError(
            f"{registry.name}: the champion changed since the examination "
            f"(is {'none' if champion is None else f'version {champion.version}'}); run again"
        )
    return _report(context, champion, "already champion")


def _waits(context: StageContext[PromoteSettings], draft: RegisteredDraft, waiting: Proposed) -> Outcome:
    """The draft is challenger now: a person decides."""
    result = f"challenger, to be approved before {waiting.approve_before}"
    write_json(context.out / "promotion.json", {"result": result, **asdict(draft)})
    command = approval_command(context.run_id, context.store, bool(waiting.rolled_back))
    context.progress.line(f"{draft.name} version {draft.version}: {result}, with")
    context.progress.line(f"  {command}")
    notes = {"result": result, "name": draft.name, "version": draft.version, "approve_with": command}
    return Outcome(notes=notes)


def _stays_off(context: StageContext[PromoteSettings], name: str, draft: Withdrawn) -> Outcome:
    """A rollback is a person's decision, and so is an approval that did not come: the next scheduled run changes neither."""
    result = f"refused, {draft.what}"
    notes = {"result": result, "name": name, "version": draft.version}
    write_json(context.out / "promotion.json", notes)
    refused = (
        f"refused: the draft is {name} version {draft.version}, which was {draft.what}; "
        "to promote it again, add --force-promote"
    )
    return Outcome(notes=notes, refused=refused)


def _report(context: StageContext[PromoteSettings], champion: RegisteredDraft, result: str) -> Outcome:
    write_json(context.out / "promotion.json", {"result": result, **asdict(champion)})
    context.progress.line(f"{champion.name} version {champion.version}: {result}")
    notes: dict[str, Any] = {"result": result, "name": champion.name, "version": champion.version}
    return Outcome({"change": float(champion.change)}, notes=notes)
