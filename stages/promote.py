"""promote: goes on stage. Compares with the registry as it is now, registers the draft, moves the aliases."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.artifacts import MANIFEST, Store, read_json, write_json
from pipeline.context import Outcome, StageContext
from pipeline.errors import Refused, UnderstudyError
from pipeline.pairfile import read_pair
from pipeline.registry import RegisteredDraft, Registry, registry_for
from pipeline.report.card import card, examined, flat_figures
from pipeline.spool import read_head


def run(context: StageContext) -> Outcome:
    decision = read_json(context.inputs["decision"] / "decision.json")
    registry = registry_for(context.config, Store(context.store))
    if decision["verdict"] == "already_champion":
        return _already_champion(context, registry)
    if decision["verdict"] != "promote":
        raise Refused("refused: " + "; ".join(decision["reasons"]))
    facts = _facts(context, registry.name, decision)
    text = card(facts)
    (context.out / "card.md").write_text(text, encoding="utf-8")
    champion = registry.promote(
        model_dir=context.inputs["draft"] / "draft",
        digest=context.digests["draft"],
        card=text,
        tags=_tags(facts),
        metrics=flat_figures(facts["examined"]),
        dataset=(f"{context.config.name}-corpus", facts["provenance"]["corpus"]),
        expected=_expected(context),
        run_id=context.run_id,
    )
    return _report(context, champion, "promoted" if champion.run == context.run_id else "already champion")


def _already_champion(context: StageContext, registry: Registry) -> Outcome:
    champion = registry.settled_champion()
    if champion is None or champion.digest != context.digests["draft"]:
        raise UnderstudyError(
            f"{registry.name}: the champion changed since the examination "
            f"(is {'none' if champion is None else f'version {champion.version}'}); run again"
        )
    return _report(context, champion, "already champion")


def _report(context: StageContext, champion: RegisteredDraft, result: str) -> Outcome:
    write_json(context.out / "promotion.json", {"result": result, **asdict(champion)})
    context.progress.line(f"{champion.name} version {champion.version}: {result}")
    notes: dict[str, Any] = {"result": result, "name": champion.name, "version": champion.version}
    if result == "promoted":
        notes["mlflow_run"] = champion.mlflow_run  # tracking continues the run that the registry began
    return Outcome({"change": float(champion.change)}, notes=notes)


def _expected(context: StageContext) -> RegisteredDraft | None:
    """The champion that the candidate was examined against; only its version is compared."""
    facts = context.facts["champion"]
    return RegisteredDraft(facts["name"], str(facts["version"]), "", 0) if facts else None


def _facts(context: StageContext, name: str, decision: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the card and the tags say."""
    pair = read_pair(context.inputs["pair"], context.config.pair).facts
    provenance = _provenance(context)
    corpus = Store(context.store).find("corpus", provenance["corpus"])
    if corpus is None:
        raise UnderstudyError(f"corpus {provenance['corpus']} is no longer in {context.store}; run again")
    return {
        "name": name,
        "digest": context.digests["draft"],
        "run": context.run_id,
        "target": pair["target"],
        "base": pair["draft"],
        "license": context.config.promote.license or pair["draft"]["license"],
        "examined": examined(
            read_head(context.inputs["profile"] / "acceptance.json", "prompts"), context.config.evaluate.gamma
        ),
        "train_prompts": corpus.figures["train"],
        "decision": decision,
        "provenance": provenance,
    }


def _provenance(context: StageContext) -> dict[str, str]:
    """Key of every artifact that led here."""
    completions = _manifest(context.inputs["completions"])
    return {
        "pair": _manifest(context.inputs["pair"])["key"],
        "corpus": completions["inputs"]["corpus"],
        "generate": completions["key"],
        "distill": _manifest(context.inputs["draft"])["key"],
        "evaluate": _manifest(context.inputs["profile"])["key"],
        "gate": _manifest(context.inputs["decision"])["key"],
    }


def _manifest(artifact: Path) -> dict[str, Any]:
    return dict(read_json(artifact / MANIFEST))


def _tags(facts: Mapping[str, Any]) -> dict[str, str]:
    target, base = facts["target"], facts["base"]
    tags = {
        "target": target["source"],
        "target_revision": target["revision"] or "none",
        "target_digest": target["digest"],
        "base": base["source"],
        "base_digest": base["digest"],
        "quantisation": "none",
        "licence": facts["license"] or "not stated",
    }
    tags |= {f"key.{what}": key for what, key in facts["provenance"].items()}
    return {f"understudy.{name}": str(value) for name, value in tags.items()}
