"""`python -m tests.benchmarks gpu_kit`: what the device kit measured on a GPU, from its folder of results, KIT_RESULTS.

Without that variable what was read before stays. Nothing is measured here.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import RESULTS, write

PARTS = {
    "rehearsal": "Against the CPU",
    "decoding": "Decoder against assisted generation (aims: 3 times it, 0.9 of what forward times allow)",
    "training": "Training against TRL (aim: 0.4 of the bf16 peak of the card)",
    "passes": "Examination and generation",
    "surface": "Step times by batch and length",
    "quantized": "FP8, INT8, INT4",
    "heads": "Heads on hidden states of an 8B target (random weights: next to nothing is accepted)",
}
NAME = "gpu_kit"


def main() -> None:
    path, given = RESULTS / f"{NAME}.json", os.environ.get("KIT_RESULTS")
    found = json.loads(path.read_text())["figure"]["parts"] if path.exists() else {}
    for part in PARTS if given else ():
        if (file := Path(str(given)) / f"{part}.json").exists() and not (content := json.loads(file.read_text()))[
            "tiny"
        ]:
            found[part] = content
    write(NAME, f"python -m tests.benchmarks {NAME}", {"parts": found})


def cards(figure: dict[str, Any]) -> list[str]:
    """What was measured on; empty if nothing was."""
    return sorted({part["machine"]["card"] for part in figure["parts"].values()})


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## On a card\n"
    yield "By the device kit (`make device-kit`, METHOD.md in it); models have random weights and published shapes.\n"
    for name, title in PARTS.items():
        part = figure["parts"].get(name)
        if part is None:
            yield f"- {title}: **not measured**"
            continue
        versions = ", ".join(f"{library} {version}" for library, version in part["versions"].items())
        yield f"\n### {title}: {part['machine']['card']}, {versions}\n"
        yield "| | |"
        yield "|---|---|"
        for measure, values in part["measures"].items():
            yield f"| {measure} | {_of_profile(values['profile']) if 'profile' in values else _shown(values)} |"
        for measure, reason in part["errors"].items():
            yield f"| {measure} | failed: {reason} |"
        for measure in part["left"]:
            yield f"| {measure} | not measured: the time was over |"
    yield ""


def _of_profile(profile: dict[str, Any]) -> str:
    """Milliseconds of a pass of some of the batches, at the middle one of the lengths."""
    target, draft, found = profile["target"], profile["draft"], list[str]()
    place, lengths = len(target["contexts"]) // 2, f"{target['contexts'][len(target['contexts']) // 2]:,}"
    for row, batch in enumerate(target["batches"]):
        one, more = (1000 * target["seconds"][row][column][place] for column in (0, -1))
        drafted = 1000 * draft["seconds"][row][0][place]
        found.append(
            f"batch {batch}: draft {drafted:.2f}, target {one:.2f}, of {target['tokens'][-1]} tokens {more:.2f}"
        )
    return f"milliseconds at {lengths} tokens: " + "; ".join(found)


def _shown(values: dict[str, Any]) -> str:
    """Figures alone, to three digits."""
    return "; ".join(
        f"{name.replace('_', ' ')} {_number(value)}"
        for name, value in values.items()
        if not isinstance(value, list) and name not in ("settings", "profile")
    )


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_number(one)}" for name, one in value.items()) + ")"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
