"""evaluate: the examination of one draft. Writes its acceptance profile."""

from typing import Any

import numpy as np

from pipeline.acceptance.profile import SCHEMA, PromptCounts, by_domain, counts_json, figures
from pipeline.artifacts import write_json
from pipeline.context import Outcome, StageContext
from pipeline.drafts import find_draft
from pipeline.generation.examination import examine_stored, look_up_stored
from pipeline.generation.store import Spoken, read_completions
from pipeline.models import choose_device, load_model, measure_weights
from pipeline.pairfile import Pair, read_pair
from pipeline.speculation.crosscheck import cross_check
from pipeline.speculation.sampling import GREEDY, Sampling


def run(context: StageContext) -> Outcome:
    config, deployed = context.config, Sampling(**context.config.sampling.model_dump())
    spoken = {
        "deployed": list(read_completions(context.inputs["completions"], {"examination"}, greedy=deployed.greedy)),
        "greedy": list(read_completions(context.inputs["completions"], {"examination"}, greedy=True)),
    }
    samplings = {"deployed": deployed, "greedy": GREEDY}
    if context.part == "prompt-lookup":
        counts = {name: look_up_stored(rows, config.evaluate) for name, rows in spoken.items()}
        draft: dict[str, Any] = {"kind": "prompt-lookup", "bytes": 0, "parameters": 0}
        check = None
    else:
        pair, path = read_pair(context.inputs["target"]), find_draft(context.inputs["draft"], context.part)
        model = load_model(path, config.pair.draft.dtype, choose_device(config.device), config.pair.trust_remote_code)
        counts = {
            name: _examine(context, model, pair.vocabulary, rows, samplings[name]) for name, rows in spoken.items()
        }
        weights = measure_weights(path)
        draft = {
            "kind": "model",
            "digest": context.digests["draft"],
            "bytes": weights.bytes,
            "parameters": weights.parameters,
        }
        check = _cross_check(context, pair, model, spoken["greedy"])
    profile = _profile(context, draft, counts) | {"crosscheck": check}
    write_json(context.out / "acceptance.json", profile)
    return Outcome(_headline(context, profile), notes={"crosscheck": check})


def _examine(
    context: StageContext, model: Any, vocabulary: int, spoken: list[Spoken], sampling: Sampling
) -> list[PromptCounts]:
    with context.progress.track(f"examine {context.part}", len(spoken), "completions") as track:
        return examine_stored(model, spoken, sampling, context.config.evaluate, vocabulary, track.advance)


def _cross_check(context: StageContext, pair: Pair, draft: Any, spoken: list[Spoken]) -> dict[str, Any] | None:
    """A real greedy decode of a few prompts, compared round by round with what the examination predicts for them."""
    settings = context.config.evaluate
    if settings.crosscheck_prompts == 0:
        return None
    role = "target_before" if context.part == "stock-before" else "target"
    target = load_model(
        pair.path(role), pair.dtype(role), choose_device(context.config.device), context.config.pair.trust_remote_code
    )
    return cross_check(
        target,
        draft,
        spoken[: settings.crosscheck_prompts],
        settings.crosscheck_gamma,
        settings.crosscheck_tokens,
        pair.vocabulary,
        pair.stop_tokens,
    )


def _profile(context: StageContext, draft: dict[str, Any], counts: dict[str, list[PromptCounts]]) -> dict[str, Any]:
    config, confidence = context.config, context.config.evaluate.confidence
    return {
        "schema": SCHEMA,
        "draft": draft,
        "conditions": {
            "completions": context.digests["completions"],
            "convention": config.evaluate.convention,
            "draft_sampling": config.evaluate.draft_sampling,
            "sampling": config.sampling.model_dump(),
            "dtype": config.pair.draft.dtype,
            "confidence": confidence,
            "max_gamma": config.evaluate.max_gamma,
        },
        "headline": figures(counts["deployed"], confidence),
        "greedy": figures(counts["greedy"], confidence),
        "domains": by_domain(counts["deployed"], config.evaluate.gamma, confidence),
        "prompts": {name: counts_json(rows) for name, rows in counts.items()},
    }


def _headline(context: StageContext, profile: dict[str, Any]) -> dict[str, float]:
    gamma = str(context.config.evaluate.gamma)
    found = {
        "acceptance_rate": profile["headline"]["acceptance_rate"]["value"],
        f"tokens_per_target_call_gamma_{gamma}": profile["headline"]["tokens_per_target_call"][gamma]["value"],
        "acceptance_rate_greedy": profile["greedy"]["acceptance_rate"]["value"],
        "loop_share_greedy": profile["greedy"]["loop_share"],
        "draft_bytes": float(profile["draft"]["bytes"]),
    }
    found |= {
        f"acceptance_rate_{domain}": entry["acceptance_rate"]["value"] for domain, entry in profile["domains"].items()
    }
    return {name: value for name, value in found.items() if np.isfinite(value)}
