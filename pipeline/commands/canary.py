"""`understudy canary`: examination prompts to the live engine."""

from typing import TYPE_CHECKING

from pipeline.commands.options import DEFAULT_STORE, ChampionOf, JsonOption, OverridesOfFile, StorePath
from pipeline.progress import say_json

if TYPE_CHECKING:
    from pipeline.canary.decision import Action
    from pipeline.canary.schema import Answer, CanaryResult
    from pipeline.canary.verified import EngineCheck

_WORDS = {
    "as_examined": "as examined",
    "changed": "CHANGED",
    "not_as_examined": "NOT AS EXAMINED",
    "contradictory": "CONTRADICTORY",
    "inconclusive": "inconclusive",
}
_DONE: "dict[Action, str]" = {
    "verified": "verified",
    "roll_back": "ROLLED BACK",
    "alarm": "NOT VERIFIED",
    "unverified": "not verified",
}
_WIDTH = max(map(len, _WORDS.values()))


def canary(
    config: ChampionOf, overrides: OverridesOfFile = None, store: StorePath = DEFAULT_STORE, as_json: JsonOption = False
) -> None:
    """Find out if the target, the traffic or the served draft changed.

    Sends examination prompts to the engines in watch.endpoints. Exit 0: nothing changed; 3: something did; 1: an engine did not
    answer, or the canary is inconclusive (the output names the option to turn on). The result is kept in the store.
    """
    from dataclasses import asdict

    from pipeline.errors import Refused, UnderstudyError
    from pipeline.registry.finding import champion_config, require_registry
    from pipeline.store.artifacts import Store

    where = Store(store)
    read = champion_config(config, overrides or [], where)
    from pipeline.canary.run import run_canary, watched_engine

    watched_engine(read)
    require_registry(read, where)
    from pipeline.progress import Progress

    result = run_canary(read, where, Progress())
    if as_json:
        say_json(asdict(result))
    else:
        print_canary(result)
    if result.is_bad:
        raise Refused(summary(result))
    if not result.is_complete:
        raise UnderstudyError(summary(result))


def print_canary(result: "CanaryResult") -> None:
    """Print a line for each question to stdout."""
    from pipeline.commands.tables.console import Report

    out = Report()
    engines = f"{len(result.endpoints)} engine{'s' if len(result.endpoints) != 1 else ''}"
    out.line(
        f"canary: {result.name} version {result.version} on {engines} ({result.engine}): {result.prompts} examination prompts, "
        f"at most {result.max_tokens} tokens each, temperature 0"
    )
    for name, answer in (("target", result.target), ("traffic", result.traffic), ("draft", result.draft)):
        out.text(_line(name, answer), indent=_WIDTH + 11)
    for url, why in result.unasked.items():
        out.line(f"not asked: {why if why.startswith(url) else f'{url}: {why}'}")


def print_verification(verification: "EngineCheck") -> None:
    """Print the canary, what production shows, and what was done to stdout."""
    from pipeline.commands.tables.console import Report

    print_canary(verification.canary)
    out = Report()
    out.text(f"production: {verification.production.why}", indent=4)
    if verification.reloaded:
        out.text("promote.notice asked the engines to reload again")
    out.text(
        f"{verification.name} version {verification.version}: {_DONE[verification.action]}: {verification.why}",
        indent=4,
    )


def _line(name: str, answer: "Answer") -> str:
    return f"{name:<8} {_WORDS[answer.verdict]:<{_WIDTH}}  {answer.why}"


def summary(result: "CanaryResult") -> str:
    """What is not as examined, or was not answered, in a few words."""
    named = (("target", result.target), ("traffic", result.traffic), ("engine or draft", result.draft))
    wanted = [f"{name} {_WORDS[check.verdict].lower()}" for name, check in named if check.is_bad]
    if wanted:
        return f"canary: {', '.join(wanted)}"
    missing = [name for name, check in (named[0], named[2]) if check.verdict == "inconclusive"]
    missing += [f"{len(result.unasked)} engines not asked"] if result.unasked else []
    return f"canary: not answered: {', '.join(missing)}"
