"""evaluate: the examination of one draft. Writes its acceptance profile."""

import dataclasses
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.acceptance.figures import Tally
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.acceptance.schema import SCHEMA
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.examination.cross_check import cross_check
from pipeline.examination.stored import examine_draft, look_up_stored, tallied
from pipeline.generation.completion_store import StoredCompletion, canonical, read_completions, stored_samplings
from pipeline.models.draft_directory import find_draft
from pipeline.models.loading import choose_device, load_model, load_tokenizer
from pipeline.models.shape import measure_weights
from pipeline.models.stored_pair import Pair, read_pair
from pipeline.models.surgery import added_tokens, extend_vocabulary
from pipeline.models.tokenizers import check_same_family
from pipeline.running.context import Outcome, StageContext
from pipeline.speculation.sampling import GREEDY, Sampling
from pipeline.store.row_files import RowFile

_DEV = "dev"


def run(context: StageContext) -> Outcome:
    sets = _sets(context)
    with RowFile(context.out / "acceptance.json", list(sets)) as spools:
        if context.part == "prompt-lookup":
            draft: dict[str, Any] = {"kind": "prompt-lookup", "bytes": 0, "parameters": 0}
            found = _look_up(context, sets, spools)
        else:
            path = find_draft(context.inputs["draft"], context.config.pair)
            weights = measure_weights(path)
            draft = {"kind": "model", "digest": context.digests["draft"], **dataclasses.asdict(weights)}
            try:
                found = _examine(context, path, sets, spools)
            except BrokenDraft as error:
                # A variant that cannot be computed must not take the run down with it: it has no figures, and no gate
                # lets a draft without figures pass.
                spools.clear()
                found = {"broken": str(error)}
        profile = {"schema": SCHEMA, "draft": draft, "conditions": _conditions(context), **found}
        spools.write(profile, "prompts")
    notes: dict[str, Any] = {name: profile[name] for name in ("crosscheck", "broken") if name in profile}
    return Outcome({} if "broken" in profile else _headline(context, profile), notes=notes)


@dataclasses.dataclass(frozen=True)
class _Set:
    """The examination completions of one sampling tuple."""

    sampling: Sampling
    completions: int


def _sets(context: StageContext) -> dict[str, _Set]:
    """Every tuple there is: `deployed`, `greedy` (unless that is what is deployed), and `also_1`, `also_2`, ..."""
    split = _split(context)
    stored = stored_samplings(context.inputs["completions"], {split})
    deployed = canonical(Sampling(**context.config.sampling.model_dump()))
    names = {deployed: "deployed"} | ({} if deployed.greedy or split == _DEV else {GREEDY: "greedy"})
    if missing := [name for sampling, name in names.items() if sampling not in stored]:
        raise UnderstudyError(
            f"{context.inputs['completions']}: there is no {' and no '.join(missing)} completion to examine; give "
            f"corpus.splits.{split} a share of the prompts"
        )
    further = [sampling for sampling in stored if sampling not in names]
    names |= {sampling: f"also_{number}" for number, sampling in enumerate(further, 1)}
    return {name: _Set(sampling, stored[sampling]) for sampling, name in names.items()}


def _said(context: StageContext, sampling: Sampling) -> Iterator[StoredCompletion]:
    return read_completions(context.inputs["completions"], {_split(context)}, sampling)


def _split(context: StageContext) -> str:
    """A form of the candidate is also examined on the prompts on which one of them is chosen."""
    return _DEV if context.part.startswith(f"{_DEV}-") else "examination"


def _count_as(context: StageContext) -> str:
    """On dev nothing was generated beyond a completion's end, which one convention asks for: that is counted as for a user."""
    convention = context.config.evaluate.convention
    return convention if _split(context) != _DEV or CONVENTIONS[convention].clipped else "user"


def _look_up(context: StageContext, sets: dict[str, _Set], spools: RowFile) -> dict[str, Any]:
    settings = context.config.evaluate
    tallies = {
        name: tallied(look_up_stored(_said(context, item.sampling), settings), settings.max_gamma, spools, name)
        for name, item in sets.items()
    }
    return _figures(context, sets, tallies) | {"crosscheck": None}


