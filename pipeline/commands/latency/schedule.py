"""`understudy latency schedule`: the best draft length for each batch size."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.latency.options import (
    CapOption,
    JsonOption,
    PlotOption,
    PromptTokensOption,
    TokensOption,
)
from pipeline.commands.options import path_option
from pipeline.progress import say_json

if TYPE_CHECKING:
    from pipeline.latency.costs.step_costs import StepCosts
    from pipeline.latency.load.schedule import Schedule
    from pipeline.latency.load.workload import Workload

    Inputs = tuple[StepCosts, Workload]

_OUTPUT_TOKENS = 256  # where none is known: the best draft length hardly depends on it
_MAX_PLAIN_SPREAD = 0.1  # relative difference of plain decoding between files from which a note is printed
_NO_PLAIN = (
    "note: plain decoding (draft length 0) was not measured: these are the fastest of the measured draft lengths, and whether "
    "any is faster than none is unknown; several drafts and --plot need it"
)


def schedule(
    costs: Annotated[
        list[Path],
        path_option(
            metavar="F",
            help="Step costs: a file of `understudy profile` or of `latency fit`. "
            "May be given several times, once for each draft.",
        ),
    ],
    acceptance: Annotated[
        list[Path] | None,
        path_option(
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
    from pipeline.commands.latency.options import check_plot, default_max_num_seqs
    from pipeline.commands.tables.latency_schedule import print_schedule, schedule_json
    from pipeline.errors import Refused, UsageError
    from pipeline.latency.load.prediction import draft_option
    from pipeline.latency.load.schedule import FORMATS, make_schedule
    from pipeline.review.at_load import plot_schedule

    check_plot(plot)
    if engine is not None and len(costs) > 1:
        raise UsageError("--engine: an engine serves one draft; give --costs once")
    plain = len(costs) > 1 or plot is not None
    inputs = _read(costs, acceptance, acceptance_rate, output_tokens, prompt_tokens, plain)
    load = _one_load(inputs, max_num_seqs, plot)
    cap = load or default_max_num_seqs(max_num_seqs, *(step_costs for step_costs, _ in inputs))
    drafts = [draft_option(path.stem, workload, of, cap) for path, (of, workload) in zip(costs, inputs, strict=True)]
    if len({draft.name for draft in drafts}) < len(drafts):
        raise UsageError("--costs: two files have the same name, and drafts are named after their files; rename one")
    best = make_schedule(drafts) if load is None else make_schedule(drafts).at_load(load)
    notes = _notes(best, inputs, cap, (engine,) if engine else ("vllm", "tensorrt-llm"))
    if engine is not None and not best.lengths_N.any():
        raise Refused(f"speculation is not faster at any batch size up to {cap}; turn it off")
    if engine is not None:
        say_json(FORMATS[engine](best.lengths_N), indent=None, notes=notes)
    elif as_json:
        say_json(schedule_json(best), notes=notes)
    else:
        print_schedule(best, notes)
    if plot is not None:
        plot_schedule(best, plot)


def _read(
    costs: list[Path],
    acceptance: list[Path] | None,
    acceptance_rate: list[float] | None,
    output_tokens: str | None,
    prompt_tokens: int,
    plain: bool,
) -> list["Inputs"]:
    """Step costs and workload of each draft. `plain`: whether plain decoding must have been measured. UsageError unless there is
    an acceptance for each --costs."""
    from pipeline.commands.latency.options import read_costs_and_workload
    from pipeline.errors import UsageError

    examinations: list[Path | None] = [*acceptance] if acceptance else [None for _ in costs]
    rates: list[float | None] = [*acceptance_rate] if acceptance_rate else [None for _ in costs]
    rates = rates * len(costs) if len(rates) == 1 else rates
    if len(examinations) != len(costs) or len(rates) != len(costs):
        raise UsageError(
            f"{len(costs)} --costs, {len(examinations)} --acceptance, {len(rates)} --acceptance-rate: give one for each draft"
        )
    inputs = [
        read_costs_and_workload(*given, output_tokens, prompt_tokens, _OUTPUT_TOKENS, plain=plain, one_load=True)
        for given in zip(costs, examinations, rates, strict=True)
    ]
    for path, (step_costs, _) in zip(costs, inputs, strict=True):
        if step_costs.max_gamma < 1:
            raise UsageError(
                f"--costs {path}: no measurement with a draft, so there is no draft length to choose; add one"
            )
    return inputs


def _one_load(inputs: list["Inputs"], max_num_seqs: int | None, plot: Path | None) -> int | None:
    """The load of costs that were measured at one load only, None for others. UsageError for what needs several loads."""
    from pipeline.errors import UsageError

    loads = {step_costs.load for step_costs, _ in inputs}
    load = next(iter(loads - {None}), None)
    if load is not None and (len(loads) > 1 or max_num_seqs not in (None, load) or plot is not None):
        raise UsageError(
            f"--costs: a file has one load only ({load} requests); give no other --max-num-seqs, no --plot, and only files "
            "of this load"
        )
    return load


def _notes(best: "Schedule", inputs: list["Inputs"], cap: int, engines: Sequence[str]) -> list[str]:
    """What the reader of the schedule must know: where it is not certain, and known issues of the engines with schedules."""
    from pipeline.commands.latency.options import notes_on
    from pipeline.commands.tables.latency_schedule import said_of_accuracy, said_of_unmeasured
    from pipeline.engines.facts import FACTS
    from pipeline.latency.load.measured_losses import said_of_losses
    from pipeline.latency.load.schedule import batch_ranges, plain_spread

    notes = said_of_unmeasured(best)
    notes += dict.fromkeys(note for given in inputs for note in notes_on(*given, cap))
    if (spread := plain_spread(best.drafts)) > _MAX_PLAIN_SPREAD:
        notes.append(
            f"note: plain decoding differs by up to {spread:.0%} between these files. Each speedup is over the plain decoding of "
            "its own file; compare drafts only if all were measured on the same machine"
        )
    if not best.drafts[0].plain:
        notes.append(_NO_PLAIN)
    notes += said_of_accuracy(best)
    for draft in best.drafts:
        notes += said_of_losses(draft.losses.to_plain if draft.losses else ())
    if len(batch_ranges(best.lengths_N)) > 1:  # one length needs no schedule
        notes += [issue for engine in engines for issue in FACTS[engine].schedule_issues]
    return notes
