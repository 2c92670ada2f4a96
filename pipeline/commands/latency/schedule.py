"""`understudy latency schedule`: the best draft length for each batch size."""

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
from pipeline.progress import Progress, say_json

_OUTPUT_TOKENS = 256  # where none is known: the best draft length hardly depends on it
_MAX_PLAIN_SPREAD = 0.1  # relative difference of plain decoding between files from which a note is printed
_NO_PLAIN = (
    "note: plain decoding (draft length 0) was not measured: these are the fastest of the measured draft lengths, and whether "
    "any is faster than none is unknown; several drafts and --plot need it"
)


def schedule(
    costs: Annotated[
        list[Path],
        typer.Option(
            metavar="F",
            help="Step costs: a file of `understudy profile` or of `latency fit`. "
            "May be given several times, once for each draft.",
        ),
    ],
    acceptance: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="F",
            help="An evaluate artifact, its acceptance.json, or a baseline file of `check`. Give one for each --costs.",
        ),
    ] = None,
    acceptance_rate: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Instead: an acceptance rate, one for each --costs or one for all. Needs --output-tokens.",
        ),
    ] = None,
    output_tokens: TokensOption = None,
    prompt_tokens: PromptTokensOption = 128,
    max_num_seqs: CapOption = None,
    engine: Annotated[
        Literal["vllm", "tensorrt-llm"] | None, typer.Option(help="Print only the configuration for this engine.")
    ] = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best draft length for each batch size.

    A draft length of 0 means no speculation. With several drafts, also prints the best draft for each batch size.
    """

    from pipeline.commands.latency.options import check_plot, default_max_num_seqs, notes, read_costs_and_workload
    from pipeline.commands.tables.latency_schedule import (
        print_schedule,
        said_of_accuracy,
        said_of_unmeasured,
        schedule_json,
    )
    from pipeline.engines.issues import schedule_issues
    from pipeline.errors import Refused, UsageError
    from pipeline.latency.load.measured_losses import said_of_losses
    from pipeline.latency.load.prediction import draft_option
    from pipeline.latency.load.schedule import FORMATS, batch_ranges, make_schedule, plain_spread
    from pipeline.review.at_load import plot_schedule

    check_plot(plot)
    if engine is not None and len(costs) > 1:
        raise UsageError("--engine: an engine serves one draft; give --costs once")
    examinations: list[Path | None] = [*acceptance] if acceptance else [None for _ in costs]
    rates: list[float | None] = [*acceptance_rate] if acceptance_rate else [None for _ in costs]
    rates = rates * len(costs) if len(rates) == 1 else rates
    if len(examinations) != len(costs) or len(rates) != len(costs):
        raise UsageError(
            f"{len(costs)} --costs, {len(examinations)} --acceptance, {len(rates)} --acceptance-rate: give one for each draft"
        )
    pairs = [
        read_costs_and_workload(
            *given,
            output_tokens,
            prompt_tokens,
            _OUTPUT_TOKENS,
            plain=len(costs) > 1 or plot is not None,
            one_load=True,
        )
        for given in zip(costs, examinations, rates, strict=True)
    ]
    if plain := next((path for path, (one, _) in zip(costs, pairs, strict=True) if one.max_gamma < 1), None):
        raise UsageError(
            f"--costs {plain}: no measurement with a draft, so there is no draft length to choose; add one"
        )
    loads = {one.load for one, _ in pairs}
    load = next(iter(loads - {None}), None)
    if load is not None and (len(loads) > 1 or max_num_seqs not in (None, load) or plot is not None):
        raise UsageError(
            f"--costs: a file has one load only ({load} requests); give no other --max-num-seqs, no --plot, and only files "
            "of this load"
        )
    cap = load or default_max_num_seqs(max_num_seqs, *(step_costs for step_costs, _ in pairs))
    drafts, told = [], list[str]()
    for path, (step_costs, workload) in zip(costs, pairs, strict=True):
        drafts.append(draft_option(path.stem, workload, step_costs, cap))
        told += [note for note in notes(step_costs, workload, cap) if note not in told]
    if len({draft.name for draft in drafts}) < len(drafts):
        raise UsageError("--costs: two files have the same name, and drafts are named after their files; rename one")
    if (spread := plain_spread(drafts)) > _MAX_PLAIN_SPREAD:
        told.append(
            f"note: plain decoding differs by up to {spread:.0%} between these files. Each speedup is over the plain decoding of "
            "its own file; compare drafts only if all were measured on the same machine"
        )
    if not drafts[0].plain:
        told.append(_NO_PLAIN)
    found = make_schedule(drafts) if load is None else make_schedule(drafts).at_load(load)
    told = [*said_of_unmeasured(found), *told, *said_of_accuracy(found)]
    for draft in drafts:
        told += said_of_losses(draft.losses.to_plain if draft.losses else ())
    served = (engine,) if engine else ("vllm", "tensorrt-llm")
    if len(batch_ranges(found.lengths_N)) > 1:  # one length needs no schedule
        told += [issue for one in served for issue in schedule_issues(one)]
    if engine is not None and not found.lengths_N.any():
        raise Refused(f"speculation is not faster at any batch size up to {cap}; turn it off")
    if engine is None and not as_json:
        print_schedule(found, told)
    else:
        for note in told:
            Progress().line(note)
        figures = FORMATS[engine](found.lengths_N) if engine else schedule_json(found)
        say_json(figures, indent=None if engine else 1)
    if plot is not None:
        plot_schedule(found, plot)