def _examine(context: StageContext, path: Path, sets: dict[str, _Set], spools: RowFile) -> dict[str, Any]:
    settings, pair = context.config.evaluate, read_pair(context.inputs["target"], context.config.pair)
    model = _load(context, pair, path)
    tallies, total = {}, sum(item.completions for item in sets.values())
    with context.progress.track(f"examine {context.part}", total, "completions") as track:
        for name, item in sets.items():
            said = _said(context, item.sampling)
            counted = examine_draft(
                model, said, item.sampling, settings, pair.vocabulary, track.advance, _count_as(context)
            )
            tallies[name] = tallied(counted, settings.max_gamma, spools, name)
    return _figures(context, sets, tallies) | {"crosscheck": _cross_check(context, pair, model)}


def _load(context: StageContext, pair: Pair, path: Path) -> Any:
    settings = context.config.pair
    gained = _gained(context, pair, path) if context.part == "champion" else []
    model = load_model(path, settings.draft.dtype, choose_device(context.config.device), settings.trust_remote_code)
    if gained and getattr(model.config, "quantization_config", None) is not None:
        raise BrokenDraft(
            f"the champion in the registry is quantised and lacks {len(gained)} tokens that the target has gained since: it "
            "cannot be given rows for them"
        )
    if gained:  # as the base draft was: no engine takes it as it is
        extend_vocabulary(model, gained)
    return model


def _gained(context: StageContext, pair: Pair, path: Path) -> list[int]:
    """Tokens that the champion lacks. It comes from the registry, where another pair may have used the same name."""
    trusted = context.config.pair.trust_remote_code
    try:
        target, own = load_tokenizer(pair.tokenizer, trusted), load_tokenizer(path, trusted)
        gained = added_tokens(target, own)
        if not gained:
            check_same_family(target, own)
    except UnderstudyError as error:
        raise BrokenDraft(
            f"the champion in the registry is not of this pair; set promote.target_name: {error}"
        ) from error
    return gained


def _cross_check(context: StageContext, pair: Pair, draft: Any) -> dict[str, Any] | None:
    """A real greedy decode of a few prompts, compared round by round with what the examination predicts for them."""
    settings = context.config.evaluate
    if settings.crosscheck_prompts == 0 or _split(context) == _DEV:
        return None
    role = "target_before" if context.part == "stock-before" else "target"
    target = load_model(
        pair.path(role), pair.dtype(role), choose_device(context.config.device), context.config.pair.trust_remote_code
    )
    return cross_check(
        target,
        draft,
        list(islice(_said(context, GREEDY), settings.crosscheck_prompts)),
        settings.crosscheck_gamma,
        settings.crosscheck_tokens,
        pair.vocabulary,
        pair.stop_tokens,
    )


def _conditions(context: StageContext) -> dict[str, Any]:
    config, settings = context.config, context.config.evaluate
    return {
        "completions": context.digests["completions"],
        "convention": _count_as(context),
        "draft_sampling": settings.draft_sampling,
        "sampling": config.sampling.model_dump(),
        "dtype": config.pair.draft.dtype,
        "confidence": settings.confidence,
        "gamma": settings.gamma,
        "max_gamma": settings.max_gamma,
        "batch_tokens": settings.batch_tokens,
    }


def _figures(context: StageContext, sets: dict[str, _Set], tallies: dict[str, Tally]) -> dict[str, Any]:
    settings = context.config.evaluate
    figures = {name: tally.figures(settings.confidence) for name, tally in tallies.items()}
    return {
        "headline": figures["deployed"],
        "greedy": figures.get("greedy", figures["deployed"]),
        "samplings": [
            {"prompts_as": name, "sampling": dataclasses.asdict(sets[name].sampling), **figures[name]}
            for name in sets
            if name.startswith("also_")
        ],
        "domains": tallies["deployed"].domains(settings.gamma, settings.confidence),
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
