"""pair: resolves target and base draft, checks that they are of one model family, and measures them."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from pipeline.config.pair import REFERENCE, TARGET
from pipeline.corpus.template_clock import CALL
from pipeline.distillation.trial_step import prove_training
from pipeline.drafts.base_draft import (
    check_earlier_target,
    draft_of_layers,
    draft_of_other_vocabulary,
    fitting_draft,
    has_other_vocabulary,
    require_no_head,
)
from pipeline.drafts.directory import trained_on_before
from pipeline.drafts.fitting_head import require_fitting
from pipeline.drafts.head_config import kind_of, require_target
from pipeline.drafts.head_tensors import head_facts, serving_facts
from pipeline.drafts.kinds import KINDS, Kind, Trait
from pipeline.drafts.loading import load_head
from pipeline.drafts.made_heads import new_head, save_head
from pipeline.drafts.transplant import TransplantFacts
from pipeline.errors import UnderstudyError, UsageError
from pipeline.examination.first_place import note_at_chance
from pipeline.generation.completion_store import canonical
from pipeline.models.built import load_config
from pipeline.models.derived import prove_saving
from pipeline.models.devices import choose_device
from pipeline.models.files import tokenizer_digest
from pipeline.models.fixed_rope import note_on_rope
from pipeline.models.generation_config import sampling_defaults
from pipeline.models.listed_files import not_applied
from pipeline.models.loading import check_finite, load_model, load_tokenizer
from pipeline.models.pair_facts import check_sizes, check_widths, model_facts, serving_memory
from pipeline.models.saving import save_tokenizer
from pipeline.models.segmenter import chat_templates
from pipeline.models.shape import find_width, read_shape
from pipeline.models.stored_embedding import stored_embedding
from pipeline.models.stored_pair import PAIR_FILE, read_pair
from pipeline.models.tokenizers import never_emitted, other_template, stop_token_ids
from pipeline.quantization.block_sizes import impossible_variants, no_variants
from pipeline.reference.recipe import make_reference_pair
from pipeline.reference.text import read_text
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import PairSettings
from pipeline.servers.identity import Identity
from pipeline.servers.target_facts import log_probability_facts, served_facts
from pipeline.speculation.choice import check_logits, proved_way, recorded_forward
from pipeline.speculation.settings import Sampling
from pipeline.speculation.target_states import TargetStates
from pipeline.store.files import content_key, file_sha256, write_json
from pipeline.store.own_files import reads_own_files


def run(context: StageContext[PairSettings]) -> Outcome:
    """Check that the models are a pair, and write `pair.json` and the tokenizer; for the reference pair, train its models first.

    Inputs: the models, or the text that the reference pair is trained on. UsageError or UnderstudyError for models that cannot be
    used together.
    """
    settings, trusted = context.settings, context.resources.trust_remote_code
    figures = _make_reference(context)
    origins = {role: _locate(context, role) for role in settings.roles}
    require_target(origins["target"], "pair.target")
    kind = _kind(context, origins["draft"])
    target, width = load_tokenizer(origins["target"], trusted), find_width(origins["target"], trusted)
    draft = _base_draft(context, kind, origins, target, width)
    paths = origins | {"draft": draft.path}
    if "target_before" in paths:
        check_earlier_target(target, load_tokenizer(paths["target_before"], trusted), width)
    described = {role: _describe(context, role, path, origins[role], target) for role, path in paths.items()}
    check_sizes(described)
    lacking = check_widths(described, target)
    is_here = {role: not (role == "target" and settings.server) and path != draft.head for role, path in paths.items()}
    local = {role: path for role, path in paths.items() if is_here[role]}
    ropes = _ropes(context, local)
    # Logits may be padded to different widths; what both can express is the vocabulary of the pair.
    vocabulary = min(entry["logits_width"] for entry in described.values())
    stops = stop_token_ids(paths["target"], target)
    notes = [
        *lacking,
        *draft.warnings,
        *(note for path in dict.fromkeys(origins.values()) for note in not_applied(path)),
        *ropes,
        *never_emitted(stops, vocabulary),
        *other_template(origins["target"], target),
        *_unused(context, draft),
    ]
    for note in notes:
        context.progress.warn(f"pair: {note}")
    for role, fact in _proved(context, local, vocabulary).items():
        described[role] |= fact
    save_tokenizer(target, context.out / "tokenizer")
    facts = {
        **described,
        "vocabulary": vocabulary,
        "context": min(entry["context"] for entry in described.values()),
        "stop_tokens": stops,
        "differences": [*draft.notes, *notes],
        "memory": serving_memory(described),
        **_further_facts(context, draft, paths["target"], target),
    }
    write_json(context.out / PAIR_FILE, facts)
    if settings.reference is None:
        _prove_training(context)
    provides = {role: entry["digest"] for role, entry in described.items()}
    provides |= _provided(context, facts, is_fixed=bool(ropes), is_narrow=bool(lacking))
    figures |= {
        f"{role}_parameters": float(entry["parameters"]) for role, entry in described.items() if entry["parameters"]
    }
    return Outcome(figures, provides, {"differences": facts["differences"], "memory": facts["memory"]})


@dataclass(frozen=True, kw_only=True)
class _BaseDraft:
    """The base draft as it is trained. `notes`: what was changed for it; `warnings`: what is printed too. `head`: its path where
    it reads hidden states, with its `traits`. `rows`: how those of another tokenizer were made."""

    path: Path
    notes: list[str]
    warnings: list[str] = field(default_factory=list)
    head: Path | None = None
    traits: list[Trait] = field(default_factory=list)
    rows: TransplantFacts | None = None


def _kind(context: StageContext[PairSettings], origin: Path) -> Kind:
    """The kind of the base draft, and what is wrong with it, found before anything is paid for."""
    trained_on_before(origin)  # a damaged list, also of a model from a hub
    head = context.settings.head
    kind = KINDS[head.kind] if head is not None else kind_of(origin)
    try:
        context.resources.training.distill.require_for(kind)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return kind


def _base_draft(
    context: StageContext[PairSettings], kind: Kind, origins: Mapping[str, Path], target: Any, width: int | None
) -> _BaseDraft:
    """Make it of what the config names. `target`: its tokenizer."""
    settings, trusted, out = context.settings, context.resources.trust_remote_code, context.out / "draft"
    has_target_vocabulary = settings.vocabulary == "target"
    if kind.reads_states:
        if has_target_vocabulary:
            require_no_head(kind)
        head, notes, traits = _head(context, origins)
        return _BaseDraft(path=head, notes=notes, head=head, traits=traits)
    if settings.layers is not None:
        notes = draft_of_layers(origins["target"], settings.layers, target, settings.draft, out, trusted)
        return _BaseDraft(path=out, notes=notes)
    if has_target_vocabulary and has_other_vocabulary(target, load_tokenizer(origins["draft"], trusted), width):
        rows = _transplant(context, origins, target, width)
        return _BaseDraft(path=out, notes=[], warnings=[rows.note(), *rows.warnings()], rows=rows)
    path, notes = fitting_draft(origins["draft"], target, width, settings.draft, out, trusted)
    if has_target_vocabulary:
        notes.append("pair.draft.vocabulary = target changes nothing: the draft has the target's tokenizer")
    return _BaseDraft(path=path, notes=notes)


def _ropes(context: StageContext[PairSettings], local: Mapping[str, Path]) -> list[str]:
    """Notes on rotary factors that were fixed, of the models that are loaded here."""
    settings, trusted = context.settings, context.resources.trust_remote_code
    all_notes = [note_on_rope(load_config(path, trusted), f"pair.{role}") for role, path in local.items()]
    notes = [note for note in all_notes if note is not None]
    if settings.rope_factors is not None and not notes:
        raise UsageError(
            "pair.rope_factors: no model that is loaded here has two sets of factors (longrope), so there is nothing to choose; "
            "remove the key"
        )
    return notes


def _unused(context: StageContext[PairSettings], draft: _BaseDraft) -> Iterator[str]:
    """Settings that have no effect."""
    for role, place in context.resources.models.items():
        if place.is_here and place.revision is not None:
            yield f"pair.{role}.revision is not used: {place.source} is a directory, whatever revision its files are of"
    own, of_target = (context.settings.dtype(role) for role in ("draft", "target"))
    if draft.head is not None and own != of_target:
        yield (
            f"pair.draft.dtype = {own} is how a head is stored; it is computed in its target's dtype, {of_target}, as in engines"
        )


def _further_facts(context: StageContext[PairSettings], draft: _BaseDraft, path: Path, target: Any) -> dict[str, Any]:
    """Facts of the target's tokenizer and of the draft. `path`: of the target; `target`: its tokenizer."""
    trusted = context.resources.trust_remote_code
    facts: dict[str, Any] = {
        "tokens": len(target),
        # What `running/pair_checks.py` compares a config with.
        "chat_template": bool(target.chat_template),
        "generation_config": sampling_defaults(path),
        "impossible_variants": no_variants() if draft.head else impossible_variants(draft.path, trusted),
    }
    if any(CALL in template for template in chat_templates(target)):
        # Prompts are the same from day to day: it is the day on which the pair was made.
        facts["template_day"] = datetime.now(UTC).date().isoformat()
    if draft.head is not None:
        facts["head"] = serving_facts(draft.head, path, trusted) | {"traits": draft.traits}
    if draft.rows is not None:
        facts["transplant"] = draft.rows.as_json()
    if context.settings.server:
        facts["served"] = dict(context.facts["target"])
    return facts


