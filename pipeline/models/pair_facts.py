"""Facts of the models of a pair, as `pair.json` has them, and what they must have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.models.files import licence, model_digest
from pipeline.models.loading import dtype_bytes
from pipeline.models.shape import measure_weights, read_shape
from pipeline.models.step_shape import step_shape
from pipeline.models.tokenizers import check_columns

Facts = Mapping[str, Mapping[str, Any]]  # by role
_CACHED_TOKENS = 4096  # for which the memory of the KV cache is stated


def model_facts(path: Path, origin: Path, dtype: str, trust_remote_code: bool) -> dict[str, Any]:
    """Facts of the model at `path`, whose weights, and so whose licence, come from `origin`."""
    weights, shape = measure_weights(path, trust_remote_code), read_shape(path, trust_remote_code)
    return {
        "dtype": dtype,
        "digest": model_digest(path),
        "parameters": weights.parameters,
        "bytes": weights.bytes,
        "license": licence(origin),
        "logits_width": shape.logits_width,
        "context": shape.context,
        "cache_bytes_per_token": shape.cache_elements_per_token * dtype_bytes(dtype),
    } | ({"step_shape": steps} if (steps := step_shape(path)) is not None else {})


def check_sizes(described: Facts) -> None:
    """UsageError for a draft that is larger than its target."""
    target, draft = described["target"]["parameters"], described["draft"]["parameters"]
    if target is not None and draft > target:
        raise UsageError(
            f"pair.draft: the draft has {draft:,} parameters and the target {target:,}; "
            "a draft larger than its target cannot save time; swap the two if they are in the wrong places"
        )


def check_widths(described: Facts, tokenizer: Any) -> list[str]:
    """Notes on added tokens for which the logits of a model have no column. UsageError where other tokens have none."""
    lacking = {
        role: check_columns(tokenizer, entry["logits_width"], f"pair.{role}") for role, entry in described.items()
    }
    return [
        f"the logits of the {role} have no column for {len(tokens)} of the tokenizer's tokens, such as {tokens[0]!r}: prompts "
        "with them are not used"
        for role, tokens in lacking.items()
        if tokens
    ]


def serving_memory(described: Facts) -> dict[str, float] | None:
    """Memory for serving the pair, in bytes: weights, and the KV cache of 4,096 tokens. None for a served target."""
    if described["target"]["bytes"] is None:
        return None
    weights = sum(described[role]["bytes"] for role in ("target", "draft"))
    cache = sum(described[role]["cache_bytes_per_token"] for role in ("target", "draft"))
    return {
        "weights_bytes": weights,
        "cache_bytes_per_token": cache,
        f"cache_bytes_at_{_CACHED_TOKENS}": _CACHED_TOKENS * cache,
    }
