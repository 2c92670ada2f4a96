"""`understudy plan`: what a run costs, before it runs."""

from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, ConfigPath, Overrides, StorePath


def plan(
    config: ConfigPath,
    set_: Overrides = None,
    store: StorePath = DEFAULT_STORE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Prompts, target tokens and bytes that a run asks for at most, and what more completions brought the last run."""
    import dataclasses
    import json

    from pipeline.artifacts import Store
    from pipeline.config.loading import load_config
    from pipeline.forecast import forecast, last_learning_curve
    from pipeline.report.planned import print_forecast

    resolved = load_config(config, set_ or ())
    found, curve = forecast(resolved), last_learning_curve(Store(store), resolved.name)
    if as_json:
        print(json.dumps({**dataclasses.asdict(found), "learning_curve": curve}, indent=1, allow_nan=False))
    else:
        print_forecast(found, curve)