def _provided(
    context: StageContext[PairSettings], facts: Mapping[str, Any], *, is_fixed: bool, is_narrow: bool
) -> dict[str, str]:
    """Digests of what later stages read of the pair. `is_fixed`: rotary factors were; `is_narrow`: the draft lacks tokens."""
    shared = content_key([facts["vocabulary"], facts["stop_tokens"], facts["context"]])
    if is_fixed:  # completions of versions that did not fix the factors are made again
        shared = content_key([shared, "longrope with fixed factors"])
    tokenizer = tokenizer_digest(context.out / "tokenizer")
    if is_narrow:  # prompts with these tokens are no part of a corpus
        tokenizer = content_key([tokenizer, facts["vocabulary"]])
    if "template_day" in facts:
        tokenizer = content_key([tokenizer, facts["template_day"]])
    digests = {"shared": shared, "tokenizer": tokenizer}
    if context.settings.reference:
        digests["prompts"] = content_key(file_sha256(context.out / "prompts.jsonl"))
    return digests


@reads_own_files("written by the same process")
def _make_reference(context: StageContext[PairSettings]) -> dict[str, float]:
    """Train the reference pair, if that is the pair, and return its figures."""
    recipe, seed = context.settings.reference, context.settings.seed
    if recipe is None:
        return {}
    assert seed is not None  # of the same settings
    text = read_text(context.inputs["text"], recipe.text_megabytes)
    device = choose_device(context.resources.device)
    return make_reference_pair(context.out, recipe, text, seed, device, context.progress)


