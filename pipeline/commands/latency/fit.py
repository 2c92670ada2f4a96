"""`understudy latency fit`: fit the costs of a decoding step to measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.latency.options import JsonOption
from pipeline.progress import Progress, say_json

if TYPE_CHECKING:
    from pipeline.latency.costs.fit import Experts

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
        typer.Option(metavar="F", help="Write the costs to this file, for `latency predict` and `latency schedule`."),
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
    from pipeline.latency.costs.measurements import Measurement, read_measurements
    from pipeline.latency.costs.repeats import contradictions, falls, other_servers
    from pipeline.latency.costs.step_costs import is_profile, read_profile

    if out is not None and (not out.parent.is_dir() or out.is_dir()):
        raise UsageError(f"--out {out}: give a file in an existing directory")
    columns, mixture = _parse_pairs(column or [], "--column"), _experts(experts)
    files = [_parse_file(text) for text in source]
    if context is not None and len(files) > 1:
        raise UsageError(
            "--context works with one profile only; a table has the context length at which it was measured; leave it out"
        )
    measured: list[Measurement] = []
    told: dict[str, list[str]] = {}  # files by note
    for path, values in files:
        if is_profile(path):
            measured += read_profile(path).measurements(context)
        else:
            table = read_measurements(path, columns, values)
            measured += table.measured
            for note in table.notes:
                told.setdefault(note, []).append(path.name)
    found = fit_measurements(measured, mixture)
    notes = [f"{_named(names, len(files))}: {note}" for note, names in told.items()]
    differing = contradictions(measured)
    notes += [one.said() for one in differing] or falls(measured)
    notes += other_servers(measured, [label for one in differing for label in one.labels])
    if out is not None:
        out.write_text(json.dumps(found.json(), indent=1) + "\n")
    if as_json:
        for note in notes:
            Progress().line(note)
        say_json(found.json())
    else:
        print_costs(found, len(measured), out, notes, worst_misfit(found, measured))


def _named(names: list[str], files: int) -> str:
    """Of `files` in all; a long list is cut."""
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

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{where}: '{text}' should be NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _experts(text: str | None) -> "Experts | None":
    from pipeline.errors import UsageError
    from pipeline.latency.costs.fit import Experts

    if text is None:
        return None
    active, _, total = text.partition("/")
    if not (active.isdecimal() and total.isdecimal() and 0 < int(active) <= int(total)):
        raise UsageError(f"--experts {text}: give active/total experts, such as 8/64")
    return Experts(int(active), int(total))
