"""The tags of a registered version: plain names for what people filter by. Pure."""

from collections.abc import Mapping
from typing import Any

from pipeline.judgement.headline import baseline_name, points
from pipeline.judgement.schema import CANDIDATE
from pipeline.judgement.speed import measured_line, warnings_elsewhere
from pipeline.registry.target_identity import CONTENT_TAG, PLACE_TAG, TOKENIZER_TAG

SHAPE_TAG = "understudy.shape"


def version_tags(facts: Mapping[str, Any], deployment: str | None) -> dict[str, str]:
    """`facts` are those of the draft's card. Hashes are under `understudy.`, which lists show last."""
    target, base, decision = facts["target"], facts["base"], facts["decision"]
    figures, gains = decision.drafts[CANDIDATE], decision.gains
    tags = {
        "acceptance_rate": f"{figures.acceptance_rate.value:.4f}",
        "acceptance_gain": points(gains.acceptance_rate) if gains else "none",
        "compared_with": baseline_name(decision),
        "tokens_per_target_call": f"{figures.tokens_per_target_call[decision.gamma].value:.3f}",
        "speedup": measured_line(decision) or "not measured",
        "quantization": facts["quantization"],
        "target": target["source"],
        "target_revision": target["revision"] or "none",
        "base_draft": base["source"],
        "licence": facts["license"] or "not stated",
        "target_licence": target["license"] or "not stated",
        "deployment": deployment or "none",
        CONTENT_TAG: target["digest"],
        PLACE_TAG: facts["target_place"],
        TOKENIZER_TAG: facts["tokenizer"],
        "understudy.base_digest": base["digest"],
        SHAPE_TAG: facts["shape"],
    }
    if decision.warnings:
        tags["warning"] = "; ".join(warnings_elsewhere(decision))
    tags |= {f"understudy.key.{what}": key for what, key in facts["provenance"].items()}
    return {name: str(value) for name, value in tags.items()}