def _locate(context: StageContext[PairSettings], role: str) -> Path:
    """The directory a role's model comes from: outside the store, this artifact for the reference pair, or the target's for a
    draft made of the target's layers."""
    if context.settings.reference is not None:
        return context.out / role
    places = context.resources.models
    of_target = context.settings.layers is not None or context.settings.head is not None
    return (places["target"] if of_target and role == "draft" else places[role]).directory()


def _describe(
    context: StageContext[PairSettings], role: str, path: Path, origin: Path, tokenizer: Any
) -> dict[str, Any]:
    """Facts of a role's model at `path`, whose weights come from `origin`."""
    settings, place = context.settings, context.resources.models.get(role)
    dtype, trusted = settings.dtype(role), context.resources.trust_remote_code
    if role == "target" and settings.server is not None:
        identity = Identity.from_facts(context.facts["target"])
        return served_facts(identity, path, tokenizer, settings.revisions[role], dtype, settings.server.api, trusted)
    of_target = settings.layers is not None or settings.head is not None
    source = place.source if place is not None else TARGET if of_target else REFERENCE
    if kind_of(path).reads_states:
        facts = head_facts(path, origin, read_shape(_locate(context, "target"), trusted), dtype)
    else:
        facts = model_facts(path, origin, dtype, trusted)
    revision = None if place is not None and place.is_here else settings.revisions.get(role)
    return {"source": source, "revision": revision, **facts}


