"""`understudy canary`: examination prompts to the live engine."""

from pipeline.commands.options import DEFAULT_STORE, ChampionOf, JsonOption, OverridesOfFile, StorePath
from pipeline.progress import say_json


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
    from pipeline.canary.report import print_canary, summary
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
