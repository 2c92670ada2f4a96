"""Facts of a served target, as `pair.json` has them: what the servers state, and what lies beside its tokenizer."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config.server import ServerConfig
from pipeline.errors import UsageError
from pipeline.models.files import licence
from pipeline.models.model_json import CONFIG
from pipeline.models.shape import read_shape
from pipeline.models.tokenizers import check_columns, columns_for
from pipeline.progress import Progress
from pipeline.servers.abilities import passes, require_defaults
from pipeline.servers.connect import connect
from pipeline.servers.identity import Identity
from pipeline.servers.target import SCORING_TOKENS
from pipeline.speculation.settings import Sampling

_CACHE_ELEMENT_BYTES = 2  # KV caches are of 16 bits by default


def served_facts(
    identity: Identity, path: Path, tokenizer: Any, revision: str | None, dtype: str, api: str, trust_remote_code: bool
) -> dict[str, Any]:
    """`path`: the directory of its tokenizer, which may have its config.json. UsageError for a config.json of another
    model, and where nothing states how long a sequence may be."""
    shape = read_shape(path, trust_remote_code) if (path / CONFIG).is_file() else None
    limits = [limit for limit in (identity.model.context, shape.context if shape else None) if limit is not None]
    if shape is not None:
        check_columns(tokenizer, shape.logits_width, f"pair.target: {path}")
    if not limits:
        raise UsageError(
            f"pair.target: {api} does not report its context length; put the target's config.json into {path}"
        )
    return {
        "source": identity.model.root,
        "revision": revision,
        "dtype": dtype,
        "digest": identity.digest,
        "parameters": None,
        "bytes": None,
        "license": licence(path),
        "logits_width": shape.logits_width if shape else columns_for(tokenizer),
        "context": min(limits) - SCORING_TOKENS,
        "cache_bytes_per_token": shape.cache_elements_per_token * _CACHE_ELEMENT_BYTES if shape else None,
    }


async def log_probability_facts(
    servers: ServerConfig,
    identity: Identity,
    vocabulary: int,
    samplings: Sequence[Sampling],
    deployed: Sampling | None,
    progress: Progress,
) -> dict[str, Any]:
    """What the servers' log-probabilities mean. UsageError if they do not suffice for completions at `samplings`, or if the
    servers sample by other defaults than `deployed`; None: their defaults do not matter."""
    async with connect(servers, identity, vocabulary, progress) as (target, abilities):
        for sampling in samplings:
            passes(sampling, abilities, servers.logprobs, vocabulary, target.asking.api)
        if deployed is not None:
            endpoint = await target.pool.any_endpoint()
            await require_defaults(endpoint, target.asking, deployed)
    return dataclasses.asdict(abilities)
