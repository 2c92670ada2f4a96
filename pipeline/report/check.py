"""The outcome of `understudy check`: as a line, and as files for CI (JUnit XML, Markdown, JSON).

Every rendering reads one object, `CheckResult`. There is one for each end of the command, also if the draft cannot be examined
or the comparison is not possible.
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.acceptance.intervals import Interval
from pipeline.errors import EXIT_REFUSED, UnderstudyError
from pipeline.escaping.markdown import code
from pipeline.escaping.terminal import printable
from pipeline.escaping.xml import xml_text
from pipeline.judgement.headline import NO_POWER
from pipeline.judgement.regression import Comparison

SCHEMA = 1
Verdict = Literal["passed", "regression", "refused", "error"]
_TITLES: dict[Verdict, str] = {
    "passed": "no regression",
    "regression": "regression",
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
        """How often a draft with equal acceptance would pass, and how many prompts 95% need; None without a comparison."""
        if self.comparison is None:
            return None
        power = self.comparison.power
        if power is None or power.equal_passes is None:
            return NO_POWER
        needed = power.prompts_needed["0.95"]
        return (
            f"power: a draft with equal acceptance passes with {100 * power.equal_passes:.0f}% over these prompts; 95% needs "
            f"{'more than ten million' if needed is None else f'{needed:,}'} prompts"
        )


def compared(comparison: Comparison, draft: str, baseline: str, seconds: float) -> CheckResult:
    """The result of a comparison."""
    passed = comparison.passed
    return CheckResult(
        verdict="passed" if passed else "regression",
        exit_code=0 if passed else EXIT_REFUSED,
        line=f"{'no regression' if passed else 'regression'}: {_figures(comparison)}",
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


def _margin(found: Comparison) -> str:
    return f"{found.margin * 100:g} point{'' if found.margin == 0.01 else 's'}"


def _figures(found: Comparison) -> str:
    change = found.difference
    return (
        f"acceptance rate {found.draft:.4f}, baseline {found.baseline:.4f}: {change.value * 100:+.2f} points "
        f"[{change.low * 100:+.2f}, {change.high * 100:+.2f}] over {change.prompts} prompts, margin "
        f"{_margin(found)}{left_out_text(found.left_out)}"
    )


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


_FIGURES = ("difference", "margin", "confidence", "left_out", "domains", "conditions", "power")


def check_junit(result: CheckResult) -> str:
    """JUnit XML: one test suite, one test case for the verdict and one for each domain. Those of the domains cannot fail."""
    found, verdict = result.comparison, result.verdict
    failures, errors = int(verdict == "regression"), int(verdict in ("refused", "error"))
    domains = found.domains if found else ()
    counts = {"tests": 1 + len(domains), "failures": failures, "errors": errors, "skipped": 0}
    root = ET.Element("testsuites")
    suite = _element(root, "testsuite", name="understudy check", time=f"{result.seconds:.3f}", **counts)
    properties = _element(suite, "properties")
    for name, value in (("draft", result.draft), ("baseline", result.baseline)):
        _element(properties, "property", name=name, value=value)
    case = _element(suite, "testcase", classname=_CLASS, name="acceptance rate", time=f"{result.seconds:.3f}")
    if failures or errors:
        problem = _element(case, "failure" if failures else "error", type=verdict, message=result.line)
        problem.text = xml_text(result.line)
    else:
        _element(case, "system-out").text = xml_text(result.line)
    if result.note:
        _element(case, "system-err").text = xml_text(result.note)
    for one in domains:
        case = _element(suite, "testcase", classname=f"{_CLASS}.domains", name=one.domain, time="0.000")
        text = f"acceptance rate {one.draft:.4f}, baseline {one.baseline:.4f}: {_points(one.difference)}"
        _element(case, "system-out").text = xml_text(f"{text}, over {one.difference.prompts} prompts; information only")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False).join((_XML, "\n"))


_CLASS = "understudy.check"
_XML = '<?xml version="1.0" encoding="utf-8"?>\n'


def _element(parent: ET.Element, tag: str, **attributes: object) -> ET.Element:
    return ET.SubElement(parent, tag, {name: xml_text(str(value)) for name, value in attributes.items()})


def check_markdown(result: CheckResult) -> str:
    """A summary for a pull request or a job: verdict, figures, domains."""
    return "\n".join([*_markdown(result), ""])


def _markdown(result: CheckResult) -> Iterator[str]:
    mark = "✅" if result.verdict == "passed" else "❌"
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
    for one in found.domains:
        yield _row(code(one.domain), one.draft, one.baseline, one.difference)
    yield ""
    text = f"The draft passes if the lower bound for all prompts is above -{_margin(found)}."
    yield f"{text} The rows of domains are for information." if found.domains else text
    if result.power:
        yield ""
        yield f"{result.power[:1].upper()}{result.power[1:]}."


def _row(name: str, draft: float, baseline: float, difference: Interval) -> str:
    return f"| {name} | {draft:.4f} | {baseline:.4f} | {_points(difference)} | {difference.prompts} |"


def _points(difference: Interval) -> str:
    text = f"{difference.value * 100:+.2f} points"
    if not (math.isfinite(difference.low) and math.isfinite(difference.high)):
        return f"{text}, too few prompts for an interval"
    return f"{text} [{difference.low * 100:+.2f}, {difference.high * 100:+.2f}]"
