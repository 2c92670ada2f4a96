"""pair: resolves target and base draft, checks that they are of one model family, and measures them."""

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import torch

from pipeline.config.pair import ModelSource, PairConfig, TargetSource
from pipeline.errors import UsageError
from pipeline.generation.completion_store import canonical
from pipeline.models.draft_directory import TRAINED_ON
from pipeline.models.files import model_digest, tokenizer_digest
from pipeline.models.generation_config import sampling_defaults
from pipeline.models.loading import choose_device, dtype_bytes, load_model, load_tokenizer, read_model_config
from pipeline.models.shape import measure_weights, read_shape
from pipeline.models.stored_pair import PAIR_FILE, source_directory
from pipeline.models.surgery import added_tokens, extend_vocabulary, prune_layers
from pipeline.models.tokenizers import check_same_family, legal_differences, stop_token_ids
from pipeline.quantization.block_sizes import impossible_variants
from pipeline.reference.recipe import make_reference_pair
from pipeline.reference.text import read_text
from pipeline.running.context import Outcome, StageContext
from pipeline.servers.abilities import passes, require_defaults
from pipeline.servers.connect import connect
from pipeline.servers.identity import Identity
from pipeline.servers.target import SCORING_TOKENS
from pipeline.speculation.choice import proved_way
from pipeline.speculation.settings import Sampling
from pipeline.store.files import content_key, file_sha256, write_json


def run(context: StageContext) -> Outcome:
    """Check that the models are a pair, and write `pair.json` and the tokenizer; for the reference pair, train its models first.

    Inputs: the models, or the text that the reference pair is trained on. UsageError or UnderstudyError for models that cannot be
    used together.
    """
    pair = context.config.pair
    figures = _reference(context) if pair.is_reference else {}
    paths = {role: _locate(context, role) for role in ("target", "draft", "target_before") if _has_role(pair, role)}
    target = load_tokenizer(paths["target"], pair.trust_remote_code)
    draft, notes = _base_draft(context, paths, target)
    origins, paths = paths, paths | {"draft": draft}
    if "target_before" in paths:
        _check_before(target, load_tokenizer(paths["target_before"], pair.trust_remote_code))
    described = {role: _describe(context, role, path, origins[role], len(target)) for role, path in paths.items()}
    _check_sizes(described)
    _check_width(described, target)
    # Logits may be padded to different widths; what both can express is the vocabulary of the pair.
    vocabulary = min(entry["logits_width"] for entry in described.values())
    for role, path in paths.items():
        if not (role == "target" and pair.target.is_served):
            described[role]["forward"] = _prove_forward(context, role, path, vocabulary)
    if pair.target.is_served:
        described["target"]["log_probabilities"] = asyncio.run(_check_servers(context, vocabulary))
    target.save_pretrained(context.out / "tokenizer")
    facts = {
        **described,
        "vocabulary": vocabulary,
        "context": min(entry["context"] for entry in described.values()),
        "tokens": len(target),
        "stop_tokens": stop_token_ids(paths["target"], target),
        # What `running/pair_checks.py` compares a config with.
        "chat_template": bool(target.chat_template),
        "generation_config": sampling_defaults(paths["target"]),
        "impossible_variants": impossible_variants(paths["draft"], pair.trust_remote_code),
        "differences": notes,
        "memory": _memory(described),
    }
    if pair.target.is_served:
        facts["served"] = dict(context.facts["target"])
    write_json(context.out / PAIR_FILE, facts)
    provides = {role: entry["digest"] for role, entry in described.items()}
    provides["shared"] = content_key([facts["vocabulary"], facts["stop_tokens"], facts["context"]])
    provides["tokenizer"] = tokenizer_digest(context.out / "tokenizer")
    if pair.is_reference:
        provides["prompts"] = content_key(file_sha256(context.out / "prompts.jsonl"))
    figures |= {
        f"{role}_parameters": float(entry["parameters"]) for role, entry in described.items() if entry["parameters"]
    }
    return Outcome(figures, provides, {"differences": notes, "memory": facts["memory"]})


def _has_role(pair: PairConfig, role: str) -> bool:
    return role != "target_before" or pair.is_reference or pair.target_before is not None


