"""The draft card: what a promoted draft is, its figures, how to serve it, in Markdown; no I/O.

A missing figure or fact is an error: readers would trust an incomplete card.
"""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.acceptance.schema import Figure, ProfileConditions
from pipeline.drafts.kinds import KINDS, Kind, rates_are_of
from pipeline.errors import UnderstudyError
from pipeline.escaping.markup import code, markdown
from pipeline.judgement.headline import headline, outcome, power_summary, undo
from pipeline.judgement.new_vocabulary import HEADER, lines, table
from pipeline.judgement.schema import CANDIDATE, FILE, Decision, DraftFigures

DRAFT = "draft"  # the directory of the weights in a registered version


def examined(decision: Decision) -> DraftFigures:
    """The candidate's figures over the prompts that decided. UnderstudyError if there are none at the decision's gamma."""
    figures = decision.drafts.get(CANDIDATE)
    if figures is None:
        raise UnderstudyError(f"{FILE}: it has no figures of the candidate; run the gate again")
    if decision.gamma not in figures.tokens_per_target_call:
        known = ", ".join(map(str, figures.tokens_per_target_call))
        raise UnderstudyError(f"{FILE}: no tokens_per_target_call at gamma {decision.gamma}; it has gamma {known}")
    return figures


def card(facts: Mapping[str, Any]) -> str:
    """The card in Markdown.

    `facts`: name, digest, quantization, run, license, target and base (source, revision, digest, parameters),
    serving (bytes, cache_bytes_per_token, batch, context), train_prompts, decision, provenance (what: key).
    Raises UnderstudyError naming the fact that is missing.
    """
    try:
        decision: Decision = facts["decision"]
        sections = [
            _header(facts),
            _summary(facts),
            _acceptance(decision),
            _vocabulary(decision),
            _decision(decision),
            _serving(decision),
            _limits(facts),
            _provenance(facts),
        ]
    except KeyError as error:
        raise UnderstudyError(f"draft card: {error} is missing") from None
    return "\n\n".join(section for section in sections if section) + "\n"


def version_description(decision: Decision, name: str, run: str, at: str) -> str:
    """The description of a registered version of model `name` in Markdown: the decision, how to serve it, how to undo."""
    first, *rest = headline(decision)
    facts = [
        *map(markdown, [*rest, *power_summary(decision)]),
        f"registered by run `{run}` at {at}; its artifact `review.html` has the rest",
    ]
    candidate = decision.drafts.get(CANDIDATE)
    head = candidate is not None and KINDS[candidate.draft.kind].reads_states
    commands = [
        *(
            [f"Serve the champion with vLLM, from the directory `{DRAFT}` of this version:", "", *_vllm(decision)]
            if head
            else [
                "Serve the champion (`--engine` names the engine):",
                "",
                "```",
                f"understudy champion export {name}@champion --engine vllm --out served-draft",
                "./served-draft/launch.sh",
                "```",
            ]
        ),
        *(["", undo(decision)] if undo(decision) else []),
    ]
    return "\n".join([f"**{markdown(first)}**", "", *(f"- {line}" for line in facts), "", *commands])


def _header(facts: Mapping[str, Any]) -> str:
    kind = _kind(facts["decision"])
    tags = ", ".join(["speculative-decoding", kind.name if kind.reads_states else "draft-model", "understudy"])
    lines = ["---", *([] if kind.reads_states else ["library_name: transformers"]), f"tags: [{tags}]"]
    if facts["license"]:
        lines.append(f"license: {json.dumps(facts['license'])}")
    return "\n".join([*lines, "---"])


