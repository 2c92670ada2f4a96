"""Known problems of the engines, by the setting that meets them: whoever prints the setting prints them."""

from pipeline.engines.facts import FACTS, Issue


def schedule_issues(engine: str) -> tuple[str, ...]:
    """Known problems of an engine with draft-length schedules, for people; empty where none is known."""
    return tuple(_said(engine, issue) for issue in FACTS[engine].issues if issue.of_schedules)


def cpu_sampling_issues(engine: str, temperature: float) -> tuple[str, ...]:
    """Known problems of its build for CPUs where the deployment samples."""
    return tuple(_said(engine, issue) for issue in FACTS[engine].issues if issue.of_cpu_sampling and temperature > 0)


def _said(engine: str, issue: Issue) -> str:
    return f"{FACTS[engine].title} issue {issue.number}: {issue.effect}"
