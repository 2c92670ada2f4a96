"""`understudy latency schedule`: how many tokens to draft at which load, and whether to draft at all."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.commands.latency.options import (
    AlphaOption,
    CapOption,
    JsonOption,
    PlotOption,
    PromptTokensOption,
    TokensOption,
)


def schedule(
    times: Annotated[
        list[Path],
        typer.Option(metavar="F", help="A profile, or costs of `latency fit`; again for each of several drafts."),
    ],
    acceptance: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="F", help="An evaluate artifact, its acceptance.json or a check's baseline, for each --times."
        ),
    ] = None,
    acceptance_rate: AlphaOption = None,
    tokens: TokensOption = None,
    prompt_tokens: PromptTokensOption = 128,
    batch_cap: CapOption = 32,
    engine: Annotated[
        Literal["vllm", "tensorrt-llm"] | None, typer.Option(help="Print nothing but this engine's configuration.")
    ] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """The best draft length for every number of requests, 0 where speculation loses, and which of several drafts wins where."""
    import json

    from pipeline.commands.latency.options import beyond, check_plot, read_pair
    from pipeline.errors import UsageError
    from pipeline.latency.schedule import FORMATS, Option, scheduled
    from pipeline.report.scheduled import plot_schedule, print_schedule, schedule_json

    check_plot(plot)
    given: list[Path | None] = [*acceptance] if acceptance else [None for _ in times]
    if len(given) != len(times):
        raise UsageError(f"{len(times)} --times and {len(given)} --acceptance: give one examination for each draft")
    drafts, notes = [], list[str]()
    for path, examined in zip(times, given, strict=True):
        machine, workload = read_pair(path, examined, acceptance_rate, tokens, prompt_tokens)
        steps = machine.steps(batch_cap, round(workload.context), workload.most_gamma)
        drafts.append(Option(path.stem, workload.rounds_G, steps))
        notes += [note for note in beyond(machine, workload, batch_cap) if note not in notes]
    if len({draft.name for draft in drafts}) < len(drafts):
        raise UsageError("--times: two files of the same name; drafts are called by it")
    found = scheduled(drafts)
    if engine is not None:
        print(json.dumps(FORMATS[engine](found.lengths_N)))
    elif as_json:
        print(json.dumps(schedule_json(found), indent=1, allow_nan=False))
    else:
        print_schedule(found, notes)
    if plot is not None:
        plot_schedule(found, plot)
