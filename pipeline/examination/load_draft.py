"""Loads a draft for its examination against the target of a pair."""

from pathlib import Path
from typing import Any

import torch

from pipeline.errors import BrokenDraft, UnderstudyError
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.stored_pair import Pair
from pipeline.models.surgery import extend_vocabulary, gained_tokens


def load_draft(pair: Pair, path: Path, dtype: str, device: torch.device, trusted: bool) -> Any:
    """The draft with a row for every token of the pair. A champion may lack tokens that the target has gained since; it gets
    rows for them as the base draft did, because no engine accepts it otherwise.

    BrokenDraft for a quantized draft that lacks tokens, and for a draft of another model family.
    """
    gained = _gained(pair, path, trusted)
    model = load_model(path, dtype, device, trusted)
    if gained and getattr(model.config, "quantization_config", None) is not None:
        raise BrokenDraft(
            f"the draft is quantized and lacks {len(gained)} tokens that the target has gained since it was trained; rows for "
            "them cannot be added to quantized weights"
        )
    if gained:
        extend_vocabulary(model, gained)
    return model


def _gained(pair: Pair, path: Path, trusted: bool) -> list[int]:
    """Tokens that the draft lacks. BrokenDraft for a draft of another model family: the registry may hold a champion that
    another pair registered under the same name."""
    try:
        target, own = load_tokenizer(pair.tokenizer, trusted), load_tokenizer(path, trusted)
        return gained_tokens(target, own, pair.facts["target"]["logits_width"])
    except UnderstudyError as error:
        raise BrokenDraft(
            f"the draft is not of this pair (if it is the registry's champion, set promote.target_name): {error}"
        ) from error
