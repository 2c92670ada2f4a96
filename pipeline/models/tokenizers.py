"""Tokenizer compatibility of target and draft, and stop tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.models.model_json import PROCESSOR_TEMPLATE, stop_tokens_of, template_of_processor
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files


def columns_for(tokenizer: Any) -> int:
    """How many columns of logits the tokens need; some tokenizers leave ids out."""
    return 1 + max(tokenizer.get_vocab().values(), default=-1)


def check_columns(tokenizer: Any, width: int, whose: str) -> list[str]:
    """The tokens of `tokenizer` for which logits of `width` columns have none, such as that of an image in a text model.

    UsageError naming `whose` logits these are if any of them is not an added token: text without special tokens has it too.
    """
    lacking = sorted((place, token) for token, place in tokenizer.get_vocab().items() if place >= width)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    if any(place not in added for place, _ in lacking):
        raise UsageError(
            f"{whose}: its logits have {width} columns and the tokenizer {len(tokenizer)} tokens; {lacking[0][1]!r} is the "
            "first without a column; tokenizer and config.json are of different models; take both from where the model was "
            "published"
        )
    return [token for _, token in lacking]


def tokens_below(tokenizer: Any, width: int | None) -> dict[str, int]:
    """The tokens with an id below `width`; all of them without one."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary if width is None else {token: place for token, place in vocabulary.items() if place < width}


def check_same_family(target: Any, draft: Any, width: int | None = None) -> list[str]:
    """Compare two tokenizers. Returns the allowed differences for the report: EOS, pad, chat template.

    `width`: columns of the target's logits, None if it is not known; tokens beyond may differ, since no prompt has them. Raises
    UsageError naming a token if the same text could be tokenised differently.
    """
    theirs, ours = tokens_below(target, width), tokens_below(draft, width)
    if theirs != ours:
        token = min((theirs.keys() ^ ours.keys()) or {t for t in theirs if theirs[t] != ours[t]})
        raise UsageError(
            f"draft and target have different tokenizers: token {token!r} is {_id(theirs, token)} for the target and "
            f"{_id(ours, token)} for the draft ({len(theirs)} and {len(ours)} tokens); choose a draft with the target's tokenizer"
        )
    if (difference := split_difference(target, draft)) is not None:
        raise UsageError(
            f"draft and target have the same tokens but split text differently ({difference}); choose a draft with the "
            "target's tokenizer"
        )
    return legal_differences(target, draft)


def legal_differences(target: Any, draft: Any) -> list[str]:
    """Allowed differences of two compatible tokenizers; the target's setting is used and reported."""
    return [
        f"{name}: the target's {getattr(target, name)!r} is used, the draft's was {getattr(draft, name)!r}"
        for name in ("eos_token", "pad_token", "chat_template")
        if getattr(target, name) != getattr(draft, name)
    ]


def split_difference(target: Any, draft: Any) -> str | None:
    """Why two tokenizers may split text into different tokens; None if no difference is found."""
    split = next((merge for merge, other in zip(_merges(target), _merges(draft), strict=False) if merge != other), None)
    if split is not None:
        return f"the target's merge {split} has another rank in the draft"
    probe = "def f(x):\n\treturn  [1234, 'äöü', \"漢字\"]  # ok 🙂 \r\n"
    same = target(probe)["input_ids"] == draft(probe)["input_ids"]
    return None if same else "another normaliser or special tokens"


@reads_own_files("text of a tokenizer that was loaded")
def _merges(tokenizer: Any) -> list[Any]:
    """The merge rules of a BPE tokenizer by rank; empty for other tokenizers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return list(parse_json(backend.to_str(), foreign=True)["model"].get("merges") or []) if backend is not None else []


def _id(vocabulary: dict[str, int], token: str) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "missing"


def other_template(path: Path, tokenizer: Any) -> list[str]:
    """A note on a processor in `path` whose chat template is not the tokenizer's."""
    template = template_of_processor(path)
    if template is None or template == tokenizer.chat_template:
        return []
    return [
        f"{path / PROCESSOR_TEMPLATE} has another chat template than the tokenizer, whose own is used; vLLM applies the other "
        "one to chats without tools: if a model is served so, remove the tokenizer's (chat_template in tokenizer_config.json)"
    ]


def never_emitted(stops: Sequence[int], vocabulary: int) -> list[str]:
    """Notes on stop tokens that no logits have a column for."""
    return [
        f"the stop token {token} (eos_token_id) is none of the {vocabulary:,} tokens, so no text ends with it; a generation "
        "config of another model may be the cause"
        for token in stops
        if token >= vocabulary
    ]


def stop_token_ids(path: Path, tokenizer: Any) -> list[int]:
    """The stop token ids: those of the model in `path` and the tokenizer's EOS."""
    own = tokenizer.eos_token_id
    return sorted({*stop_tokens_of(path), *([] if own is None else [own])})
