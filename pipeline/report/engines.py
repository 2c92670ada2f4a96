"""docs/engines.md, made from the table of engine facts. `make docs` writes it."""

from collections.abc import Iterator

from pipeline.engines.facts import FACTS, EngineFacts
from pipeline.progress import say_block

_VARIANTS = ("unquantized", "int8", "int4", "fp8")
_HEAD = """# Engines

What each engine takes as a draft, counts, and cannot do. `understudy champion export` and `quantize.engine` use the same table
(`pipeline/engines/facts.py`); this page is made from it by `make docs`. A fact holds for the version that it was checked on.

`understudy champion export CONFIG --engine ENGINE --out DIR` writes the draft in the engine's form, the command that serves the
target with it, and `expected.json` with what the engine's counters should show. INT8 and INT4 drafts are bitsandbytes
checkpoints. They are not written in the layout of compressed-tensors: no library of this project loads that layout, so a draft
in it could not be examined as it is served.
"""


def render() -> str:
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
        ("a plain draft", facts.serving),
        *((f"{variant} draft", layout) for variant, layout in facts.loads.items()),
        *((f"{way} drafting", setting) for way, setting in facts.drafting.items()),
        ("widths of the logits", facts.widths + (" (export pads the draft)" if facts.equal_widths else "")),
        ("tensor parallelism", facts.parallel),
        *((f"counter: {what}", f"`{counter}`") for what, counter in _counters(facts)),
        ("counters", facts.counters.note),
    ]
    if shown := [(what, text) for what, text in rows if text]:
        yield from ("", "| fact | |", "|---|---|", *(f"| {what} | {text} |" for what, text in shown))
    if facts.notes or facts.issues:
        yield ""
    yield from (f"- {note}" for note in facts.notes)
    for issue in facts.issues:
        yield f"- Issue [{issue.number}](https://github.com/{facts.repository}/issues/{issue.number}): {issue.effect}."


def _counters(facts: EngineFacts) -> list[tuple[str, str]]:
    names = facts.counters
    found = [
        ("drafts", names.drafts),
        ("draft tokens", names.draft_tokens),
        ("accepted tokens", names.accepted),
        ("accepted by position", names.per_position),
    ]
    return [(what, name) for what, name in found if name]


if __name__ == "__main__":
    say_block(render())
