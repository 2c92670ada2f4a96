"""docs/engines.md, made from the table of engine facts: `python -m tests.engines_page`, which `make docs` calls."""

from collections.abc import Iterator, Mapping

from pipeline.engines.facts import FACTS, AttentionFact, EngineFacts, Mixture
from pipeline.progress import say_block

_MIXTURES: Mapping[Mixture, str] = {
    "full_and_windows": "full ones and ones with a window, in either model",
    "several_windows": "windows of several sizes, and none of full attention",
    "window_of_target": "all of the target's with one window, all of the draft's full",
    "window_of_draft": "all of the draft's with one window that its config names once, all of the target's full",
    "states": "some with a recurrent state",
}
_VARIANTS = ("unquantized", "int8", "int4", "fp8")
_HEAD = """# Engines

What each engine takes as a draft, counts, and cannot do. `understudy champion export` and `quantize.engine` use the same table
(`pipeline/engines/facts.py`); this page is made from it by `make docs`. A fact holds for the version that it was checked on.

`understudy champion export CONFIG --engine ENGINE --out DIR` writes the draft in the engine's form, the command that serves the
target with it, and `expected.json` with what the engine's counters should show. INT8 and INT4 drafts are bitsandbytes
checkpoints. They are not written in the layout of compressed-tensors: no library of this project loads that layout, so a draft
in it could not be examined as it is served.

## Compare production counters

`expected.json` says what the counters show for the examined prompts, at each draft length that was examined. Production serves
other prompts. For a comparison:

1. Take differences of the counters over a period with one draft, one draft length and the sampling settings of the file, and
   compute 1 + accepted / drafts. The counters are sums over all requests; a mean of means is another figure.
2. Count the prompts (requests) of that period, N. Prompts are the unit, not tokens: tokens of one prompt are alike.
3. Compare with `fresh_prompts` of that draft length: for 100, 1,000 and 10,000 prompts that were not examined, the interval that
   contains their mean acceptance length with the probability `confidence` (0.95 by default). `low` and `high` of
   `mean_acceptance_length` are narrower and answer another question: where the figure over *all* prompts is. For N in between,
   take the next smaller number. Beyond 10,000 the interval hardly narrows, because the examined prompts are a sample too.
4. A value outside means that something differs: the traffic (domains, lengths, languages), the target or its settings, or the
   engine. One value in 20 is outside by chance, so a dashboard of 20 panels shows one at any time.

The interval is value +- t s sqrt(1/n + 1/N) with n examined prompts and s from the residuals of the ratio; the randomness of
the decode itself is added for the N prompts (Hahn and Meeker 1991, Statistical Intervals, 4.8; `acceptance/prediction.py`).
In simulations of 200 examined and 50, 200 and 1,000 other prompts it covered 0.953, 0.957 and 0.956; the confidence interval
alone 0.65, 0.85 and 0.93. It assumes that production's prompts are drawn as the examined ones were. With another mix of domains,
examine prompts of that mix.
"""


def page() -> str:
    """The whole page."""
    lines = [
        _HEAD,
        "## Overview",
        "",
        "| engine | checked on | variants | drafting (default first) | counters compared with the examination |",
    ]
    lines.append("|---|---|---|---|---|")
    lines += [_row(facts) for facts in FACTS.values()]
    for name, facts in FACTS.items():
        lines += ["", *_section(name, facts)]
    return "\n".join(lines) + "\n"


def _row(facts: EngineFacts) -> str:
    variants = ", ".join(variant for variant in _VARIANTS if variant in facts.loads) or "none"
    compared = "yes" if facts.proven else "no"
    return f"| {facts.title} | {facts.checked} | {variants} | {', '.join(facts.drafting) or 'none'} | {compared} |"


def _section(name: str, facts: EngineFacts) -> Iterator[str]:
    yield f"## {facts.title}"
    yield ""
    yield f"`--engine {name}`. Checked on {facts.checked} of [{facts.repository}](https://github.com/{facts.repository})."
    if facts.instead:
        yield ""
        yield "There is no export: " + facts.instead.replace("\n", " ")
    rows = [
        *((f"a draft of kind {kind}", setting) for kind, setting in facts.serving.items()),
        *((f"{variant} draft", layout + _computing(variant, facts)) for variant, layout in facts.loads.items()),
        *((f"{way} drafting", setting) for way, setting in facts.drafting.items()),
        ("widths of the logits", facts.widths + (" (export pads the draft)" if facts.equal_widths else "")),
        ("tensor parallelism", facts.parallel),
        *((f"attention layers: {_MIXTURES[mixture]}", _attention(fact)) for mixture, fact in facts.attention.items()),
        *((f"counter: {what}", f"`{counter}`") for what, counter in _counters(facts)),
        ("counters are shown at", _where(facts)),
        ("counters", facts.counters.note),
        ("counts by request", facts.counters.by_request),
    ]
    if shown := [(what, text) for what, text in rows if text]:
        yield from ("", "| fact | |", "|---|---|", *(f"| {what} | {text} |" for what, text in shown))
    if facts.notes or facts.issues:
        yield ""
    yield from (f"- {note}" for note in facts.notes)
    for issue in facts.issues:
        yield f"- Issue [{issue.number}](https://github.com/{facts.repository}/issues/{issue.number}): {issue.effect}."


def _attention(fact: AttentionFact) -> str:
    option = (
        f"; export sets `{fact.option}`"
        if fact.option
        else "; export refuses it"
        if fact.advice
        else "; export warns of it"
    )
    memory = " (layers with a window then keep all tokens; export prints how much that is)" if fact.keeps_all else ""
    return f"it {fact.effect}{option}{memory}. {fact.seen[0].upper()}{fact.seen[1:]}"


def _computing(variant: str, facts: EngineFacts) -> str:
    """In which dtypes the variant runs."""
    found = facts.computes_in.get(variant)
    return f"; refused in other dtypes than {' and '.join(found)} (export checks it)" if found else ""


def _counters(facts: EngineFacts) -> list[tuple[str, str]]:
    names = facts.counters
    found = [
        ("drafts", names.drafts),
        ("draft tokens", names.draft_tokens),
        ("accepted tokens", names.accepted),
        ("accepted by position", names.by_position),
        ("drafted by position", names.drafted_per_position),
        ("generated tokens", names.tokens),
        ("requests that have ended", names.requests),
        ("requests that run (a gauge)", names.running),
    ]
    return [(what, name) for what, name in found if name]


def _where(facts: EngineFacts) -> str:
    names = facts.counters
    if not names.running:
        return ""
    labels = [f"`{label}`" for label in (names.model, names.rank) if label]
    told = f"; series are distinguished by {' and '.join(labels)}" if labels else ""
    return f"`{names.path}`; {names.needs}{told}"


if __name__ == "__main__":
    say_block(page())
