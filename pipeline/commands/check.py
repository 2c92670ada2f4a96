"""`understudy check`: the acceptance regression check of CI."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, DraftName, RunId, StorePath, TargetOfHead, TrustOption, path_option
from pipeline.progress import say

if TYPE_CHECKING:
    from pipeline.acceptance.baseline import ExaminedCounts
    from pipeline.examination.on_completions import Settings
    from pipeline.judgement.regression import Comparison
    from pipeline.registry.named import Draft
    from pipeline.store.artifacts import Artifact
    from pipeline.store.runs import RunRecord


def check(
    draft: DraftName,
    baseline: Annotated[
        Path, path_option("--baseline", metavar="FILE", help="The JSON file of the figures to compare with.")
    ],
    run: RunId = None,
    completions: Annotated[
        Path | None,
        path_option(metavar="DIR", help="A generate artifact, in place of the one of RUN. No store is needed then."),
    ] = None,
    target: TargetOfHead = None,
    store: StorePath = DEFAULT_STORE,
    margin: Annotated[
        float, typer.Option(min=0, max=1, help="The acceptance rate that the draft may lose, below 1; 0.01 is 1 point.")
    ] = 0.01,
    segment_margin: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="The same for each segment (thinking, tool calls, answer) that holds at least 10% of the tokens; 1: segments "
            "are only shown.",
        ),
    ] = 0.02,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the draft's figures to --baseline and compare nothing.")
    ] = False,
    junit: Annotated[Path | None, path_option(metavar="FILE", help="Write the result as JUnit XML.")] = None,
    summary: Annotated[
        Path | None,
        path_option(
            metavar="FILE",
            help="Write the result as Markdown. By default it is appended to $GITHUB_STEP_SUMMARY, if set.",
        ),
    ] = None,
    json_file: Annotated[Path | None, path_option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
    trust_remote_code: TrustOption = False,
) -> None:
    """Compare a draft with a baseline file, prompt by prompt. Exit 3 on a regression."""
    began = time.perf_counter()
    inputs = _Inputs(draft, baseline, run, completions, target, store, trust_remote_code)
    if update_baseline:
        named = {"--junit": junit, "--summary": summary, "--json": json_file}
        _update_baseline(inputs, [option for option, path in named.items() if path is not None])
        return
    from pipeline.commands.tables.check import compared, not_compared
    from pipeline.commands.tables.check_files import check_files
    from pipeline.errors import Refused, UnderstudyError

    files = check_files(junit, summary, json_file)
    files.prepare(baseline)
    try:
        comparison = _compare(inputs, margin, segment_margin)
    except UnderstudyError as error:
        files.write(not_compared(error, draft, str(baseline), time.perf_counter() - began))
        raise
    result = compared(comparison, draft, str(baseline), time.perf_counter() - began)
    files.write(result)
    say(*filter(None, (result.note, result.power)), *result.segments)
    if not comparison.passed:
        raise Refused(result.line)
    say(result.line)


@dataclass(frozen=True)
class _Inputs:
    """What is examined, and where it is found."""

    draft: str
    baseline: Path
    run: str | None
    completions: Path | None
    target: str | None
    store: Path
    trust_remote_code: bool


def _update_baseline(inputs: _Inputs, outputs: Sequence[str]) -> None:
    """Examine the draft and write its figures to --baseline. The settings are those of the run; without one, of the old file."""
    from pipeline.acceptance.baseline import baseline_json
    from pipeline.commands.tables.check import left_out_text
    from pipeline.errors import UsageError
    from pipeline.store.files import check_user_file, write_json

    if outputs:
        raise UsageError(f"{', '.join(outputs)}: --update-baseline compares nothing; leave the option out")
    path = inputs.baseline
    check_user_file(path, "--baseline")
    of_run = inputs.run is not None or inputs.completions is None
    before = None if of_run or not path.is_file() else _read(path)
    draft = _named(inputs)
    stored, settings = _open(inputs, before)
    examined = _examine(stored, draft, settings)
    write_json(path, baseline_json(examined))
    say(f"baseline of {len(examined.counts)} prompts written to {path}{left_out_text(len(examined.trained_on))}")


def _compare(inputs: _Inputs, margin: float, segment_margin: float) -> "Comparison":
    """Examine the draft as the baseline was, and compare. UsageError if conditions or rows differ; Refused without figures."""
    from dataclasses import replace

    from pipeline.drafts.head_config import kind_of
    from pipeline.drafts.kinds import KINDS
    from pipeline.errors import UsageError
    from pipeline.judgement.regression import compare, differing, require_same_rates

    path = inputs.baseline
    if margin >= 1:
        raise UsageError(
            f"--margin {margin:g}: {100 * margin:g} points, with which every draft passes; 1 point is 0.01"
        )
    if path.is_dir():
        raise UsageError(f"--baseline {path}: a directory, not a file")
    if not path.exists():
        raise UsageError(
            f"--baseline {path}: no such file; write it from the draft to compare with: {_writing(inputs)}"
        )
    before = _read(path)
    draft = _named(inputs)
    kind = kind_of(draft.directory)
    require_same_rates(kind.name, before)
    stored, settings = _open(inputs, before)
    from pipeline.examination.on_completions import conditions_of

    if names := differing(conditions_of(stored, settings, kind), before.conditions):
        raise UsageError(
            f"--baseline {path}: made under other conditions ({', '.join(names)}); use the same, or write it again with "
            "--update-baseline"
        )
    settings = replace(settings, other_tokenizer=KINDS[before.kind].maps_tokens)  # else it is the wrong draft
    return compare(_examine(stored, draft, settings), before, margin, segment_margin)


def _writing(inputs: _Inputs) -> str:
    """The command that writes a baseline. The settings of a new one are those of a run."""
    words = ["understudy", "check", inputs.run or "latest", "--draft", inputs.draft, "--baseline", str(inputs.baseline)]
    words += [] if inputs.completions is None else ["--completions", str(inputs.completions)]
    words += [] if inputs.target is None else ["--target", inputs.target]
    words += [] if inputs.store == DEFAULT_STORE else ["--store", str(inputs.store)]
    words += ["--trust-remote-code"] if inputs.trust_remote_code else []
    return shlex.join([*words, "--update-baseline"])


def _read(baseline: Path) -> "ExaminedCounts":
    from pipeline.acceptance.baseline import read_baseline
    from pipeline.store.files import read_user_json

    return read_baseline(read_user_json(baseline, "write it again with --update-baseline"), str(baseline))


def _open(inputs: _Inputs, before: "ExaminedCounts | None") -> "tuple[Artifact, Settings]":
    """The completions, and how a draft is examined on them. No model is loaded."""
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import find_built, require_run

    record, where = None, inputs.completions
    if inputs.run is not None or where is None:
        opened = Store(inputs.store)
        record = require_run(opened, inputs.run, needs=("generate",))
        where = where or find_built(opened, record, "generate").path
    settings = _settings(inputs, before, record)
    from pipeline.examination.on_completions import open_completions  # loads torch: after every check that needs none

    return open_completions(where), settings


def _named(inputs: _Inputs) -> "Draft":
    from pipeline.registry.finding import find_draft
    from pipeline.store.artifacts import Store

    return find_draft(inputs.draft, Store(inputs.store), "--draft")


def _examine(stored: "Artifact", draft: "Draft", settings: "Settings") -> "ExaminedCounts":
    from pipeline.errors import BrokenDraft, Refused
    from pipeline.examination.on_completions import examine_on
    from pipeline.running.examined_drafts import with_target

    try:
        return examine_on(stored, draft.directory, with_target(settings, draft))
    except BrokenDraft as error:
        raise Refused(f"regression: {error}") from None


def _settings(inputs: _Inputs, before: "ExaminedCounts | None", record: "RunRecord | None") -> "Settings":
    """How a draft is examined: as the baseline was; for a new baseline as the run's config sets."""
    from pipeline.config.stored import run_config
    from pipeline.errors import UsageError
    from pipeline.examination.on_completions import Settings

    config = None if record is None else run_config(record)
    device = "auto" if config is None else config.device
    trusted = inputs.trust_remote_code or (config is not None and config.pair.trust_remote_code)
    if before is not None:
        settings, dtype = before.conditions.settings, before.conditions.dtype
    elif config is not None:
        settings, dtype = config.evaluate, config.pair.draft.dtype
    else:
        raise UsageError(
            "--update-baseline: a new baseline takes its settings from a run; name it, and the --store that has it: "
            + _writing(inputs)
        )
    return Settings(evaluate=settings, dtype=dtype, device=device, trust_remote_code=trusted, target=inputs.target)
