"""Tokenizer compatibility of target and draft, and stop tokens."""

from pathlib import Path
from typing import Any

from pipeline.errors import UnderstudyError
from pipeline.models.model_json import find_generation_config
from pipeline.store.json_text import parse_json


def check_same_family(target: Any, draft: Any) -> list[str]:
    """Compare two tokenizers. Returns the allowed differences for the report: EOS, pad, chat template.

    Raises UnderstudyError naming a token if the same text could be tokenised differently.
    """
    theirs, ours = target.get_vocab(), draft.get_vocab()
    if theirs != ours:
        token = min((theirs.keys() ^ ours.keys()) or {t for t in theirs if theirs[t] != ours[t]})
        raise UnderstudyError(
            f"draft and target have different tokenizers: token {token!r} is {_id(theirs, token)} for the target and "
            f"{_id(ours, token)} for the draft ({len(theirs)} and {len(ours)} tokens); choose a draft with the target's tokenizer"
        )
    if (difference := split_difference(target, draft)) is not None:
        raise UnderstudyError(
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
    split = next((one for one, other in zip(_merges(target), _merges(draft), strict=False) if one != other), None)
    if split is not None:
        return f"the target's merge {split} has another rank in the draft"
    probe = "def f(x):\n\treturn  [1234, 'äöü', \"漢字\"]  # ok 🙂 \r\n"
    same = target(probe)["input_ids"] == draft(probe)["input_ids"]
    return None if same else "another normaliser or special tokens"


def _merges(tokenizer: Any) -> list[Any]:
    """The merge rules of a BPE tokenizer by rank; empty for other tokenizers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return list(parse_json(backend.to_str(), foreign=True)["model"].get("merges") or []) if backend is not None else []


def _id(vocabulary: dict[str, int], token: str) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "missing"


def stop_token_ids(path: Path, tokenizer: Any) -> list[int]:
    """The stop token ids: those of the generation config and the tokenizer's EOS."""
    own = tokenizer.eos_token_id
    return sorted({*find_generation_config(path).stop_tokens, *([] if own is None else [own])})
