"""`understudy plan`: what a run costs, before it runs."""

from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, ConfigPath, EvenIfRefused, JsonOption, Overrides, StorePath
from pipeline.progress import say, say_json


def plan(
    config: ConfigPath,
    set_: Overrides = None,
    store: StorePath = DEFAULT_STORE,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also estimate the time, disk and memory of each job from two small runs.")
    ] = False,
    as_json: JsonOption = False,
    even_if_refused: EvenIfRefused = False,
) -> None:
    """Estimate what a run costs before it starts.

    Prints upper bounds of prompts, target tokens and bytes. With --measure, also the time, disk and memory of each job. Exit 2 if
    no prompt can be used, or if the gate must refuse for too few of them.
    """
    import dataclasses

    from pipeline.config.loading import load_config
    from pipeline.planning.forecast import forecast, last_learning_curve
    from pipeline.planning.trial_runs import measure as measure_trials
    from pipeline.progress import Progress
    from pipeline.report.plan import print_forecast, print_measured
    from pipeline.running.local_pair import check_local_pair
    from pipeline.running.prompt_survey import require_prompts
    from pipeline.store.artifacts import Store

    resolved, notes = check_local_pair(load_config(config, set_ or ()))
    kept, progress = Store(store), Progress()
    found, curve = forecast(resolved), last_learning_curve(kept, resolved.name)
    if not as_json:
        print_forecast(found, curve, notes)
    require_prompts(resolved, progress, even_if_refused)
    measured = measure_trials(resolved, found, kept, progress) if measure else None
    if as_json:
        figures = {
            **dataclasses.asdict(found),
            "learning_curve": dataclasses.asdict(curve) if curve else None,
            "notes": notes,
        }
        figures["measured"] = dataclasses.asdict(measured) if measured else None
        say_json(figures)
    elif measured:
        print_measured(measured, found.endpoints)
    else:
        say("to estimate the time, disk and memory of each job from two small runs, add --measure")