def _summary(facts: Mapping[str, Any]) -> str:
    target, base, draft = facts["target"], facts["base"], examined(facts["decision"]).draft
    licence = facts["license"] or "not stated by the base draft; set promote.license"
    return "\n".join(
        [
            f"# {markdown(facts['name'])}",
            "",
            f"{_what(_kind(facts['decision']))} for speculative decoding with **{markdown(target['source'])}**. It is distilled",
            "from completions of that target and is useful only with it: the target decides every token, the draft decides the",
            "speed.",
            "",
            "| fact | value |",
            "|---|---|",
            f"| target | {_model(target)} |",
            f"| base draft | {_model(base)} |",
            f"| licence | {markdown(licence)} |",
            f"| licence of the target | {markdown(target['license'] or 'not stated')} |",
            f"| training prompts | {int(facts['train_prompts']):,} |",
            f"| size | {draft.parameters:,} parameters, {draft.bytes / 1e6:,.1f} MB |",
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
    pinned = f"revision {code(entry['revision'])}" if entry["revision"] else f"digest `{entry['digest']}`"
    size = "" if entry["parameters"] is None else f", {int(entry['parameters']):,} parameters"
    return f"{markdown(entry['source'])}, {pinned}{size}"


def _acceptance(decision: Decision) -> str:
    figures, gamma = examined(decision), decision.gamma
    conditions, omega = figures.conditions, figures.tokens_per_target_call[gamma]
    level = f"{100 * conditions.confidence:g}%"
    drawn = "chosen greedily (argmax)" if _greedy(conditions) or _kind(decision).greedy else "sampled"
    lines = [
        f"## Examination at temperature {conditions.sampling.temperature:g}",
        "",
        f"On {figures.prompts:,} examination prompts, which are in no training set; {level} intervals over prompts. "
        f"Convention for target calls: `{conditions.convention}`. Draft tokens are {drawn}.",
        "",
        rates_are_of([_kind(decision).by_token], gamma),
        "",
        f"| metric | value | {level} interval |",
        "|---|---:|---|",
        f"| acceptance rate | {figures.acceptance_rate.value:.3f} | {_bounds(figures.acceptance_rate, 3)} |",
        f"| tokens per target call, gamma {gamma} | {omega.value:.2f} | {_bounds(omega, 2)} |",
        "",
        f"| domain | prompts | acceptance rate | {level} interval |",
        "|---|---:|---:|---|",
    ]
    for name, entry in sorted(figures.domains.items()):
        rate = entry.acceptance_rate
        lines.append(f"| {markdown(name)} | {entry.prompts:,} | {rate.value:.3f} | {_bounds(rate, 3)} |")
    if figures.by_segment:
        lines += [
            "",
            f"| segment | of tokens | acceptance rate | {level} interval | acceptance of its first tokens |",
            "|---|---:|---:|---|---:|",
        ]
    for name, part in figures.by_segment.items():
        rate, begins = part.acceptance_rate, part.acceptance_of_begins
        first = "-" if begins is None else f"{begins.value:.3f}"
        lines.append(f"| {markdown(name)} | {part.share:.0%} | {rate.value:.3f} | {_bounds(rate, 3)} | {first} |")
    return "\n".join(lines)


def _vocabulary(decision: Decision) -> str:
    """The section on a base draft that had another tokenizer; empty for others."""
    vocabulary = decision.new_vocabulary
    if vocabulary is None:
        return ""
    origin = "Rows that are mapped are computed from the target's embedding, so its licence holds for them too."
    rows = ["| " + " | ".join(markdown(cell) for cell in cells) + " |" for cells in (HEADER, *table(vocabulary))]
    rows.insert(1, "|---|---:|---:|---:|---:|")
    said = [f"{markdown(line)}." for line in lines(decision)]
    mapped = [origin] if "mapped" in vocabulary.rows else []
    return "\n".join(["## The target's vocabulary", "", *said, *mapped, "", *rows])


def _bounds(figure: Figure, digits: int) -> str:
    if figure.low is None or figure.high is None:
        return "unknown (too few prompts)"
    return f"{figure.low:.{digits}f} to {figure.high:.{digits}f}"


def _kind(decision: Decision) -> Kind:
    return KINDS[examined(decision).draft.kind]


def _what(kind: Kind) -> str:
    return f"A head of kind {kind.name} ({kind.summary})" if kind.reads_states else "A draft model"


def _greedy(conditions: ProfileConditions) -> bool:
    return conditions.draft_sampling == "greedy" or conditions.sampling.temperature == 0


def _decision(decision: Decision) -> str:
    lines = ["## Why it passed", ""]
    lines += (
        [f"**{markdown(outcome(decision)[:1].upper() + outcome(decision)[1:])}.**", ""] if decision.warnings else []
    )
    lines += [f"- {markdown(reason)}" for reason in decision.reasons]
    lines += [f"- {markdown(rule.name)}: {rule.verdict}. {markdown(rule.text)}" for rule in decision.rules]
    lines += [f"- power of {markdown(line)}" for line in power_summary(decision)]
    return "\n".join(lines)


def _serving(decision: Decision) -> str:
    transformers = [
        "",
        "Transformers (which reads these settings from the draft, not from the call):",
        "",
        "```python",
        'draft = AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_DIRECTORY")',
        f"draft.generation_config.num_assistant_tokens = {decision.gamma}",
        'draft.generation_config.num_assistant_tokens_schedule = "constant"',
        "draft.generation_config.assistant_confidence_threshold = 0.0",
        "target.generate(**inputs, assistant_model=draft)",
        "```",
    ]
    others = [] if _kind(decision).reads_states else transformers
    return "\n".join(["## Serving", "", "vLLM:", "", *_vllm(decision), *others])


def _vllm(decision: Decision) -> list[str]:
    kind = _kind(decision)
    where = f"PATH_OF_THIS_VERSION/{DRAFT}" if kind.reads_states else "PATH_OF_THIS_DIRECTORY"
    settings = {"method": kind.vllm_method, "model": where, "num_speculative_tokens": decision.gamma}
    # vLLM drafts greedily by default; these figures are for sampled drafts
    if not (_greedy(examined(decision).conditions) or kind.greedy):
        settings["draft_sample_method"] = "probabilistic"
    return ["```", f"vllm serve TARGET --speculative-config '{json.dumps(settings)}'", "```"]


def _limits(facts: Mapping[str, Any]) -> str:
    target, temperature = facts["target"], examined(facts["decision"]).conditions.sampling.temperature
    alone = (
        "Without the target it computes nothing: it reads the target's hidden states."
        if _kind(facts["decision"]).reads_states
        else "Without the target the draft is a small language model; do not use its text by itself."
    )
    return "\n".join(
        [
            "## Limits",
            "",
            f"- The figures are valid for this target ({code(target['revision'] or target['digest'])}), for prompts like the "
            f"examination prompts and for temperature {temperature:g}. If one changes, examine again.",
            "- Acceptance is not speedup: the speedup depends on the time of a draft pass and a target pass on your machine.",
            f"- {alone}",
        ]
    )


def _provenance(facts: Mapping[str, Any]) -> str:
    lines = ["## Provenance", "", f"Understudy run `{facts['run']}`.", "", "| artifact | key |", "|---|---|"]
    return "\n".join(lines + [f"| {markdown(what)} | `{key}` |" for what, key in facts["provenance"].items()])
