"""`understudy runs`: the runs of a store."""

from pipeline.commands.options import DEFAULT_STORE, JsonOption, StorePath
from pipeline.progress import say, say_json


def runs(store: StorePath = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """List the runs of a store: config, verdict, gain, time and state."""
    from dataclasses import asdict

    from pipeline.commands.tables.runs import list_lines, print_runs
    from pipeline.store.artifacts import Store

    lines = list_lines(Store(store))
    if as_json:
        say_json([asdict(line) for line in lines])
    elif lines:
        print_runs(lines)
    else:
        say(f"{store}: no runs here yet; start one with `understudy run CONFIG` or name another --store")
