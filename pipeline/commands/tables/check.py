"""The outcome of `understudy check`: as lines, and as files for CI (Markdown and JSON here, JUnit XML in `check_junit.py`).

Every rendering reads one object, `CheckResult`. There is one for each end of the command, also if the draft cannot be examined
or the comparison is not possible.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.schema import counted, unit_name
from pipeline.errors import EXIT_REFUSED, UnderstudyError
from pipeline.escaping.markup import code
from pipeline.escaping.terminal import printable
from pipeline.judgement.headline import NO_POWER
from pipeline.judgement.regression import Comparison, SegmentComparison
from pipeline.judgement.rule_result import Power

SCHEMA = 2
Verdict = Literal["passed", "regression", "undecided", "refused", "error"]
_TITLES: dict[Verdict, str] = {
    "passed": "no regression",
    "regression": "regression",
    "undecided": "undecided",
    "refused": "refused",
    "error": "error",
}
_ROUNDING = "acceptance differs by rounding between them, most with quantized or 16-bit weights"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What a check found. `comparison` is None if the draft was not compared; `line` then says why."""

    verdict: Verdict  # "refused": the draft has no figures to compare; "error": bad usage or a failure
    exit_code: int
    line: str
    draft: str  # as given to --draft
    baseline: str  # the file
    seconds: float
    comparison: Comparison | None = None

    @property
    def note(self) -> str | None:
        """A remark about the two machines, if they are of different classes."""
        found = self.comparison
        if found is None or found.hardware == found.baseline_hardware:
            return None
        return f"note: the baseline was measured on {found.baseline_hardware}, this machine is {found.hardware}; {_ROUNDING}"

    @property
    def power(self) -> str | None:
        """How often a draft with equal acceptance would pass, and how many prompts 95% need, over all tokens and in the judged
        segment that makes it least likely; None without a comparison."""
        found = self.comparison
        if found is None:
            return None
        if found.power is None or found.power.equal_passes is None:
            return NO_POWER
        text = (
            f"power: a draft with equal acceptance passes with {100 * found.power.equal_passes:.0f}% over these prompts; 95% "
            f"needs {_needed(found.power)}"
        )
        of_segments = {one.segment: one.power for one in found.segments if one.power is not None}
        chances = {name: one.equal_passes for name, one in of_segments.items() if one.equal_passes is not None}
        if not chances:
            return text
        name = min(chances, key=lambda name: chances[name])
        return f"{text}; in the segment '{name}' with {100 * chances[name]:.0f}%, and 95% needs {_needed(of_segments[name])}"

    @property
    def segments(self) -> list[str]:
        """A line for each segment."""
        return [segment_figures(one) for one in self.comparison.segments] if self.comparison else []


def _needed(power: Power) -> str:
    needed = power.prompts_needed["0.95"]
    return f"{'more than ten million' if needed is None else f'{needed:,}'} {unit_name(power.conversations)}"


def compared(comparison: Comparison, draft: str, baseline: str, seconds: float) -> CheckResult:
    """The result of a comparison."""
    return CheckResult(
        verdict=comparison.outcome,
        exit_code=0 if comparison.passed else EXIT_REFUSED,
        line=_line(comparison),
        draft=draft,
        baseline=baseline,
        seconds=seconds,
        comparison=comparison,
    )


def not_compared(error: UnderstudyError, draft: str, baseline: str, seconds: float) -> CheckResult:
    """The result if the draft is refused without a comparison, or if there was an error."""
    return CheckResult(
        verdict="refused" if error.exit_code == EXIT_REFUSED else "error",
        exit_code=error.exit_code,
        line=str(error),
        draft=draft,
        baseline=baseline,
        seconds=seconds,
    )


def left_out_text(count: int) -> str:
    """The end of a line if prompts were left out."""
    return f"; {count} prompts left out, because a draft was trained on them" if count else ""


def _margin(margin: float) -> str:
    return f"{margin * 100:g} point{'' if margin == 0.01 else 's'}"


def _line(found: Comparison) -> str:
    """The verdict and its reasons: a regression before what is undecided, and all tokens before segments."""
    all_tokens, end = overall_figures(found), left_out_text(found.left_out)
    if found.passed:
        return f"no regression: {all_tokens}{end}"
    parts = [(found.of_all_tokens, all_tokens), *((one.outcome, segment_figures(one)) for one in found.segments)]
    reasons = [
        f"{outcome}: {'; '.join(texts)}"
        for outcome in ("regression", "undecided")
        if (texts := [text for own, text in parts if own == outcome])
    ]
    rest = f"; all tokens: {all_tokens}" if found.of_all_tokens == "passed" else ""
    return f"{'; '.join(reasons)}{rest}{end}"


def overall_figures(found: Comparison) -> str:
    """Both rates over all tokens, the difference and its margin."""
    return f"{rates_text(found.draft, found.baseline, found.difference)}, margin {_margin(found.margin)}"


def segment_figures(one: SegmentComparison) -> str:
    """The same in a segment, with its name."""
    judged = "for information" if one.margin is None else f"margin {_margin(one.margin)}"
    rates = rates_text(one.draft, one.baseline, one.difference)
    return f"segment '{one.segment}' ({_share(one)} of the tokens): {rates}, {judged}"


