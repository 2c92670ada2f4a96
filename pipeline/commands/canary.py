"""`understudy canary`: examination prompts to the live engine."""

from typing import TYPE_CHECKING

from pipeline.commands.options import DEFAULT_STORE, ChampionOf, JsonOption, OverridesOfFile, StorePath
from pipeline.progress import say_json

if TYPE_CHECKING:
    from pipeline.canary.decision import Action
    from pipeline.canary.schema import Answer, CanaryResult
    from pipeline.canary.verified import Verification

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

    found = run_canary(read, where, Progress())
    if as_json:
        say_json(asdict(found))
    else:
        print_canary(found)
    if found.is_bad:
        raise Refused(summary(found))
    if not found.is_complete:
        raise UnderstudyError(summary(found))


def print_canary(found: "CanaryResult") -> None:
    """To stdout: a line for each question."""
    from pipeline.commands.tables.console import Report

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


def print_verification(found: "Verification") -> None:
    """To stdout: the canary, what production shows, and what was done."""
    from pipeline.commands.tables.console import Report

    print_canary(found.canary)
    out = Report()
    out.text(f"production: {found.production.why}", indent=4)
    if found.reloaded:
        out.text("promote.notice asked the engines to reload again")
    out.text(f"{found.name} version {found.version}: {_DONE[found.action]}: {found.why}", indent=4)


def _line(name: str, answer: "Answer") -> str:
    return f"{name:<8} {_WORDS[answer.verdict]:<{_WIDTH}}  {answer.why}"


def summary(found: "CanaryResult") -> str:
    """What is not as examined, or was not answered, in a few words."""
    named = (("target", found.target), ("traffic", found.traffic), ("engine or draft", found.draft))
    wanted = [f"{name} {_WORDS[one.verdict].lower()}" for name, one in named if one.is_bad]
    if wanted:
        return f"canary: {', '.join(wanted)}"
    missing = [name for name, one in (named[0], named[2]) if one.verdict == "inconclusive"]
    missing += [f"{len(found.unasked)} engines not asked"] if found.unasked else []
    return f"canary: not answered: {', '.join(missing)}"
