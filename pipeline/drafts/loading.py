"""Loads a draft of any kind for the target of a pair. A kind has its line in `_LOADERS`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pipeline.drafts.kinds import LOOKUP, PLAIN, SUFFIX, KindName
from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.plain import PlainDraft
from pipeline.drafts.suffix import SuffixMatching, SuffixSettings
from pipeline.drafts.surgery import extend_vocabulary, gained_tokens
from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.model_json import read_config
from pipeline.models.stored_pair import Pair
from pipeline.speculation.drafter import LoadedDraft


@dataclass(frozen=True, kw_only=True)
class DraftSource:
    """What a draft is loaded from: the same in every process that examines it."""

    kind: KindName
    files: (
        tuple[Pair, Path] | None
    )  # the pair that it is loaded for, and its directory; None for a kind without weights
    dtype: str
    trust_remote_code: bool
    lookup_ngram: int  # of prompt-lookup
    suffix: SuffixSettings = field(default_factory=SuffixSettings)  # of suffix-matching; no config key sets them

    def load(self, device: torch.device) -> LoadedDraft:
        """BrokenDraft for one that cannot speculate for this pair."""
        return _LOADERS[self.kind](self, device)


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


def _plain(source: DraftSource, device: torch.device) -> LoadedDraft:
    assert source.files is not None
    pair, path = source.files
    return load_plain(pair, path, source.dtype, device, source.trust_remote_code)


_LOADERS: dict[KindName, Callable[[DraftSource, torch.device], LoadedDraft]] = {
    PLAIN.name: _plain,
    LOOKUP.name: lambda source, device: PromptLookup(source.lookup_ngram),
    SUFFIX.name: lambda source, device: SuffixMatching(source.suffix),
}
