"""pair: resolves target and base draft, checks that they are of one model family, and measures them."""

import asyncio
from collections.abc import Mapping
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
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.fitting_head import require_fitting
from pipeline.drafts.head_config import kind_of, require_target
from pipeline.drafts.head_tensors import head_facts, serving_facts
from pipeline.drafts.kinds import KINDS, Trait
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
    trained_on_before(
        origins["draft"]
    )  # a damaged list, also of a model from a hub, is found before anything is paid for
    kind = KINDS[settings.head.kind] if settings.head is not None else kind_of(origins["draft"])
    try:
        context.resources.training.distill.require_for(kind)
    except ValueError as error:
        raise UsageError(str(error)) from None
    target, paths = load_tokenizer(origins["target"], trusted), dict(origins)
    width = find_width(origins["target"], trusted)
    head, traits = None, list[Trait]()
    rows, loud = None, list[str]()
    if kind.reads_states:
        if settings.vocabulary == "target":
            require_no_head(kind)
        head, notes, traits = _head(context, origins)
        paths["draft"] = head
    elif settings.layers is not None:
        paths["draft"] = context.out / "draft"
        notes = draft_of_layers(origins["target"], settings.layers, target, settings.draft, paths["draft"], trusted)
    elif settings.vocabulary == "target" and has_other_vocabulary(
        target, load_tokenizer(origins["draft"], trusted), width
    ):
        paths["draft"], notes = context.out / "draft", []
        rows = _transplant(context, origins, target, width)
        loud = [rows.note(), *rows.warnings()]
    else:
        paths["draft"], notes = fitting_draft(
            origins["draft"], target, width, settings.draft, context.out / "draft", trusted
        )
        if settings.vocabulary == "target":
            notes.append("pair.draft.vocabulary = target changes nothing: the draft has the target's tokenizer")
    if "target_before" in paths:
        check_earlier_target(target, load_tokenizer(paths["target_before"], trusted), width)
    described = {role: _describe(context, role, path, origins[role], target) for role, path in paths.items()}
    check_sizes(described)
    lacking = check_widths(described, target)
    ignored = [*loud, *(note for path in dict.fromkeys(origins.values()) for note in not_applied(path))]
    local = {role: path for role, path in paths.items() if not (role == "target" and settings.server) and path != head}
    found = {role: note_on_rope(load_config(path, trusted), f"pair.{role}") for role, path in local.items()}
    ropes = [note for note in found.values() if note is not None]
    if settings.rope_factors is not None and not ropes:
        raise UsageError(
            "pair.rope_factors: no model that is loaded here has two sets of factors (longrope), so there is nothing to choose; "
            "remove the key"
        )
    ignored += ropes
    # Logits may be padded to different widths; what both can express is the vocabulary of the pair.
    vocabulary = min(entry["logits_width"] for entry in described.values())
    stops = stop_token_ids(paths["target"], target)
    ignored += [*never_emitted(stops, vocabulary), *other_template(origins["target"], target)]
    ignored += [
        f"pair.{role}.revision is not used: {place.source} is a directory, whatever revision its files are of"
        for role, place in context.resources.models.items()
        if place.is_here and place.revision is not None
    ]
    if head is not None and (own := settings.dtype("draft")) != (of_target := settings.dtype("target")):
        ignored.append(
            f"pair.draft.dtype = {own} is how a head is stored; it is computed in its target's dtype, {of_target}, as in engines"
        )
    for note in (*lacking, *ignored):
        context.progress.warn(f"pair: {note}")
    for role, path in local.items():
        described[role]["forward"] = _prove_forward(context, role, path, vocabulary)
    if settings.server:
        described["target"]["log_probabilities"] = _ask_servers(context, vocabulary)
    save_tokenizer(target, context.out / "tokenizer")
    facts = {
        **described,
        "vocabulary": vocabulary,
        "context": min(entry["context"] for entry in described.values()),
        "tokens": len(target),
        "stop_tokens": stops,
        # What `running/pair_checks.py` compares a config with.
        "chat_template": bool(target.chat_template),
        "generation_config": sampling_defaults(paths["target"]),
        "impossible_variants": no_variants() if head else impossible_variants(paths["draft"], trusted),
        "differences": [*notes, *lacking, *ignored],
        "memory": serving_memory(described),
    }
    if any(CALL in template for template in chat_templates(target)):
        # Prompts are the same from day to day: it is the day on which the pair was made.
        facts["template_day"] = datetime.now(UTC).date().isoformat()
    if head is not None:
        facts["head"] = serving_facts(head, paths["target"], trusted) | {"traits": traits}
    if rows is not None:
        facts["transplant"] = rows.as_json()
    if settings.server:
        facts["served"] = dict(context.facts["target"])
    write_json(context.out / PAIR_FILE, facts)
    if settings.reference is None:
        _prove_training(context)
    provides = {role: entry["digest"] for role, entry in described.items()}
    provides["shared"] = content_key([facts["vocabulary"], facts["stop_tokens"], facts["context"]])
    if ropes:  # completions of versions that did not fix the factors are made again
        provides["shared"] = content_key([provides["shared"], "longrope with fixed factors"])
    provides["tokenizer"] = tokenizer_digest(context.out / "tokenizer")
    if lacking:  # prompts with these tokens are no part of a corpus
        provides["tokenizer"] = content_key([provides["tokenizer"], vocabulary])
    if "template_day" in facts:
        provides["tokenizer"] = content_key([provides["tokenizer"], facts["template_day"]])
    if settings.reference:
        provides["prompts"] = content_key(file_sha256(context.out / "prompts.jsonl"))
    figures |= {
        f"{role}_parameters": float(entry["parameters"]) for role, entry in described.items() if entry["parameters"]
    }
    return Outcome(figures, provides, {"differences": facts["differences"], "memory": facts["memory"]})


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
    traits = list(serving_facts(path, origins["target"], resources.trust_remote_code)["traits"])
    if isinstance(loaded, Eagle3Draft) and loaded.has_own_embedding:
        traits.append("own_embedding")
    return path, notes, traits


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
    samplings = [Sampling.from_config(one) for one in needs.samplings]
    deployed = samplings[0] if needs.check_defaults else None
    wanted = [canonical(one) for one in samplings]
    return asyncio.run(log_probability_facts(servers, identity, vocabulary, wanted, deployed, context.progress))


def _prove_training(context: StageContext[PairSettings]) -> None:
    """UsageError where the draft of the written pair cannot be trained as the config says: here, not after the generation."""
    resources = context.resources
    pair = read_pair(context.out, resources.models)
    try:
        prove_training(pair, resources.training, resources.device, resources.trust_remote_code, context.out)
    except UnderstudyError as error:
        raise UsageError(f"pair.draft: {error}") from error


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
