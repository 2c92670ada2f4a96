"""What `understudy compare` prints: figures of two drafts and their paired differences."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.acceptance.baseline import Examined
from pipeline.errors import UsageError
from pipeline.judgement.comparison import compare_drafts
from pipeline.judgement.headline import interval, points
from pipeline.judgement.regression import unseen_prompts
from pipeline.judgement.schema import BASELINE, CANDIDATE
from pipeline.report.console import Report

COLUMNS = ("figure", "prompts", "A", "B", "B - A")


def compare_examined(one: Examined, other: Examined, *, gamma: int, domain: str | None) -> dict[str, Any]:
    """Figures of both and the differences, other minus one. UsageError for a domain without prompts; raises as `compare`."""
    theirs, ours = unseen_prompts(one, other)
    left_out = len(one.counts) - len(theirs)
    if domain is not None:
        known = sorted({item.domain for item in theirs})
        theirs, ours = ([item for item in counts if item.domain == domain] for counts in (theirs, ours))
        if not ours:
            raise UsageError(f"--domain {domain}: no prompt of it; there are {', '.join(known)}")
    gamma = min(gamma, len(ours[0].calls))
    found = compare_drafts({CANDIDATE: ours, BASELINE: theirs}, {}, gamma, one.conditions.settings.confidence)
    return {"gamma": gamma, "left_out": left_out, **found}


def print_comparison(labels: Sequence[str], found: Mapping[str, Any]) -> None:
    """To stdout."""
    out = Report()
    out.line(f"A: {labels[0]}")
    out.line(f"B: {labels[1]}")
    ours, theirs, gains, gamma = (
        found["drafts"][CANDIDATE],
        found["drafts"][BASELINE],
        found["gains"],
        str(found["gamma"]),
    )
    rows = [_row("acceptance rate", theirs["acceptance_rate"], ours["acceptance_rate"], gains["acceptance_rate"])]
    omega = [side["tokens_per_target_call"][gamma] for side in (theirs, ours)]
    gain = gains["tokens_per_target_call"][gamma]
    shown = f"{gain['value']:+.3f}" + ("" if gain["low"] is None else f" [{gain['low']:+.3f}, {gain['high']:+.3f}]")
    rows.append([f"tokens / target call, γ={gamma}", str(ours["prompts"]), *(interval(one, 2) for one in omega), shown])
    for domain, entry in ours["domains"].items() if len(ours["domains"]) > 1 else ():
        before = theirs["domains"][domain]["acceptance_rate"]
        rows.append(_row(f"acceptance rate, {domain}", before, entry["acceptance_rate"], gains["domains"][domain]))
    out.table(COLUMNS, rows, left=("figure",))
    if found["left_out"]:
        out.text(f"{found['left_out']} prompts left out, because a draft was trained on them")


def _row(name: str, before: Mapping[str, Any], after: Mapping[str, Any], gain: Mapping[str, Any]) -> list[str]:
    return [name, str(gain["prompts"]), interval(before, 3), interval(after, 3), points(gain)]