def _locate(context: StageContext, role: str) -> Path:
    """The directory a role's model comes from: outside the store, this artifact for the reference pair, or the target's for a
    draft made of the target's layers."""
    pair = context.config.pair
    if pair.is_reference:
        return context.out / role
    return source_directory(pair, "target" if role == "draft" and pair.draft.is_of_target else role)


def _base_draft(context: StageContext, paths: dict[str, Path], tokenizer: Any) -> tuple[Path, list[str]]:
    """The base draft's directory, and notes about it. The draft is made here where the config asks for some of the target's
    layers, and where the target has gained tokens since the draft was made."""
    pair, out = context.config.pair, context.out / "draft"
    if not pair.draft.is_of_target and read_model_config(paths["draft"]).get("quantization_config"):
        raise UsageError(
            f"pair.draft: {pair.draft.source} is quantized, so it cannot be trained; set a draft with float weights "
            "(quantize makes the variants)"
        )
    if pair.draft.is_of_target:
        assert pair.draft.layers is not None  # validated by the config
        target = load_model(paths["target"], pair.draft.dtype, torch.device("cpu"), pair.trust_remote_code)
        model, chosen = prune_layers(target, pair.draft.layers)
        notes = [f"the draft is the target's layers {', '.join(map(str, chosen))} of {target.config.num_hidden_layers}"]
    else:
        own = load_tokenizer(paths["draft"], pair.trust_remote_code)
        gained = added_tokens(tokenizer, own)
        if not gained:
            return paths["draft"], check_same_family(tokenizer, own)
        model = load_model(paths["draft"], pair.draft.dtype, torch.device("cpu"), pair.trust_remote_code)
        extend_vocabulary(model, gained)
        notes = [
            f"the draft lacked {len(gained)} tokens of the target, such as {_token(tokenizer, gained)}: rows for them were "
            "added, which the draft can use only after training",
            *legal_differences(tokenizer, own),
        ]
        if (trained_on := paths["draft"] / TRAINED_ON).exists():
            out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(trained_on, out / TRAINED_ON)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out, notes


def _check_before(target: Any, before: Any) -> None:
    if gained := added_tokens(target, before):
        raise UsageError(
            f"pair.target_before: has no token {_token(target, gained)} ({len(gained)} in all), which the target gained; it "
            "cannot read the target's prompts; remove pair.target_before"
        )
    check_same_family(target, before)


def _token(tokenizer: Any, ids: list[int]) -> str:
    return repr(tokenizer.convert_ids_to_tokens(ids[0]))


def _reference(context: StageContext) -> dict[str, float]:
    recipe = context.config.pair.reference
    text = read_text(context.inputs["text"], recipe.text_megabytes)
    return make_reference_pair(
        context.out, recipe, text, context.config.seed, choose_device(context.config.device), context.progress
    )


def _describe(context: StageContext, role: str, path: Path, origin: Path, tokens: int) -> dict[str, Any]:
    """Facts of a role's model at `path`, whose weights, and so whose licence, come from `origin`. `tokens`: of the tokenizer."""
    if role == "target" and context.config.pair.target.is_served:
        return _describe_served(context, path, tokens)
    source: ModelSource | TargetSource = getattr(context.config.pair, role) or context.config.pair.target
    weights, shape = measure_weights(path), read_shape(path, context.config.pair.trust_remote_code)
    return {
        "source": source.source,
        "revision": source.revision,
        "dtype": source.dtype,
        "digest": model_digest(path),
        "parameters": weights.parameters,
        "bytes": weights.bytes,
        "license": _license(origin),
        "logits_width": shape.logits_width,
        "context": shape.context,
        "cache_bytes_per_token": shape.cache_elements_per_token * dtype_bytes(source.dtype),
    }


