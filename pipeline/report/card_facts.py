"""What a draft card and the tags of a version say, from the artifacts that the draft was made from and examined with."""

from typing import Any

from pipeline.config.quantize import UNQUANTIZED, Variant
from pipeline.errors import UnderstudyError
from pipeline.judgement.schema import Decision
from pipeline.models.files import tokenizer_digest
from pipeline.models.step_shape import step_shape
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.report.card import examined
from pipeline.running.context import StageContext
from pipeline.running.settings import PromoteSettings
from pipeline.running.tasks import draft_input, examination_input
from pipeline.store.artifacts import read_manifest


def card_facts(context: StageContext[PromoteSettings], decision: Decision) -> dict[str, Any]:
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
        "target_place": _place(context, pair),
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


def _place(context: StageContext[PromoteSettings], pair: Pair) -> str:
    """Where the target was found. Of one on servers, what they say that they serve."""
    known = context.resources.models.get("target")
    return known.place if known is not None and known.tokenizer is None else pair.facts["target"]["source"]


def _provenance(context: StageContext[PromoteSettings], chosen: Variant) -> dict[str, str]:
    """Key of every artifact that the draft was made from or examined with."""
    completions = read_manifest(context.inputs["completions"])
    found = {
        "pair": read_manifest(context.inputs["pair"]).key,
        "corpus": completions.inputs["corpus"],
        "generate": completions.key,
        "distill": read_manifest(context.inputs["distilled"]).key,
        "evaluate": read_manifest(context.inputs[examination_input(chosen)]).key,
        "gate": read_manifest(context.inputs["decision"]).key,
    }
    if chosen != UNQUANTIZED:
        found["quantize"] = read_manifest(context.inputs[draft_input(chosen)]).key
    return found
