"""The draft card: what a promoted draft is, its figures, how to serve it. From a plain dict to Markdown; no I/O.

A figure that is missing or not a number is an error: readers would trust an incomplete card.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from pipeline.errors import UnderstudyError
from pipeline.judgement.headline import UNDO, headline, power_summary
from pipeline.judgement.schema import CANDIDATE


def examined(decision: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `decision.json` that cards and tags use: the candidate's figures over the prompts that decided.

    Raises UnderstudyError naming what is missing.
    """
    gamma = str(decision["gamma"])
    try:
        found = decision["drafts"][CANDIDATE]
        conditions, omega = found["conditions"], found["tokens_per_target_call"]
        if gamma not in omega:
            raise UnderstudyError(
                f"decision.json: no tokens_per_target_call at gamma {gamma}; it has gamma {', '.join(omega)}"
            )
        return {
            "acceptance_rate": _interval(found["acceptance_rate"], "acceptance_rate"),
            "tokens_per_target_call": _interval(omega[gamma], f"tokens_per_target_call at gamma {gamma}"),
            "gamma": int(gamma),
            "domains": {
                name: {
                    "prompts": int(entry["prompts"]),
                    "acceptance_rate": _interval(entry["acceptance_rate"], f"acceptance_rate of {name}"),
                }
                for name, entry in found["domains"].items()
            },
            "prompts": sum(int(entry["prompts"]) for entry in found["domains"].values()),
            "bytes": int(found["bytes"]),
            "parameters": int(found["parameters"]),
            "temperature": float(conditions["sampling"]["temperature"]),
            "draft_sampling": str(conditions["draft_sampling"]),
            "convention": str(conditions["convention"]),
            "confidence": float(conditions["confidence"]),
        }
    except (KeyError, TypeError) as error:
        raise UnderstudyError(f"decision.json: no usable {error}; run the gate again") from None


def _interval(entry: Mapping[str, Any], name: str) -> dict[str, float | None]:
    """Bounds may be null (too few prompts); the value may not."""
    value = entry["value"]
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UnderstudyError(f"decision.json: {name} is {value!r}, not a number")
    return {"value": float(value), "low": entry["low"], "high": entry["high"]}


def card(facts: Mapping[str, Any]) -> str:
    """The card in Markdown.

    `facts`: name, digest, quantization, run, license, target and base (source, revision, digest, parameters), examined,
    serving (bytes, cache_bytes_per_token, batch, context), train_prompts, decision (reasons, rules), provenance (what: key).
    Raises UnderstudyError naming the fact that is missing.
    """
    try:
        sections = [
            _header(facts),
            _summary(facts),
            _acceptance(facts["examined"]),
            _decision(facts["decision"]),
            _serving(facts["examined"]),
            _limits(facts),
            _provenance(facts),
        ]
    except KeyError as error:
        raise UnderstudyError(f"draft card: {error} is missing") from None
    return "\n\n".join(section for section in sections if section) + "\n"


def version_description(decision: Mapping[str, Any], name: str, run: str, at: str) -> str:
    """The description of a registered version of model `name` in Markdown: the decision, how to serve it, how to undo."""
    first, *rest = headline(decision)
    facts = [
        *rest,
        *power_summary(decision),
        f"registered by run `{run}` at {at}; its artifact `review.html` has the rest",
    ]
    commands = [
        "Serve the champion (`--engine` names the engine):",
        "",
        "```",
        f"understudy champion export {name}@champion --engine vllm --out served-draft",
        "./served-draft/launch.sh",
        "```",
        "",
        UNDO,
    ]
    return "\n".join([f"**{first}**", "", *(f"- {line}" for line in facts), "", *commands])


def _header(facts: Mapping[str, Any]) -> str:
    lines = ["---", "library_name: transformers", "tags: [speculative-decoding, draft-model, understudy]"]
    if facts["license"]:
        lines.append(f"license: {json.dumps(facts['license'])}")
    return "\n".join([*lines, "---"])


def _summary(facts: Mapping[str, Any]) -> str:
    target, base, found = facts["target"], facts["base"], facts["examined"]
    licence = facts["license"] or "not stated by the base draft; set promote.license"
    return "\n".join(
        [
            f"# {facts['name']}",
            "",
            f"A draft model for speculative decoding with **{target['source']}**. It is distilled from completions of that",
            "target and is useful only with it: the target decides every token, the draft decides the speed.",
            "",
            "| fact | value |",
            "|---|---|",
            f"| target | {_model(target)} |",
            f"| base draft | {_model(base)} |",
            f"| licence | {licence} |",
            f"| training prompts | {int(facts['train_prompts']):,} |",
            f"| size | {found['parameters']:,} parameters, {found['bytes'] / 1e6:,.1f} MB |",
            f"| memory to serve | {_memory(facts['serving'])} |",
            f"| quantization | {facts['quantization']} |",
            f"| content digest | `{facts['digest']}` |",
        ]
    )


