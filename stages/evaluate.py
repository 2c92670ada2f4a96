"""evaluate: the examination of one draft. Writes its acceptance profile."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.acceptance.profile import SCHEMA, PromptCounts, by_domain, counts_json, figures
from pipeline.artifacts import write_json
from pipeline.context import Outcome, StageContext
from pipeline.drafts import find_draft
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.generation.examination import examine_stored, look_up_stored
from pipeline.generation.store import Spoken, read_completions
from pipeline.models import check_same_family, choose_device, load_model, load_tokenizer, measure_weights
from pipeline.pairfile import Pair, read_pair
from pipeline.speculation.crosscheck import cross_check
from pipeline.speculation.sampling import GREEDY, Sampling


def run(context: StageContext) -> Outcome:
    config, completions = context.config, context.inputs["completions"]
    deployed = Sampling(**config.sampling.model_dump())
    spoken = {
        "deployed": list(read_completions(completions, {"examination"}, greedy=deployed.greedy)),
        "greedy": list(read_completions(completions, {"examination"}, greedy=True)),
    }
    if context.part == "prompt-lookup":
        counts = {name: look_up_stored(rows, config.evaluate) for name, rows in spoken.items()}
        draft: dict[str, Any] = {"kind": "prompt-lookup", "bytes": 0, "parameters": 0}
        found = _figures(context, counts) | {"crosscheck": None}
    else:
        path = find_draft(context.inputs["draft"], config.pair)
        weights = measure_weights(path)
        draft = {"kind": "model", "digest": context.digests["draft"], **dataclasses.asdict(weights)}
        try:
            found = _examine(context, path, spoken, {"deployed": deployed, "greedy": GREEDY})
        except BrokenDraft as error:
            # A variant that cannot be computed must not take the run down with it: it has no figures, and no gate lets
            # a draft without figures pass.
            found = {"broken": str(error), "prompts": {"deployed": [], "greedy": []}}
    profile = {"schema": SCHEMA, "draft": draft, "conditions": _conditions(context), **found}
    write_json(context.out / "acceptance.json", profile)
    notes: dict[str, Any] = {name: profile[name] for name in ("crosscheck", "broken") if name in profile}
    return Outcome({} if "broken" in profile else _headline(context, profile), notes=notes)


def _examine(
    context: StageContext, path: Path, spoken: dict[str, list[Spoken]], samplings: dict[str, Sampling]
) -> dict[str, Any]:
    settings, pair = context.config.evaluate, read_pair(context.inputs["target"], context.config.pair)
    _check_family(context, pair, path)
    device = choose_device(context.config.device)
    model = load_model(path, context.config.pair.draft.dtype, device, context.config.pair.trust_remote_code)
    total = sum(len(rows) for rows in spoken.values())
    with context.progress.track(f"examine {context.part}", total, "completions") as track:
        counts = {
            name: examine_stored(model, rows, samplings[name], settings, pair.vocabulary, track.advance)
            for name, rows in spoken.items()
        }
    return _figures(context, counts) | {"crosscheck": _cross_check(context, pair, model, spoken["greedy"])}


def _check_family(context: StageContext, pair: Pair, path: Path) -> None:
    """A champion comes from the registry, where another pair may have used the same name."""
    if context.part == "champion":
        trusted = context.config.pair.trust_remote_code
        try:
            check_same_family(load_tokenizer(pair.tokenizer, trusted), load_tokenizer(path, trusted))
        except UnderstudyError as error:
            raise BrokenDraft(
                f"the champion in the registry is not of this pair; set promote.target_name: {error}"
            ) from error


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


def _conditions(context: StageContext) -> dict[str, Any]:
    config, settings = context.config, context.config.evaluate
    return {
        "completions": context.digests["completions"],
        "convention": settings.convention,
        "draft_sampling": settings.draft_sampling,
        "sampling": config.sampling.model_dump(),
        "dtype": config.pair.draft.dtype,
        "confidence": settings.confidence,
        "max_gamma": settings.max_gamma,
    }


def _figures(context: StageContext, counts: dict[str, list[PromptCounts]]) -> dict[str, Any]:
    settings = context.config.evaluate
    return {
        "headline": figures(counts["deployed"], settings.confidence),
        "greedy": figures(counts["greedy"], settings.confidence),
        "domains": by_domain(counts["deployed"], settings.gamma, settings.confidence),
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
