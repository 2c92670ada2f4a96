"""`understudy latency fit`: fit the costs of a decoding step to measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.latency.options import JsonOption
from pipeline.commands.options import path_option
from pipeline.progress import say_json

if TYPE_CHECKING:
    from pipeline.latency.costs.fit import Experts
    from pipeline.latency.costs.measurements import Measurement

_MOST_NAMES = 3  # of files, in a line


def fit(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="A file of `understudy profile`, CSV tables, or results of `vllm bench serve`, SGLang's `bench_serving`, "
            "GuideLLM, AIPerf, GenAI-Perf, inference-perf or trtllm-bench. Append values that are not in the file: "
            "report.json:gamma=3,acceptance_length=2.4",
        ),
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN", help="The column of a quantity: concurrency=users. May be given several times."
        ),
    ] = None,
    experts: Annotated[
        str | None, typer.Option(metavar="M/N", help="Mixture of experts: M of N experts are active for each token.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="The context length to use from a profile. Default: the shortest.")
    ] = None,
    out: Annotated[
        Path | None,
        path_option(metavar="F", help="Write the costs to this file, for `latency predict` and `latency schedule`."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit the costs of a decoding step to measurements.

    Costs are per step, per request and per draft token, with confidence intervals.
    """
    import json

    from pipeline.commands.tables.latency_fit import print_costs
    from pipeline.errors import UsageError
    from pipeline.latency.costs.fit_measurements import fit_measurements, worst_misfit
    from pipeline.latency.costs.repeats import doubts

    if out is not None and (not out.parent.is_dir() or out.is_dir()):
        raise UsageError(f"--out {out}: give a file in an existing directory")
    columns, mixture = _parse_pairs(column or [], "--column"), _experts(experts)
    files = [_parse_file(text) for text in source]
    if context is not None and len(files) > 1:
        raise UsageError(
            "--context works with one profile only; a table has the context length at which it was measured; leave it out"
        )
    measured, notes = _read(files, columns, context)
    costs = fit_measurements(measured, mixture)
    notes += doubts(measured)
    if out is not None:
        out.write_text(json.dumps(costs.json(), indent=1) + "\n")
    if as_json:
        say_json(costs.json(), notes=notes)
    else:
        print_costs(costs, len(measured), out, notes, worst_misfit(costs, measured))


def _read(
    files: list[tuple[Path, dict[str, float]]], columns: dict[str, str], context: int | None
) -> "tuple[list[Measurement], list[str]]":
    """The measurements of all files, and notes on how the tables were read. A note that several files have is one note."""
    from pipeline.latency.costs.measurements import read_measurements
    from pipeline.latency.costs.step_costs import is_profile, read_profile

    measured: list[Measurement] = []
    names: dict[str, list[str]] = {}  # of files, by note
    for path, values in files:
        if is_profile(path):
            measured += read_profile(path).measurements(context)
            continue
        table = read_measurements(path, columns, values)
        measured += table.measured
        for note in table.notes:
            names.setdefault(note, []).append(path.name)
    return measured, [f"{_named(having, len(files))}: {note}" for note, having in names.items()]


def _named(names: list[str], files: int) -> str:
    """The names of files in one line. A long list is cut; `files` is the number of all files."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"all {files} files" if len(names) == files else f"{names[0]} and {len(names) - 1} other files"


def _parse_file(text: str) -> tuple[Path, dict[str, float]]:
    """`FILE` or `FILE:name=number,name=number`."""
    from pipeline.errors import UsageError

    path, colon, rest = text.rpartition(":")
    if not colon or "=" not in rest:
        return Path(text), {}
    try:
        return Path(path), {name: float(value) for name, value in _parse_pairs(rest.split(","), text).items()}
    except ValueError:
        raise UsageError(f"{text}: values after the file must be numbers, such as :gamma=3") from None


def _parse_pairs(texts: list[str], where: str) -> dict[str, str]:
    from pipeline.errors import UsageError

    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{where}: '{text}' should be NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def _experts(text: str | None) -> "Experts | None":
    from pipeline.errors import UsageError
    from pipeline.latency.costs.fit import Experts

    if text is None:
        return None
    active, _, total = text.partition("/")
    if not (active.isdecimal() and total.isdecimal() and 0 < int(active) <= int(total)):
        raise UsageError(f"--experts {text}: give active/total experts, such as 8/64")
    return Experts(int(active), int(total))
