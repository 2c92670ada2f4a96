"""What `understudy canary` and `champion verify` print."""

from pipeline.canary.decision import Action
from pipeline.canary.schema import Answer, CanaryResult
from pipeline.canary.verified import Verification
from pipeline.report.console import Report

_WORDS = {
    "as_examined": "as examined",
    "changed": "CHANGED",
    "not_as_examined": "NOT AS EXAMINED",
    "contradictory": "CONTRADICTORY",
    "inconclusive": "inconclusive",
}
_DONE: dict[Action, str] = {
    "verified": "verified",
    "roll_back": "ROLLED BACK",
    "alarm": "NOT VERIFIED",
    "unverified": "not verified",
}
_WIDTH = max(map(len, _WORDS.values()))


def print_canary(found: CanaryResult) -> None:
    """To stdout: a line for each question."""
    out = Report()
    engines = f"{len(found.endpoints)} engine{'s' if len(found.endpoints) != 1 else ''}"
    out.line(
        f"canary: {found.name} version {found.version} on {engines} ({found.engine}): {found.prompts} examination prompts, at "
        f"most {found.max_tokens} tokens each, temperature 0"
    )
    for name, answer in (("target", found.target), ("traffic", found.traffic), ("draft", found.draft)):
        out.text(_line(name, answer), indent=_WIDTH + 11)
    for url, why in found.unasked.items():
        out.line(f"not asked: {why if why.startswith(url) else f'{url}: {why}'}")


def print_verification(found: Verification) -> None:
    """To stdout: the canary, what production shows, and what was done."""
    print_canary(found.canary)
    out = Report()
    out.text(f"production: {found.production.why}", indent=4)
    if found.reloaded:
        out.text("promote.notice asked the engines to reload again")
    out.text(f"{found.name} version {found.version}: {_DONE[found.action]}: {found.why}", indent=4)


def _line(name: str, answer: Answer) -> str:
    return f"{name:<8} {_WORDS[answer.verdict]:<{_WIDTH}}  {answer.why}"


def summary(found: CanaryResult) -> str:
    """What is not as examined, or was not answered, in a few words."""
    named = (("target", found.target), ("traffic", found.traffic), ("engine or draft", found.draft))
    wanted = [f"{name} {_WORDS[one.verdict].lower()}" for name, one in named if one.is_bad]
    if wanted:
        return f"canary: {', '.join(wanted)}"
    missing = [name for name, one in (named[0], named[2]) if one.verdict == "inconclusive"]
    missing += [f"{len(found.unasked)} engines not asked"] if found.unasked else []
    return f"canary: not answered: {', '.join(missing)}"