def _memory(serving: Mapping[str, Any]) -> str:
    if serving["bytes"] is None:
        return "not known: the target runs on servers"
    requests = f"{serving['batch']} request{'s' if serving['batch'] > 1 else ''}"
    return (
        f"{serving['bytes'] / 1e6:,.1f} MB: weights of both models, and KV caches of {requests} with "
        f"{serving['context']:,} tokens ({serving['cache_bytes_per_token'] / 1e3:,.1f} kB per token)"
    )


def _model(entry: Mapping[str, Any]) -> str:
    pinned = f"revision `{entry['revision']}`" if entry["revision"] else f"digest `{entry['digest']}`"
    size = "" if entry["parameters"] is None else f", {int(entry['parameters']):,} parameters"
    return f"{entry['source']}, {pinned}{size}"


def _acceptance(found: Mapping[str, Any]) -> str:
    level = f"{100 * found['confidence']:g}%"
    drawn = "chosen greedily (argmax)" if _greedy(found) else "sampled"
    lines = [
        f"## Examination at temperature {found['temperature']:g}",
        "",
        f"On {found['prompts']:,} examination prompts, which are in no training set; {level} intervals over prompts. "
        f"Convention for target calls: `{found['convention']}`. Draft tokens are {drawn}.",
        "",
        f"| metric | value | {level} interval |",
        "|---|---:|---|",
        f"| acceptance rate | {found['acceptance_rate']['value']:.3f} | {_bounds(found['acceptance_rate'], 3)} |",
        f"| tokens per target call, gamma {found['gamma']} | {found['tokens_per_target_call']['value']:.2f} "
        f"| {_bounds(found['tokens_per_target_call'], 2)} |",
        "",
        f"| domain | prompts | acceptance rate | {level} interval |",
        "|---|---:|---:|---|",
    ]
    for name, entry in sorted(found["domains"].items()):
        rate = entry["acceptance_rate"]
        lines.append(f"| {_cell(name)} | {entry['prompts']:,} | {rate['value']:.3f} | {_bounds(rate, 3)} |")
    return "\n".join(lines)


def _bounds(entry: Mapping[str, Any], digits: int) -> str:
    if entry["low"] is None or entry["high"] is None:
        return "unknown (too few prompts)"
    return f"{entry['low']:.{digits}f} to {entry['high']:.{digits}f}"


def _greedy(found: Mapping[str, Any]) -> bool:
    return bool(found["draft_sampling"] == "greedy" or found["temperature"] == 0)


def _decision(decision: Mapping[str, Any]) -> str:
    lines = ["## Why it passed", ""]
    lines += [f"- {reason}" for reason in decision["reasons"]]
    lines += [f"- {rule['name']}: {rule['verdict']}. {rule['text']}" for rule in decision["rules"]]
    lines += [f"- power of {line}" for line in power_summary(decision)]
    return "\n".join(lines)


def _serving(found: Mapping[str, Any]) -> str:
    gamma = found["gamma"]
    settings = {"method": "draft_model", "model": "PATH_OF_THIS_DIRECTORY", "num_speculative_tokens": gamma}
    if not _greedy(found):  # vLLM drafts greedily by default; these figures are for sampled drafts
        settings["draft_sample_method"] = "probabilistic"
    return "\n".join(
        [
            "## Serving",
            "",
            "vLLM:",
            "",
            "```",
            f"vllm serve TARGET --speculative-config '{json.dumps(settings)}'",
            "```",
            "",
            "Transformers (which reads these settings from the draft, not from the call):",
            "",
            "```python",
            'draft = AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_DIRECTORY")',
            f"draft.generation_config.num_assistant_tokens = {gamma}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            "draft.generation_config.assistant_confidence_threshold = 0.0",
            "target.generate(**inputs, assistant_model=draft)",
            "```",
        ]
    )


def _limits(facts: Mapping[str, Any]) -> str:
    target = facts["target"]
    return "\n".join(
        [
            "## Limits",
            "",
            f"- The figures are valid for this target ({target['revision'] or target['digest']}), for prompts like the "
            f"examination prompts and for temperature {facts['examined']['temperature']:g}. If one changes, examine again.",
            "- Acceptance is not speedup: the speedup depends on the time of a draft pass and a target pass on your machine.",
            "- Without the target the draft is a small language model; do not use its text by itself.",
        ]
    )


def _provenance(facts: Mapping[str, Any]) -> str:
    lines = ["## Provenance", "", f"Understudy run `{facts['run']}`.", "", "| artifact | key |", "|---|---|"]
    return "\n".join(lines + [f"| {_cell(what)} | `{key}` |" for what, key in facts["provenance"].items()])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
