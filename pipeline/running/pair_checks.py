"""Checks a config against the facts of its pair, before anything expensive runs, and fills in what the pair decides.

The facts are those in `pair.json`. Torch-free: a run whose artifacts are all in the store is checked too.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.config.corpus import DEFAULT_PROMPT_TOKENS
from pipeline.config.quantize import DEFAULT_VARIANTS, QuantizedVariant
from pipeline.config.root import Config
from pipeline.drafts.kinds import KINDS, PLAIN
from pipeline.engines.facts import FACTS
from pipeline.errors import UsageError

Facts = Mapping[str, Any]

_SWITCH_OFF = (
    "if the server does not use the file (vLLM: --generation-config vllm; SGLang: --sampling-defaults openai) or every request "
    "sets its own values, set pair.generation_config to ignore"
)


def apply_pair(config: Config, facts: Facts) -> tuple[Config, list[str]]:
    """The config with `corpus.max_prompt_tokens`, `generate.distribution_tokens` and `quantize.variants` as this pair needs them
    where they are left open, and notes on what that leaves out. Raises UsageError, which names the key, for a setting that cannot
    work with this pair."""
    if config.pair.generation_config == "check":
        _check_generation_config(config, facts["generation_config"])
    _check_chat_template(config, facts)
    _check_training(config)
    head = facts.get("head") or {}
    longest = head.get("longest")
    kind = KINDS[head["kind"]] if head else PLAIN
    try:
        config.require_for(kind, longest, head.get("traits", ()))
    except ValueError as error:
        raise UsageError(str(error)) from None
    generate = config.generate
    if generate.distribution_tokens == "auto":
        stored = min(generate.stored_tokens, facts["vocabulary"] - 1)
        generate = generate.model_copy(update={"distribution_tokens": stored})
    elif generate.distribution_tokens >= facts["vocabulary"]:
        raise UsageError(
            f"generate.distribution_tokens = {generate.distribution_tokens}: it must be lower than the pair's "
            f"{facts['vocabulary']} tokens; lower it"
        )
    limit, notes = _prompt_limit(config, facts["context"])
    variants, left_out = _variants(config, facts["impossible_variants"])
    filled = {
        "corpus": config.corpus.model_copy(update={"max_prompt_tokens": limit}),
        "generate": generate,
        "quantize": config.quantize.model_copy(update={"variants": variants}),
    }
    return config.model_copy(update=filled), [*notes, *left_out, *_unused_load(config), *_lacks_for_export(config)]


def _unused_load(config: Config) -> list[str]:
    """A load predicts nothing without step times, and nobody who states one expects that."""
    if config.gate.load is None or config.gate.profile:
        return []
    only = "only gate.max_memory_megabytes uses it" if config.gate.max_memory_megabytes else "it decides nothing"
    return [
        f"gate.load: without gate.profile no latency and no speedup is predicted at this load, and {only}; measure step times "
        "with `understudy profile` and name the file in gate.profile"
    ]


def _lacks_for_export(config: Config) -> list[str]:
    """What an export would lack is reported before anything is paid for."""
    target, export = config.pair.target, config.promote.export
    if not target.is_served or target.tokenizer is None or (Path(target.tokenizer) / "config.json").is_file():
        return []
    if not Path(target.tokenizer).is_dir():  # on the hub, which has it
        return []
    missing = f"{target.tokenizer} has no config.json of the target"
    if export is not None and FACTS[export.engine].equal_widths:
        raise UsageError(
            f"promote.export.engine is {export.engine}, and {missing}, which this export needs; put it there"
        )
    return [f"pair.target.tokenizer: {missing}; exports to vLLM, SGLang and others need it there"]


def left_out_variants(facts: Facts) -> dict[QuantizedVariant, str]:
    """The reason for each default variant that this pair cannot have."""
    return {variant: reason for variant in DEFAULT_VARIANTS if (reason := facts["impossible_variants"].get(variant))}


def _prompt_limit(config: Config, context: int) -> tuple[int, list[str]]:
    """The longest prompt: with its completion it must fit the context of both models."""
    given, least = config.corpus.max_prompt_tokens, config.corpus.min_prompt_tokens
    new = config.generate.max_new_tokens + config.generate.lookahead
    room = context - new
    fits = f"the pair's context of {context:,} tokens, minus {new} for generate.max_new_tokens + generate.lookahead"
    if room < least:
        raise UsageError(
            f"generate.max_new_tokens = {config.generate.max_new_tokens}: {fits}, leaves no room for a prompt of "
            f"corpus.min_prompt_tokens = {least}; lower generate.max_new_tokens"
        )
    if given is not None and given > room:
        raise UsageError(
            f"corpus.max_prompt_tokens = {given}: {fits}, leaves {room:,}; lower it, or set it to null for what fits"
        )
    limit = min(DEFAULT_PROMPT_TOKENS, room) if given is None else given
    if limit < least:
        raise UsageError(f"corpus.min_prompt_tokens = {least}: above the longest prompt, {limit:,} tokens; lower it")
    shorter = given is None and limit < DEFAULT_PROMPT_TOKENS
    return limit, [f"corpus: prompts have at most {limit:,} tokens: {fits}"] if shorter else []


def _variants(config: Config, impossible: Mapping[str, str]) -> tuple[tuple[QuantizedVariant, ...], list[str]]:
    quantize = config.quantize
    wanted = quantize.loadable
    if quantize.variants is not None:
        for variant in quantize.variants:
            if variant not in wanted:
                raise UsageError(f"quantize.variants: {quantize.engine} does not load {variant}; remove it")
            if variant in impossible:
                raise UsageError(f"quantize.variants: {impossible[variant]}; remove {variant} from quantize.variants")
        return quantize.variants, []
    for name in config.gate.profile:
        if name in impossible:
            raise UsageError(f"gate.profile.{name}: {impossible[name]}; remove the profile")
    notes = [f"quantize: {variant} is left out: {impossible[variant]}" for variant in wanted if variant in impossible]
    return tuple(variant for variant in wanted if variant not in impossible), notes


def _check_chat_template(config: Config, facts: Facts) -> None:
    if facts["chat_template"]:
        return
    if config.corpus.chat_template:
        raise UsageError(
            "corpus.chat_template = true: the target's tokenizer has no chat template; set it to false or null"
        )
    for number, source in enumerate(config.corpus.sources):
        if source.every_turn:
            raise UsageError(
                f"corpus.sources.{number}.every_turn = true: chats need a chat template, and the target's tokenizer has none; "
                "set it to false and use plain prompts"
            )


def _check_training(config: Config) -> None:
    if config.distill.lora is not None and find_spec("peft") is None:
        raise UsageError("distill.lora needs peft: pip install 'understudy[lora]'")


def _check_generation_config(config: Config, defaults: Mapping[str, Any]) -> None:
    """What a server takes over from the file must be what `sampling` sets."""
    different = dict(_contradicted(config, defaults))
    if different:
        listed = ", ".join(f"{key} {defaults[key]!r} ({why})" for key, why in different.items())
        raise UsageError(
            f"pair.target: vLLM and SGLang sample by the defaults in its generation_config.json: {listed}; set `sampling` to "
            f"what the deployment uses; {_SWITCH_OFF}"
        )


def _contradicted(config: Config, defaults: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of the file that the config contradicts or cannot express, each with the reason."""
    settings = config.sampling.model_dump()
    for key, value in defaults.items():
        if key == "max_new_tokens":
            if not isinstance(value, int) or value < config.generate.max_new_tokens:
                yield key, f"generate.max_new_tokens is {config.generate.max_new_tokens}"
        elif key not in settings:
            yield key, "which `sampling` cannot express"
        elif settings[key] != value and (settings["temperature"] or key == "temperature"):
            yield key, f"sampling.{key} is {settings[key]:g}"
