"""A draft that no run trained, as an engine serves it for the target of a run: it is examined on the completions of that run."""

from dataclasses import replace

from pipeline.config.quantize import UNQUANTIZED
from pipeline.drafts.loading import kind_for, lacking_tokens
from pipeline.errors import UsageError
from pipeline.models.loading import load_tokenizer
from pipeline.registry.named import Draft
from pipeline.store.runs import RunRecord


def given_draft(draft: Draft, record: RunRecord) -> Draft:
    """`draft`, a directory or a model of the hub, with the pair and the settings of a run. UsageError for a draft that lacks
    tokens of the target."""
    examined = replace(draft, run=record.id, chosen=UNQUANTIZED)
    pair, trusted = examined.pair, examined.config.pair.trust_remote_code
    tokenizer = load_tokenizer(pair.tokenizer, trusted)
    kind = kind_for(examined.directory, tokenizer, pair.facts["target"]["logits_width"], trusted)
    if not kind.reads_states and not kind.maps_tokens and (gained := lacking_tokens(pair, examined.directory, trusted)):
        raise UsageError(
            f"{draft.label}: it lacks {len(gained)} tokens of the target, for which a run adds rows (`understudy run`); no "
            "engine takes it as it is"
        )
    return replace(examined, given=kind)
