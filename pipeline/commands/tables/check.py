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
    """What a check found. `comparison` is None if the draft was not compared; `line` is then the reason."""

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
        comparison = self.comparison
        if comparison is None or comparison.hardware == comparison.baseline_hardware:
            return None
        measured, here = comparison.baseline_hardware, comparison.hardware
        return f"note: the baseline was measured on {measured}, this machine is {here}; {_ROUNDING}"

    @property
    def power(self) -> str | None:
        """How often a draft with equal acceptance would pass, and how many prompts 95% need, over all tokens and in the judged
        segment that makes it least likely; None without a comparison."""
        comparison = self.comparison
        if comparison is None:
            return None
        if comparison.power is None or comparison.power.equal_passes is None:
            return NO_POWER
        text = (
            f"power: a draft with equal acceptance passes with {100 * comparison.power.equal_passes:.0f}% over these prompts; "
            f"95% needs {_needed(comparison.power)}"
        )
        powers = {segment.segment: segment.power for segment in comparison.segments if segment.power is not None}
        chances = {name: power.equal_passes for name, power in powers.items() if power.equal_passes is not None}
        if not chances:
            return text
        name = min(chances, key=lambda name: chances[name])
        return f"{text}; in the segment '{name}' with {100 * chances[name]:.0f}%, and 95% needs {_needed(powers[name])}"

    @property
    def segments(self) -> list[str]:
        """A line for each segment."""
        return [segment_figures(segment) for segment in self.comparison.segments] if self.comparison else []


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


def _line(comparison: Comparison) -> str:
    """The verdict and its reasons: a regression before what is undecided, and all tokens before segments."""
    all_tokens, end = overall_figures(comparison), left_out_text(comparison.left_out)
    if comparison.passed:
        return f"no regression: {all_tokens}{end}"
    parts = [
        (comparison.of_all_tokens, all_tokens),
        *((segment.outcome, segment_figures(segment)) for segment in comparison.segments),
    ]
    reasons = [
        f"{outcome}: {'; '.join(texts)}"
        for outcome in ("regression", "undecided")
        if (texts := [text for own, text in parts if own == outcome])
    ]
    rest = f"; all tokens: {all_tokens}" if comparison.of_all_tokens == "passed" else ""
    return f"{'; '.join(reasons)}{rest}{end}"


def overall_figures(comparison: Comparison) -> str:
    """Both rates over all tokens, the difference and its margin."""
    return f"{rates_text(comparison.draft, comparison.baseline, comparison.difference)}, margin {_margin(comparison.margin)}"


def segment_figures(segment: SegmentComparison) -> str:
    """The figures of a segment, with its name."""
    judged = "for information" if segment.margin is None else f"margin {_margin(segment.margin)}"
    rates = rates_text(segment.draft, segment.baseline, segment.difference)
    return f"segment '{segment.segment}' ({_share(segment)} of the tokens): {rates}, {judged}"


def rates_text(draft: float, baseline: float, change: Interval) -> str:
    """Both rates, the difference and its number of prompts."""
    over = counted(change.prompts, change.conversations)
    return f"acceptance rate {draft:.4f}, baseline {baseline:.4f}: {_points(change)} over {over}"


def _points(difference: Interval) -> str:
    text = f"{difference.value * 100:+.2f} points"
    if not (math.isfinite(difference.low) and math.isfinite(difference.high)):
        return f"{text} [no interval: too few prompts]"
    return f"{text} [{difference.low * 100:+.2f}, {difference.high * 100:+.2f}]"


def _share(segment: SegmentComparison) -> str:
    return f"{100 * segment.share:.0f}%"


def check_json(result: CheckResult) -> dict[str, Any]:
    """The content of the JSON file; `docs/artifacts.md` explains it."""
    comparison = result.comparison
    figures: dict[str, Any] = dict.fromkeys(_FIGURES)
    draft: dict[str, Any] = {"acceptance_rate": None, "digest": None, "hardware": None}
    baseline = dict(draft)
    if comparison is not None:
        draft = {"acceptance_rate": comparison.draft, "digest": comparison.digest, "hardware": comparison.hardware}
        baseline = {
            "acceptance_rate": comparison.baseline,
            "digest": comparison.baseline_digest,
            "hardware": comparison.baseline_hardware,
        }
        figures = {
            "difference": asdict(comparison.difference.figure),
            "margin": comparison.margin,
            "confidence": comparison.conditions.settings.confidence,
            "left_out": list(comparison.left_out_prompts),
            "domains": [
                {
                    "domain": domain.domain,
                    "draft": domain.draft,
                    "baseline": domain.baseline,
                    "difference": asdict(domain.difference.figure),
                }
                for domain in comparison.domains
            ],
            "segments": [
                {
                    "segment": segment.segment,
                    "share": segment.share,
                    "draft": segment.draft,
                    "baseline": segment.baseline,
                    "difference": asdict(segment.difference.figure),
                    "margin": segment.margin,
                    "passed": None if segment.margin is None else segment.outcome == "passed",
                    "power": None if segment.power is None else asdict(segment.power),
                }
                for segment in comparison.segments
            ],
            "conditions": asdict(comparison.conditions),
            "power": None if comparison.power is None else asdict(comparison.power),
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
    comparison = result.comparison
    if comparison is None:
        return
    confidence = f"{comparison.conditions.settings.confidence * 100:g}%"
    yield ""
    yield f"| acceptance rate | draft | baseline | difference, {confidence} interval | prompts |"
    yield "|---|---|---|---|---|"
    yield _row("**all prompts**", comparison.draft, comparison.baseline, comparison.difference)
    for part in comparison.segments:
        name = f"segment {code(part.segment)}, {_share(part)} of the tokens"
        named = name if part.outcome == "passed" else f"{name} {_MARKS.get(part.outcome, '❌')}"
        yield _row(named, part.draft, part.baseline, part.difference)
    for domain in comparison.domains:
        yield _row(f"domain {code(domain.domain)}", domain.draft, domain.baseline, domain.difference)
    yield ""
    yield " ".join(_rule(comparison))
    if result.power:
        yield ""
        yield f"{result.power[:1].upper()}{result.power[1:]}."


def _rule(comparison: Comparison) -> Iterator[str]:
    """What decides, and which rows are for information."""
    judged = [(code(segment.segment), segment.margin) for segment in comparison.segments if segment.margin is not None]
    of_segments = (
        f", and that of {', '.join(name for name, _ in judged)} above -{_margin(judged[0][1])}" if judged else ""
    )
    yield f"The draft passes if the lower bound for all prompts is above -{_margin(comparison.margin)}{of_segments}."
    if len(judged) < len(comparison.segments):
        yield (
            "The rows of other segments are for information." if judged else "The rows of segments are for information."
        )
    if comparison.domains:
        yield "The rows of domains are for information."


def _row(name: str, draft: float, baseline: float, difference: Interval) -> str:
    return f"| {name} | {draft:.4f} | {baseline:.4f} | {_points(difference)} | {difference.prompts} |"
