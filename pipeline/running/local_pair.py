"""Facts of a pair of two local directories, for checks before a run: those of `pair.json` that need no weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.running.pair_checks import apply_pair
from pipeline.running.prompt_survey import sampled_tokens


def check_local_pair(config: Config, warn: Callable[[str], None] | None = None) -> tuple[Config, list[str]]:
    """The config and notes, as by `apply_pair`, where both models are directories on this machine; else the config as it is and
    no note. What a draft with another tokenizer has of the target's is among the notes, or given to `warn`. UsageError for a
    marker of segments that the target's tokenizer never writes."""
    facts = local_facts(config)
    if facts is None:
        _require_loaded_target(config)
        return config, []
    about_rows = facts.pop("new_rows", [])
    if warn is not None:
        for note in about_rows:
            warn(note)
    from pipeline.models.loading import load_tokenizer
    from pipeline.models.segmenter import Segmenter

    Segmenter(load_tokenizer(Path(config.pair.target.source), config.pair.trust_remote_code), config.generate.segments)
    resolved, notes = apply_pair(config, facts)
    return resolved, notes if warn is not None else [*notes, *about_rows]


def _require_loaded_target(config: Config) -> None:
    """UsageError for a head of a target on servers."""
    draft = Path(config.pair.draft.source)
    if not (config.pair.target.is_served and config.pair.draft.is_local and (draft / "config.json").is_file()):
        return
    from pipeline.drafts.head_config import kind_of

    try:
        config.require_for(kind_of(draft), None)
    except ValueError as error:
        raise UsageError(str(error)) from None


def local_facts(config: Config) -> dict[str, Any] | None:
    """None for a pair that is on a hub or is still to be made. UnderstudyError for models that do not form a pair."""
    pair = config.pair
    target = Path(pair.target.source)
    draft = target if pair.draft.is_of_target else Path(pair.draft.source)
    local = pair.target.is_local and (pair.draft.is_local or pair.draft.is_of_target)
    if not local or not all((path / "config.json").is_file() for path in (target, draft)):
        return None
    # Imported here because the first import of torch takes seconds, and other pairs do without it.
    from pipeline.drafts.base_draft import has_other_vocabulary, lacking_rows, require_float_weights, require_no_head
    from pipeline.drafts.directory import trained_on_before
    from pipeline.drafts.fitting_head import require_fitting
    from pipeline.drafts.head_config import kind_of, require_target
    from pipeline.drafts.head_tensors import require_smaller, serving_facts
    from pipeline.models.built import read_only_empty_model
    from pipeline.models.generation_config import sampling_defaults
    from pipeline.models.loading import load_tokenizer
    from pipeline.models.pair_facts import check_widths
    from pipeline.models.shape import read_shape
    from pipeline.quantization.block_sizes import impossible_variants

    trusted = pair.trust_remote_code
    require_target(target, "pair.target")
    if (made := pair.draft.head) is not None:
        require_fitting(made, target, trusted)
        return _with_head(target, {"kind": made.kind, "longest": made.longest, "traits": list(made.traits)}, trusted)
    trained_on_before(draft)
    to_target = pair.draft.vocabulary == "target"
    if (kind := kind_of(draft)).reads_states:
        if to_target:
            require_no_head(kind)
        require_fitting(draft, target, trusted)
        require_smaller(target, draft, trusted)
        return _with_head(target, serving_facts(draft, target, trusted), trusted)
    tokenizer, own = load_tokenizer(target, trusted), load_tokenizer(draft, trusted)
    for path in (target, draft):
        read_only_empty_model(path, trusted)
    shapes = [read_shape(path, trusted) for path in (target, draft)]
    theirs, ours = (shape.logits_width for shape in shapes)
    other = to_target and has_other_vocabulary(tokenizer, own, theirs)
    if not (other or pair.draft.is_of_target):
        require_float_weights(draft)
        require_smaller(target, draft, trusted)
    # The pair stage adds rows to the draft, or makes them anew.
    extended = other or bool(lacking_rows(tokenizer, own, theirs, lambda: sampled_tokens(config)))
    widths = [theirs] if extended else [theirs, ours]
    roles = zip(("target", "draft"), widths, strict=False)
    check_widths({role: {"logits_width": width} for role, width in roles}, tokenizer)
    return {
        "vocabulary": min(widths),
        "context": min(shape.context for shape in shapes),
        "chat_template": bool(tokenizer.chat_template),
        "generation_config": sampling_defaults(target),
        "impossible_variants": impossible_variants(draft, trusted),
        "new_rows": _about_new_rows(config, tokenizer, own) if other else [],
    }


def _about_new_rows(config: Config, tokenizer: Any, own: Any) -> list[str]:
    """What the draft will have of the target's vocabulary. Raises what the pair stage would."""
    from pipeline.drafts.base_draft import require_float_weights
    from pipeline.drafts.shared_tokens import Vocabularies
    from pipeline.drafts.transplant import require_one_table, text_notes
    from pipeline.drafts.vocabulary_size import size_note
    from pipeline.models.built import read_only_empty_model
    from pipeline.models.shape import find_width
    from pipeline.models.tokenizers import check_columns, stop_token_ids

    pair, trusted = config.pair, config.pair.trust_remote_code
    target, draft = Path(pair.target.source), Path(pair.draft.source)
    width, ours = (find_width(path, trusted) for path in (target, draft))
    assert ours is not None  # a model directory
    check_columns(own, ours, "pair.draft")
    require_float_weights(draft)
    require_one_table(read_only_empty_model(draft, trusted), "pair.draft")
    vocabularies = Vocabularies(tokenizer, own, width, ours)
    shared = vocabularies.shared(pair.draft.tokens, stop_token_ids(target, tokenizer))
    said = [*text_notes(vocabularies, shared, sampled_tokens(config)), size_note(draft, target, trusted)]
    return [f"pair.draft.vocabulary = target: {note}" for note in said]


def _with_head(target: Path, head: dict[str, Any], trusted: bool) -> dict[str, Any]:
    """The config for a draft that is a head, which has the target's tokenizer."""
    from pipeline.models.generation_config import sampling_defaults
    from pipeline.models.loading import load_tokenizer
    from pipeline.models.shape import read_shape
    from pipeline.quantization.block_sizes import no_variants

    tokenizer, shape = load_tokenizer(target, trusted), read_shape(target, trusted)
    return {
        "vocabulary": shape.logits_width,
        "context": shape.context,
        "chat_template": bool(tokenizer.chat_template),
        "generation_config": sampling_defaults(target),
        "impossible_variants": no_variants(),
        "head": head,
    }