def _head(context: StageContext[PairSettings], origins: Mapping[str, Path]) -> tuple[Path, list[str], list[Trait]]:
    """The directory of the base draft that is a head: made for the target, or the user's own; notes on the latter, and what of it
    not every engine computes. UsageError for one that does not fit the target."""
    settings, resources = context.settings, context.resources
    if settings.server is not None:
        raise UsageError(
            "pair.draft: a head reads hidden states of its target, which servers do not give; load the target here "
            "(pair.target.source: a directory, or a model of the hub)"
        )
    require_fitting(settings.head or origins["draft"], origins["target"], resources.trust_remote_code)
    device, placed = choose_device(resources.device), resources.device_map("target")
    target = load_model(origins["target"], settings.dtype("target"), device, resources.trust_remote_code, placed)
    path, notes = origins["draft"], list[str]()
    try:
        if settings.head is not None:
            path = context.out / "draft"
            head = new_head(target, settings.head, settings.seed or 0)
            save_head(head.to(getattr(torch, settings.draft)), path)
        width = int(target.config.get_text_config().vocab_size)
        loaded = load_head(kind_of(path), path, TargetStates(target), width)
        recorded_forward(target, width, loaded.layers)  # as the cross-check and the speed decode
        check_finite(loaded.model, path)
        logits_V = loaded.logits_after(
            list(range(min(8, width))), min(6, width)
        )  # what the target's layers cannot be asked for
        if not bool(torch.isfinite(logits_V).any()) or bool(logits_V.isnan().any()):
            raise UsageError(
                f"{path}: its logits are NaN or infinite, though its weights are finite; take another head"
            )
        if settings.head is None and (note := note_at_chance(loaded, width)) is not None:
            notes.append(f"{path}: {note}")
    except UnderstudyError as error:
        raise UsageError(f"pair.draft: {error}") from error
    traits = serving_facts(path, origins["target"], resources.trust_remote_code)["traits"]
    return path, notes, [*traits, *loaded.own_traits]


def _transplant(
    context: StageContext[PairSettings], origins: Mapping[str, Path], tokenizer: Any, width: int | None
) -> TransplantFacts:
    """Make the base draft in the target's vocabulary."""
    settings, trusted = context.settings, context.resources.trust_remote_code

    def embedding() -> torch.Tensor | str:
        return (
            "the target is on servers" if settings.server is not None else stored_embedding(origins["target"], trusted)
        )

    return draft_of_other_vocabulary(
        origins["draft"],
        tokenizer,
        width,
        settings.tokens,
        stop_token_ids(origins["target"], tokenizer),
        embedding,
        settings.draft,
        context.out / "draft",
        trusted,
    )


def _ask_servers(context: StageContext[PairSettings], vocabulary: int) -> dict[str, Any]:
    """What the servers' log-probabilities mean. UsageError if they do not suffice for what `generate` will ask."""
    needs, servers = context.settings.server, context.resources.servers
    assert needs is not None  # the target is on servers
    assert servers is not None
    identity = Identity.from_facts(context.facts["target"])
    samplings = [Sampling.from_config(settings) for settings in needs.samplings]
    deployed = samplings[0] if needs.check_defaults else None
    wanted = [canonical(sampling) for sampling in samplings]
    return asyncio.run(log_probability_facts(servers, identity, vocabulary, wanted, deployed, context.progress))


def _prove_training(context: StageContext[PairSettings]) -> None:
    """UsageError where the draft of the written pair cannot be trained as the config states: here, not after the generation."""
    resources = context.resources
    pair = read_pair(context.out, resources.models)
    try:
        prove_training(pair, resources.training, resources.device, resources.trust_remote_code, context.out)
    except UnderstudyError as error:
        raise UsageError(f"pair.draft: {error}") from error


def _proved(
    context: StageContext[PairSettings], local: Mapping[str, Path], vocabulary: int
) -> dict[str, dict[str, Any]]:
    """How the models are computed, by role: here, or what the log-probabilities of servers mean."""
    facts: dict[str, dict[str, Any]] = {
        role: {"forward": _prove_forward(context, role, path, vocabulary)} for role, path in local.items()
    }
    if context.settings.server:
        facts["target"] = facts.get("target", {}) | {"log_probabilities": _ask_servers(context, vocabulary)}
    return facts


def _prove_forward(context: StageContext[PairSettings], role: str, path: Path, vocabulary: int) -> str:
    """How the decoder computes this model here. UsageError for an architecture that it cannot compute: found here, not after the
    corpus is read."""
    device, resources = choose_device(context.resources.device), context.resources
    dtype, placed = context.settings.dtype(role), resources.device_map(role)
    model = load_model(path, dtype, device, resources.trust_remote_code, placed)
    try:
        check_finite(model, path)
        way = proved_way(model, vocabulary)
        check_logits(model, vocabulary)
        if role == "draft":
            prove_saving(model, dtype, resources.trust_remote_code, str(path), context.out)
        return way
    except UnderstudyError as error:
        raise UsageError(f"pair.{role}: {error}") from error
