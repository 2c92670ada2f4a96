"""README.md of an exported directory."""

from collections.abc import Sequence

from pipeline.acceptance.schema import Bounds
from pipeline.escaping.markup import code, markdown
from pipeline.export.plan import ExportPlan
from pipeline.export.reload import reloading
from pipeline.export.schema import FILE, ExpectedCounters
from pipeline.export.target import target_name
from pipeline.judgement.headline import interval
from pipeline.registry.named import Draft

_FRESH = 1_000
_HEAD = "the head: weights and config; its tokenizer is the target's"
_WHAT = {
    "draft": "the draft: weights, config, tokenizer",
    "draft.gguf": "the draft with its tokenizer, converted by llama.cpp's converter",
    "launch.sh": "starts the engine with the target and this draft; arguments are added to the command",
    "launch.txt": "how to use the draft in Python",
    "speculative-config.json": "the value of `--speculative-config`, for a start command of your own",
    "speculative-config-synthetic.json": "the same with imposed acceptance (`synthetic`), for load tests",
    "config.yaml": "the options that launch.sh passes to `trtllm-serve`",
    FILE: "what the engine's counters should show",
    "README.md": "this file",
}


def readme(plan: ExportPlan, expected: ExpectedCounters, names: Sequence[str]) -> str:
    """The page. `names`: the files and directories beside it."""
    draft, facts = plan.draft, plan.facts
    what = _WHAT | ({"draft": _HEAD} if draft.kind.reads_states else {})
    target = draft.pair.facts["target"]
    pinned = f"revision {code(target['revision'])}" if target["revision"] else f"digest `{target['digest']}`"
    licences = (_licence_of_draft(draft), target["license"] or "not stated")
    lines = [
        f"# {markdown(draft.label)}, for {facts.title}",
        "",
        f"A draft model for speculative decoding with {code(target['source'])} ({pinned}). The facts about {facts.title} are "
        f"those of version {facts.checked}.",
        "",
        f"Licences: of the draft {markdown(licences[0])}, of the target {markdown(licences[1])}.",
        "",
        "| file | what it is |",
        "|---|---|",
        *(f"| `{name}` | {what[name]} |" for name in sorted({*names, "README.md"})),
        "",
        "## Serve",
        "",
        *_serving(plan),
        "",
        "## Check the counters",
        "",
        *_counters(plan, expected),
        "",
        "## Reload",
        "",
        *reloading(plan),
    ]
    if plan.notes:
        lines += ["", "## Warnings", "", *(f"- {markdown(note[0].upper() + note[1:])}." for note in plan.notes)]
    return "\n".join(lines) + "\n"


def _licence_of_draft(draft: Draft) -> str:
    """That of its base, unless the config states another."""
    return draft.config.promote.license or draft.pair.facts["draft"]["license"] or "not stated"


def _serving(plan: ExportPlan) -> list[str]:
    lengths = plan.lengths
    drafting = f"Draft tokens are chosen {'by sampling' if plan.drafting == 'probabilistic' else 'greedily'}"
    drafting += (
        f", {lengths.gamma} at a time"
        if not lengths.by_batch
        else f", at most {lengths.gamma} at a time, by batch size"
    )
    lines = [
        "`launch.txt` has the lines." if plan.engine == "transformers" else "    ./launch.sh --port 8000",
        "",
        f"{drafting}. The expected figures hold for this setting only.",
        *(line for issue in plan.cpu_issues for line in ("", f"On a CPU: {issue}.")),
    ]
    if plan.draft.config.pair.target.is_served and plan.engine != "transformers":
        lines += [
            "",
            f"The target is loaded from {code(str(target_name(plan.draft)))}, the name that the server of the completions uses. "
            "Set `TARGET` if it is in another place. Later runs need a server that does not speculate: keep one running.",
        ]
    if plan.engine == "vllm":
        lines += [
            "",
            "For load tests of the engine, pass `speculative-config-synthetic.json` instead: tokens are accepted at the "
            "expected rates, so throughput is as in production even with random weights (`--load-format dummy`). "
            "The text is wrong.",
        ]
    return lines


def _counters(plan: ExportPlan, expected: ExpectedCounters) -> list[str]:
    names = plan.facts.counters
    figures = expected.deployed.by_draft_length[plan.lengths.gamma]
    rates = ", ".join(f"{rate:.3f}" for rate in figures.accepted_per_position)
    fresh = figures.fresh_prompts[_FRESH]
    lines = [
        f"At the deployment's sampling, over prompts like the {expected.deployed.prompts:,} examined ones:",
        "",
        f"| figure | expected | over {_FRESH:,} other prompts | from |",
        "|---|---|---|---|",
        f"| mean acceptance length | {interval(figures.mean_acceptance_length, 3)} | {_between(fresh)} | "
        f"{_ratio('1 + ', names.accepted, names.drafts)} |",
        f"| accepted by position | {rates} | | {_ratio('', names.by_position, names.drafts)} |",
        "",
        "Take differences of counters over a period of time: they count from the start of the engine. Compare them with the "
        f"interval for as many prompts as were served ({expected.confidence:.0%}): that of the expected value is narrower, "
        "because it does not contain the chance of which prompts come. `expected.json` has it for other numbers of prompts, "
        "every examined draft length, more digits, and the figures at temperature 0.",
    ]
    if plan.lengths.by_batch:
        lines += [
            "",
            f"These figures are for {plan.lengths.gamma} draft tokens. With the schedule they are a mixture over batch sizes; "
            "`expected.json` has the figures of each length.",
        ]
    return [
        *lines,
        *(["", f"Counters: {names.note}."] if names.note else []),
        *(["", *expected.notes] if expected.notes else []),
    ]


def _between(bounds: Bounds) -> str:
    return "no interval" if bounds.low is None or bounds.high is None else f"{bounds.low:.3f} to {bounds.high:.3f}"


def _ratio(before: str, above: str, below: str) -> str:
    return f"{before}`{above}` / `{below}`" if above and below else "no counter"
