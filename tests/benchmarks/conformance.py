"""The table of conformance results. `make conformance` measures them."""

from collections.abc import Iterator
from typing import Any


def main() -> None:
    print("conformance: `make conformance` measures this one, in the engines' own environments")


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Conformance: predicted counts against the engines' counters\n"
    yield (
        "The reference pair and its candidate, 64 prompts x 128 tokens, fp32. `identical`: all counters are equal, and every "
        "single round is as predicted. `shipped` is vLLM's CPU build as released, which does not sample from the target when it "
        "speculates (vLLM issue 55005); `repaired` fixes that in the test's process.\n"
    )
    yield "| engine | temperature | draft | gamma | predicted: drafts, accepted | counted | agreement | near-ties |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in sorted(figure["rows"], key=_order):
        build = "" if row["engine"].startswith("openvino") else f", {row['build']}"
        ties = len(row.get("near_ties_of_the_draft", [])) + len(row.get("near_ties_of_the_target", []))
        yield (
            f"| {row['engine']} {row['version'].split('-')[0]}{build} | {row['temperature']:g} | {row['draft_sampling']} "
            f"| {row['gamma']} | {_counts(row['predicted'])} | {_counts(row['counted'])} | {_agreement(row)} | {ties} |"
        )


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["engine"], row["build"], row["temperature"], row["draft_sampling"], row["gamma"]


def _counts(counts: dict[str, Any]) -> str:
    if "target_calls" in counts:
        return f"{counts['target_calls']:,} target calls"
    return f"{counts['drafts']:,.0f}, {counts['accepted']:,.0f}"


def _agreement(row: dict[str, Any]) -> str:
    if "identical" in row:
        if row["identical"]:
            return "**identical**"
        return f"**broken**: {len(row['unexplained'])} of {row['prompts']} prompts unexplained" + _text(row)
    largest = f"largest difference {row['largest_difference']:.1f} standard errors"
    return largest if row["largest_difference"] <= 3 else f"**broken**: {largest}{_text(row)}"


def _text(row: dict[str, Any]) -> str:
    return f"; its text's log p is {row['text']['standard_errors']:.0f} standard errors from the target's"