def _describe_served(context: StageContext, path: Path, tokens: int) -> dict[str, Any]:
    """Facts of a served target: what the servers say, and what the directory of its tokenizer says if it has a config.json."""
    source, served = context.config.pair.target, Identity.from_facts(context.facts["target"])
    shape = read_shape(path, context.config.pair.trust_remote_code) if (path / "config.json").is_file() else None
    limits = [limit for limit in (served.model.context, shape.context if shape else None) if limit is not None]
    if shape is not None and shape.logits_width < tokens:
        raise UsageError(
            f"{path}: its config.json is of another model: its vocab_size is {shape.logits_width:,}, and the tokenizer has "
            f"{tokens:,} tokens"
        )
    if not limits:
        raise UsageError(
            f"pair.target: {context.config.generate.server.api} does not report its context length; put the target's "
            f"config.json into {path}"
        )
    return {
        "source": served.model.root,
        "revision": source.revision,
        "dtype": source.dtype,
        "digest": served.digest,
        "parameters": None,
        "bytes": None,
        "license": _license(path),
        "logits_width": shape.logits_width if shape else tokens,
        "context": min(limits) - SCORING_TOKENS,
        "cache_bytes_per_token": shape.cache_elements_per_token * 2
        if shape
        else None,  # KV caches are of 16 bits by default
    }


async def _check_servers(context: StageContext, vocabulary: int) -> dict[str, Any]:
    """What the servers' log-probabilities mean. UsageError if they do not suffice for the completions, or if the servers sample
    by other defaults than `sampling`."""
    config = context.config
    settings, identity = config.generate.server, Identity.from_facts(context.facts["target"])
    samplings = [config.sampling, *config.generate.examination_samplings]
    samplings += [config.sampling.model_copy(update={"temperature": one}) for one in config.generate.train_temperatures]
    async with connect(settings, identity, vocabulary, context.progress) as (target, abilities):
        for sampling in samplings:
            passes(
                canonical(Sampling.from_config(sampling)),
                abilities,
                settings.logprobs,
                vocabulary,
                target.asking.api,
            )
        if config.pair.generation_config == "check":
            endpoint = await target.pool.any_endpoint()
            await require_defaults(endpoint, target.asking, Sampling.from_config(config.sampling))
    return dataclasses.asdict(abilities)


def _prove_forward(context: StageContext, role: str, path: Path, vocabulary: int) -> str:
    """How the decoder computes this model here. UsageError for an architecture that it cannot compute: found here, not after the
    corpus is read."""
    pair = context.config.pair
    source: ModelSource | TargetSource = getattr(pair, role) or pair.target
    model = load_model(path, source.dtype, choose_device(context.config.device), pair.trust_remote_code)
    try:
        return proved_way(model, vocabulary)
    except UsageError as error:
        raise UsageError(f"pair.{role}: {error}") from error


def _license(path: Path) -> str | None:
    """The licence in the header of a model's card, where there is one."""
    for name in ("README.md", "card.md"):
        if (path / name).is_file():
            for line in (path / name).read_text(encoding="utf-8", errors="replace").splitlines()[:60]:
                if line.startswith("license:"):
                    return line.partition(":")[2].strip() or None
    return None


def _check_sizes(described: dict[str, dict[str, Any]]) -> None:
    target, draft = described["target"]["parameters"], described["draft"]["parameters"]
    if target is not None and draft > target:
        raise UsageError(
            f"pair.draft: the draft has {draft:,} parameters and the target {target:,}; "
            "a draft larger than its target cannot save time; swap the two if they are in the wrong places"
        )


def _check_width(described: dict[str, dict[str, Any]], tokenizer: Any) -> None:
    """Logits may have more columns than the tokenizer has tokens, but not fewer."""
    for role, entry in described.items():
        if entry["logits_width"] < len(tokenizer):
            token = tokenizer.convert_ids_to_tokens(entry["logits_width"])
            raise UsageError(
                f"pair.{role}: its logits have {entry['logits_width']} columns and the tokenizer "
                f"{len(tokenizer)} tokens; {token!r} is the first without a column; take the tokenizer of this model"
            )


def _memory(described: dict[str, dict[str, Any]]) -> dict[str, float] | None:
    """Memory for serving the pair, in bytes: weights, and the KV cache of 4,096 tokens. None for a served target."""
    if described["target"]["bytes"] is None:
        return None
    weights = sum(described[role]["bytes"] for role in ("target", "draft"))
    cache = sum(described[role]["cache_bytes_per_token"] for role in ("target", "draft"))
    return {"weights_bytes": weights, "cache_bytes_per_token": cache, "cache_bytes_at_4096": 4096 * cache}
