"""`understudy plan`: what a run costs, before it runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, ConfigPath, EvenIfRefused, JsonOption, Overrides, StorePath
from pipeline.progress import say, say_json

if TYPE_CHECKING:
    from pipeline.config.root import Config
    from pipeline.planning.earlier_runs import Measurements
    from pipeline.planning.trial_runs import TrialCosts
    from pipeline.store.artifacts import Store


def plan(
    config: ConfigPath,
    set_: Overrides = None,
    store: StorePath = DEFAULT_STORE,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the time and memory of each job in two small runs.")
    ] = False,
    as_json: JsonOption = False,
    even_if_refused: EvenIfRefused = False,
) -> None:
    """Estimate what a run costs before it starts.

    Prints tokens, bytes, hours and memory of each job, the critical job, what one more endpoint, GPU or node saves, all
    assumptions, and why a run on this machine would be refused.
    Throughputs are those of earlier runs in the store, or stated in the section `plan` of the config; --measure measures them
    now. Exit 2 if no prompt can be used, or if the gate must refuse for too few of them.
    """
    from dataclasses import asdict

    from pipeline.commands.tables.dry_run import print_memory, print_stored
    from pipeline.commands.tables.plan import print_estimate, print_forecast
    from pipeline.config.loading import load_config
    from pipeline.planning.estimate import estimate
    from pipeline.planning.forecast import forecast, last_learning_curve
    from pipeline.planning.memory import memory_of
    from pipeline.planning.trial_runs import measure as measure_trials
    from pipeline.progress import Progress
    from pipeline.running.local_pair import check_local_pair
    from pipeline.running.preview import preview, require_stored_prompts
    from pipeline.running.prompt_survey import require_prompts
    from pipeline.store.artifacts import Store

    resolved, notes = check_local_pair(load_config(config, set_ or ()))
    kept, progress = Store(store), Progress()
    made, curve = forecast(resolved), last_learning_curve(kept, resolved)
    if not as_json:
        print_forecast(made, curve, notes)
    if resolved.plan.rows is None and not require_stored_prompts(resolved, kept, progress, even_if_refused):
        require_prompts(resolved, progress, even_if_refused)
    planned = preview(resolved, kept) if resolved.plan.rows is None else []  # whose prompts need not be there
    measured = measure_trials(resolved, made, kept, progress) if measure else None
    known = _known(resolved, kept, measured)
    costs, memory = estimate(resolved, made, known, measured), memory_of(resolved, made, known)
    if as_json:
        say_json(
            {
                **asdict(made),
                "learning_curve": asdict(curve) if curve else None,
                "notes": notes,
                "estimate": asdict(costs),
                "memory": asdict(memory),
                "a_run_would": {job.job.id: job.action for job in planned},
                "measured": asdict(measured) if measured else None,
            }
        )
        return
    print_estimate(costs, measured)
    print_memory(memory)
    print_stored(costs, planned)
    if measured is None:
        say("to measure the throughput of each job in two small runs, add --measure")


def _known(config: "Config", store: "Store", measured: "TrialCosts | None") -> "Measurements":
    """What earlier runs, the models on this machine and the small runs have measured."""
    from pipeline.planning.earlier_runs import measurements, with_small_runs
    from pipeline.planning.local_sizes import with_local_sizes

    known = with_local_sizes(config, measurements(store, config))
    if measured is None:
        return known
    return with_small_runs(known, measured.lengths, measured.draft_parameters, measured.target_parameters)
