"""Known problems of the engines, by the setting that meets them: whoever prints the setting prints them."""

from pipeline.engines.facts import FACTS


def schedule_issues(engine: str) -> tuple[str, ...]:
    """Known problems of an engine with draft-length schedules, for people; empty where none is known."""
    facts = FACTS[engine]
    return tuple(f"{facts.title} issue {one.number}: {one.effect}" for one in facts.issues if one.of_schedules)
