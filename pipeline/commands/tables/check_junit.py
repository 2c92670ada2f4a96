"""The outcome of `understudy check` as JUnit XML, which most CI systems show."""

import xml.etree.ElementTree as ET

from pipeline.commands.tables.check import CheckResult, overall_figures, rates_text, segment_figures
from pipeline.escaping.markup import xml_text

_CLASS = "understudy.check"
_XML = '<?xml version="1.0" encoding="utf-8"?>\n'


def check_junit(result: CheckResult) -> str:
    """One test suite: a test case for all tokens, one for each segment, and one for each domain. Only judged segments can fail
    beside the first; the first fails with the line of the verdict."""
    comparison, verdict = result.comparison, result.verdict
    error = verdict in ("refused", "error")
    domains, segments = (comparison.domains, comparison.segments) if comparison else ((), ())
    overall = "passed" if comparison is None else comparison.of_all_tokens
    failed = sum(outcome != "passed" for outcome in (overall, *(part.outcome for part in segments)))
    counts = {"tests": 1 + len(segments) + len(domains), "failures": failed, "errors": int(error), "skipped": 0}
    root = ET.Element("testsuites")
    suite = _element(root, "testsuite", name="understudy check", time=f"{result.seconds:.3f}", **counts)
    properties = _element(suite, "properties")
    for name, value in (("draft", result.draft), ("baseline", result.baseline)):
        _element(properties, "property", name=name, value=value)
    case = _element(suite, "testcase", classname=_CLASS, name="acceptance rate", time=f"{result.seconds:.3f}")
    if error or overall != "passed":
        _problem(case, "error" if error else "failure", verdict, result.line)
    else:
        _element(case, "system-out").text = xml_text(
            result.line if comparison is None or comparison.passed else overall_figures(comparison)
        )
    if result.note:
        _element(case, "system-err").text = xml_text(result.note)
    for part in segments:
        case = _element(suite, "testcase", classname=f"{_CLASS}.segments", name=part.segment, time="0.000")
        if part.outcome != "passed":
            _problem(case, "failure", part.outcome, segment_figures(part))
        else:
            _element(case, "system-out").text = xml_text(segment_figures(part))
    for domain in domains:
        case = _element(suite, "testcase", classname=f"{_CLASS}.domains", name=domain.domain, time="0.000")
        text = rates_text(domain.draft, domain.baseline, domain.difference)
        _element(case, "system-out").text = xml_text(f"{text}, for information")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False).join((_XML, "\n"))


def _problem(case: ET.Element, tag: str, verdict: str, text: str) -> None:
    _element(case, tag, type=verdict, message=text).text = xml_text(text)


def _element(parent: ET.Element, tag: str, **attributes: object) -> ET.Element:
    return ET.SubElement(parent, tag, {name: xml_text(str(value)) for name, value in attributes.items()})
