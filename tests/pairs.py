"""The content of `pair.json` for tests."""

from typing import Any


def model_facts(**changes: Any) -> dict[str, Any]:
    """Facts of one role."""
    sizes: dict[str, Any] = {
        "parameters": 5,
        "bytes": 20,
        "logits_width": 512,
        "context": 128,
        "cache_bytes_per_token": 8,
    }
    names = {"source": "reference", "revision": None, "dtype": "float32", "digest": "d", "license": None}
    return {**names, **sizes, **changes}


def pair_facts(**changes: Any) -> dict[str, Any]:
    """Facts of a pair of the two same models."""
    return {
        "target": model_facts(),
        "draft": model_facts(),
        "vocabulary": 512,
        "context": 128,
        "tokens": 512,
        "stop_tokens": [0],
        "chat_template": True,
        "generation_config": {},
        "impossible_variants": {},
        "differences": [],
        "memory": None,
    } | changes
