"""`understudy latency schedule`: how many tokens to draft at which load, and whether to draft at all."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.commands.latency.options import (
    CapOption,
    JsonOption,
    PlotOption,
    PromptTokensOption,
    TokensOption,
)

_SAME_MACHINE = 0.1  # by how much plain decoding may differ without a word


def schedule(
    times: Annotated[
        list[Path],
        typer.DraftOption(metavar="F", help="A profile, or costs of `latency fit`; again for each of several drafts."),
    ],
    acceptance: Annotated[
        list[Path] | None,
        typer.DraftOption(
            metavar="F", help="An evaluate artifact, its acceptance.json or a check's baseline, for each --times."
        ),
    ] = None,
    acceptance_rate: Annotated[
        list[float] | None,
        typer.DraftOption(
            min=0, max=1, help="Instead: one rate for every token, for each --times or for all. Needs --tokens."
        ),
    ] = None,
    tokens: TokensOption = None,
    prompt_tokens: PromptTokensOption = 128,
    batch_cap: CapOption = None,
    engine: Annotated[
        Literal["vllm", "tensorrt-llm"] | None, typer.DraftOption(help="Print nothing but this engine's configuration.")
    ] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """The best draft length for every number of requests, 0 where speculation loses, and which of several drafts wins where."""
    import json
    import sys

    from pipeline.commands.latency.options import batch_cap_of, check_plot, notes, read_pair
    from pipeline.errors import Refused, UsageError
    from pipeline.latency.load.schedule import FORMATS, DraftOption, make_schedule, plain_spread
    from pipeline.report.latency_schedule import plot_schedule, print_schedule, schedule_json

    check_plot(plot)
    if engine is not None and len(times) > 1:
        raise UsageError("--engine: an engine serves one draft; give the --times of the one you chose")
    examinations: list[Path | None] = [*acceptance] if acceptance else [None for _ in times]
    rates: list[float | None] = [*acceptance_rate] if acceptance_rate else [None for _ in times]
    rates = rates * len(times) if len(rates) == 1 else rates
    if len(examinations) != len(times) or len(rates) != len(times):
        raise UsageError(
            f"{len(times)} --times, {len(examinations)} --acceptance, {len(rates)} --acceptance-rate: give one for each draft"
        )
    pairs = [read_pair(*given, tokens, prompt_tokens) for given in zip(times, examinations, rates, strict=True)]
    cap = batch_cap_of(batch_cap, *(step_costs for step_costs, _ in pairs))
    drafts, told = [], list[str]()
    for path, (step_costs, workload) in zip(times, pairs, strict=True):
        steps = step_costs.steps(cap, round(workload.context), workload.max_gamma)
        drafts.append(DraftOption(path.stem, workload.rounds_G, steps))
        told += [note for note in notes(step_costs, workload, cap) if note not in told]
    if len({draft.name for draft in drafts}) < len(drafts):
        raise UsageError("--times: two files of the same name; drafts are called by it")
    if (spread := plain_spread(drafts)) > _SAME_MACHINE:
        told.append(
            f"note: plain decoding takes up to {spread:.0%} longer in one of these files than in another; each draft is held "
            "against its own, which is fair for hours of one machine and not for two machines"
        )
    found = make_schedule(drafts)
    if engine is not None and not found.lengths_N.any():
        raise Refused(f"speculation does not pay here at any number of requests up to {cap}; configure none")
    if engine is None and not as_json:
        print_schedule(found, told)
    else:
        print(*told, sep="\n", end="\n" if told else "", file=sys.stderr)
        figures = FORMATS[engine](found.lengths_N) if engine else schedule_json(found)
        print(json.dumps(figures, indent=None if engine else 1, allow_nan=False))
    if plot is not None:
        plot_schedule(found, plot)
