"""Loads a draft of any kind for the target of a pair. A kind has its line in `_LOADERS`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.config.pair import DeviceMap
from pipeline.drafts.base_draft import has_other_vocabulary
from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.eagle3_model import Eagle3Model, load_eagle3
from pipeline.drafts.head_config import kind_of, read_eagle3, read_medusa
from pipeline.drafts.kinds import EAGLE3, LOOKUP, MEDUSA, PLAIN, SUFFIX, TLI, Kind, KindName
from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.medusa import MedusaDraft, MedusaModel, load_medusa
from pipeline.drafts.plain import PlainDraft
from pipeline.drafts.suffix import SuffixMatching, SuffixSettings
from pipeline.drafts.surgery import extend_vocabulary, gained_tokens
from pipeline.drafts.tli import TliDraft
from pipeline.drafts.token_map import map_tokens
from pipeline.errors import BrokenDraft, UnderstudyError, UsageError
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.model_json import read_config
from pipeline.models.placement import input_device
from pipeline.models.stored_pair import Pair
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.target_states import TargetStates

DraftWithWeights = PlainDraft | Eagle3Draft | MedusaDraft


@dataclass(frozen=True, kw_only=True)
class DraftOrigin:
    """What a draft is loaded from: the same in every process that examines it."""

    kind: KindName
    files: (
        tuple[Pair, Path] | None
    )  # the pair that it is loaded for, and its directory; None for a kind without weights
    dtype: str
    trust_remote_code: bool
    lookup_ngram: int  # of prompt-lookup
    target: str = "target"  # the role of the model whose hidden states a head reads
    target_device_map: DeviceMap | None = None

    def load(self, device: torch.device) -> LoadedDraft:
        """BrokenDraft for one that cannot speculate for this pair."""
        return _LOADERS[self.kind](self, device)


def load_draft(
    pair: Pair,
    path: Path,
    dtype: str,
    device: torch.device,
    trusted: bool,
    target: Callable[[], Any],
    kind: Kind | None = None,
) -> DraftWithWeights:
    """The draft in `path`, of whatever kind its files are, or of `kind`, for a pair. `target`: loads its target, where the draft
    reads hidden states. BrokenDraft for a draft that is not of this pair."""
    kind = kind or kind_of(path)
    if kind.reads_states:
        return load_head(kind, path, TargetStates(target()), pair.vocabulary)
    if kind.maps_tokens:
        width = pair.facts["target"]["logits_width"] or pair.vocabulary
        return load_mapped(path, load_tokenizer(pair.tokenizer, trusted), width, dtype, device, trusted)
    return load_plain(pair, path, dtype, device, trusted)


def load_plain(pair: Pair, path: Path, dtype: str, device: torch.device, trusted: bool) -> PlainDraft:
    """The draft with a row for every token of the pair. A champion may lack tokens that the target has gained since; it gets
    rows for them as the base draft did, because no engine accepts it otherwise.

    BrokenDraft for a quantized draft that lacks tokens, and for a draft of another model family.
    """
    gained = lacking_tokens(pair, path, trusted)
    model = load_model(path, dtype, device, trusted)
    if gained:
        extend_vocabulary(model, gained)
    return PlainDraft(model, pair.vocabulary)


def load_mapped(path: Path, tokenizer: Any, width: int, dtype: str, device: torch.device, trusted: bool) -> TliDraft:
    """A draft with another tokenizer as an engine maps its tokens. `tokenizer`, `width`: of the target and its logits.
    BrokenDraft for one that no engine maps."""
    model = load_model(path, dtype, device, trusted)
    own, own_width = load_tokenizer(path, trusted), int(model.config.get_text_config().vocab_size)
    return TliDraft(model, map_tokens(tokenizer, own, width, own_width), width)


def kind_for(path: Path, tokenizer: Any, width: int | None, trusted: bool) -> Kind:
    """The kind of a draft in a model directory, as it is, for a target with this tokenizer: one of another tokenizer is served by
    mapping its tokens."""
    kind = kind_of(path)
    own = None if kind.reads_states else load_tokenizer(path, trusted)
    return TLI if own is not None and has_other_vocabulary(tokenizer, own, width) else kind


def load_head(
    kind: Kind, path: Path, states: TargetStates, vocabulary: int, dtype: torch.dtype | None = None
) -> Eagle3Draft | MedusaDraft:
    """A head on the hidden states of a loaded target, on its device, and in its dtype, as engines load it, where none is given.
    BrokenDraft for a head of another target."""
    target = states.target
    given = (target, dtype or target.dtype, input_device(target))
    try:
        return head_draft(_HEAD_LOADERS[kind.name](path, *given), vocabulary, states)
    except UsageError as error:
        raise BrokenDraft(str(error)) from error


def head_draft(model: Eagle3Model | MedusaModel, vocabulary: int, states: TargetStates) -> Eagle3Draft | MedusaDraft:
    """The draft of a head's model, for the target of `states`."""
    return _HEAD_DRAFTS[type(model)](model, vocabulary, states)


def lacking_tokens(pair: Pair, path: Path, trusted: bool) -> list[int]:
    """Tokens that the draft lacks, for which rows are added. BrokenDraft, as `load_plain`, for a draft that no rows make one of
    this pair. Only tokenizers and configs are loaded."""
    try:
        target, own = load_tokenizer(pair.tokenizer, trusted), load_tokenizer(path, trusted)
        gained = gained_tokens(target, own, pair.facts["target"]["logits_width"])
    except UnderstudyError as error:
        raise BrokenDraft(f"the draft is not of this pair: {error}") from error
    if gained and read_config(path).is_quantized:
        raise BrokenDraft(
            f"the draft is quantized and lacks {len(gained)} tokens that the target has gained since it was trained; rows for "
            "them cannot be added to quantized weights"
        )
    return gained


def _with_weights(origin: DraftOrigin, device: torch.device) -> LoadedDraft:
    assert origin.files is not None
    pair, path = origin.files

    def target() -> Any:
        role = origin.target
        return load_model(pair.path(role), pair.dtype(role), device, origin.trust_remote_code, origin.target_device_map)

    return load_draft(pair, path, origin.dtype, device, origin.trust_remote_code, target)


_LOADERS: dict[KindName, Callable[[DraftOrigin, torch.device], LoadedDraft]] = {
    **dict.fromkeys((PLAIN.name, TLI.name, EAGLE3.name, MEDUSA.name), _with_weights),
    LOOKUP.name: lambda origin, device: PromptLookup(origin.lookup_ngram),
    SUFFIX.name: lambda origin, device: SuffixMatching(SuffixSettings()),
}
_HEAD_LOADERS: dict[KindName, Callable[..., Eagle3Model | MedusaModel]] = {
    EAGLE3.name: lambda path, *given: load_eagle3(path, read_eagle3(path), *given),
    MEDUSA.name: lambda path, *given: load_medusa(path, read_medusa(path), *given),
}
_HEAD_DRAFTS: dict[type, Callable[..., Eagle3Draft | MedusaDraft]] = {
    Eagle3Model: Eagle3Draft,
    MedusaModel: MedusaDraft,
}