def rates_text(draft: float, baseline: float, change: Interval) -> str:
    """Both rates, the difference and its number of prompts."""
    over = counted(change.prompts, change.conversations)
    return f"acceptance rate {draft:.4f}, baseline {baseline:.4f}: {_points(change)} over {over}"


def _points(difference: Interval) -> str:
    text = f"{difference.value * 100:+.2f} points"
    if not (math.isfinite(difference.low) and math.isfinite(difference.high)):
        return f"{text} [no interval: too few prompts]"
    return f"{text} [{difference.low * 100:+.2f}, {difference.high * 100:+.2f}]"


def _share(one: SegmentComparison) -> str:
    return f"{100 * one.share:.0f}%"


def check_json(result: CheckResult) -> dict[str, Any]:
    """The content of the JSON file; `docs/artifacts.md` explains it."""
    found = result.comparison
    figures: dict[str, Any] = dict.fromkeys(_FIGURES)
    draft: dict[str, Any] = {"acceptance_rate": None, "digest": None, "hardware": None}
    baseline = dict(draft)
    if found is not None:
        draft = {"acceptance_rate": found.draft, "digest": found.digest, "hardware": found.hardware}
        baseline = {
            "acceptance_rate": found.baseline,
            "digest": found.baseline_digest,
            "hardware": found.baseline_hardware,
        }
        figures = {
            "difference": asdict(found.difference.figure),
            "margin": found.margin,
            "confidence": found.conditions.settings.confidence,
            "left_out": list(found.left_out_prompts),
            "domains": [
                {
                    "domain": one.domain,
                    "draft": one.draft,
                    "baseline": one.baseline,
                    "difference": asdict(one.difference.figure),
                }
                for one in found.domains
            ],
            "segments": [
                {
                    "segment": one.segment,
                    "share": one.share,
                    "draft": one.draft,
                    "baseline": one.baseline,
                    "difference": asdict(one.difference.figure),
                    "margin": one.margin,
                    "passed": None if one.margin is None else one.outcome == "passed",
                    "power": None if one.power is None else asdict(one.power),
                }
                for one in found.segments
            ],
            "conditions": asdict(found.conditions),
            "power": None if found.power is None else asdict(found.power),
        }
    return {
        "schema": SCHEMA,
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        "line": result.line,
        "note": result.note,
        "seconds": result.seconds,
        "draft": {"name": result.draft, **draft},
        "baseline": {"file": result.baseline, **baseline},
        **figures,
    }


_MARKS = {"passed": "✅", "undecided": "❔"}
_FIGURES = ("difference", "margin", "confidence", "left_out", "domains", "segments", "conditions", "power")


def check_markdown(result: CheckResult) -> str:
    """A summary for a pull request or a job: verdict, figures, domains."""
    return "\n".join([*_markdown(result), ""])


def _markdown(result: CheckResult) -> Iterator[str]:
    mark = _MARKS.get(result.verdict, "❌")
    yield f"### {mark} Draft model: {_TITLES[result.verdict]}"
    yield ""
    yield f"    {printable(result.line)}"  # a block of code, in which nothing is markup
    yield ""
    yield f"Draft {code(result.draft)}, baseline {code(result.baseline)}."
    if result.note:
        yield ""
        yield f"    {printable(result.note)}"
    found = result.comparison
    if found is None:
        return
    confidence = f"{found.conditions.settings.confidence * 100:g}%"
    yield ""
    yield f"| acceptance rate | draft | baseline | difference, {confidence} interval | prompts |"
    yield "|---|---|---|---|---|"
    yield _row("**all prompts**", found.draft, found.baseline, found.difference)
    for part in found.segments:
        name = f"segment {code(part.segment)}, {_share(part)} of the tokens"
        named = name if part.outcome == "passed" else f"{name} {_MARKS.get(part.outcome, '❌')}"
        yield _row(named, part.draft, part.baseline, part.difference)
    for one in found.domains:
        yield _row(f"domain {code(one.domain)}", one.draft, one.baseline, one.difference)
    yield ""
    yield " ".join(_rule(found))
    if result.power:
        yield ""
        yield f"{result.power[:1].upper()}{result.power[1:]}."


def _rule(found: Comparison) -> Iterator[str]:
    """What decides, and which rows are for information."""
    judged = [(code(one.segment), one.margin) for one in found.segments if one.margin is not None]
    of_segments = (
        f", and that of {', '.join(name for name, _ in judged)} above -{_margin(judged[0][1])}" if judged else ""
    )
    yield f"The draft passes if the lower bound for all prompts is above -{_margin(found.margin)}{of_segments}."
    if len(judged) < len(found.segments):
        yield (
            "The rows of other segments are for information." if judged else "The rows of segments are for information."
        )
    if found.domains:
        yield "The rows of domains are for information."


def _row(name: str, draft: float, baseline: float, difference: Interval) -> str:
    return f"| {name} | {draft:.4f} | {baseline:.4f} | {_points(difference)} | {difference.prompts} |"
