"""`understudy check`: the acceptance regression check of CI."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, RunId, StorePath, TrustOption

if TYPE_CHECKING:
    from pipeline.acceptance.baseline import Conditions, Examined
    from pipeline.examination.on_completions import Settings
    from pipeline.store.runs import RunRecord


def check(
    draft: Annotated[
        str,
        typer.Option("--draft", metavar="D", help="The draft model: a directory, an artifact or org/name@revision."),
    ],
    baseline: Annotated[
        Path, typer.Option("--baseline", metavar="FILE", help="The JSON file of the figures to compare with.")
    ],
    run: RunId = None,
    completions: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A generate artifact, in place of the one of RUN. No store is needed then."),
    ] = None,
    store: StorePath = DEFAULT_STORE,
    margin: Annotated[
        float, typer.Option(min=0, max=1, help="The acceptance rate that the draft may lose; 0.01 is 1 point.")
    ] = 0.01,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the draft's figures to --baseline and compare nothing.")
    ] = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Compare a draft with a baseline file, prompt by prompt. Exit 3 on a regression."""
    from pipeline.acceptance.baseline import baseline_json, read_baseline
    from pipeline.errors import BrokenDraft, Refused, UsageError
    from pipeline.store.artifacts import Store
    from pipeline.store.files import read_user_json, write_json
    from pipeline.store.runs import find_built, require_run

    if not update_baseline and not baseline.is_file():
        raise UsageError(f"--baseline {baseline}: no such file; write it with --update-baseline")
    before = None
    if baseline.is_file() and not (update_baseline and (run or completions is None)):
        before = read_baseline(read_user_json(baseline, "write it anew with --update-baseline"), str(baseline))
    record, where = None, completions
    if run is not None or where is None:
        opened = Store(store)
        record = require_run(opened, run, needs=("generate",))
        where = where or find_built(opened, record, "generate").path
    settings = _settings(before, record, trust_remote_code)
    from pipeline.examination.on_completions import (
        conditions_of,
        examine_on,  # loads torch, so it comes after every check that needs no torch
        open_completions,
    )

    stored = open_completions(where)
    if before is not None and not update_baseline:
        _check_conditions(conditions_of(stored, settings), before, baseline)
    try:
        examined = examine_on(stored, draft, settings)
    except BrokenDraft as error:
        raise Refused(f"regression: {error}") from None
    if update_baseline:
        write_json(baseline, baseline_json(examined))
        print(f"baseline of {len(examined.counts)} prompts written to {baseline}{_left_out(len(examined.trained_on))}")
        return
    assert before is not None
    _compare(examined, before, margin)


def _check_conditions(conditions: "Conditions", before: "Examined", baseline: Path) -> None:
    from pipeline.errors import UsageError
    from pipeline.judgement.regression import differing

    if names := differing(conditions, before.conditions):
        raise UsageError(
            f"--baseline {baseline}: made with another {', '.join(names)}; use the same, or write it again with "
            "--update-baseline"
        )


def _compare(examined: "Examined", before: "Examined", margin: float) -> None:
    """Print the comparison. Refused where a regression is not excluded, UsageError where rows of the baseline were edited."""
    from pipeline.errors import Refused
    from pipeline.judgement.regression import compare

    result = compare(examined, before, margin)
    change = result.difference
    line = (
        f"acceptance rate {result.draft:.4f}, baseline {result.baseline:.4f}: {change.value * 100:+.2f} points "
        f"[{change.low * 100:+.2f}, {change.high * 100:+.2f}] over {change.prompts} prompts, margin {margin * 100:g} points"
        f"{_left_out(result.left_out)}"
    )
    if examined.hardware != before.hardware:
        print(f"note: the baseline was measured on {before.hardware}, this machine is {examined.hardware}; {_ROUNDING}")
    if result.power is not None and result.power.equal_passes is not None:
        needed = result.power.prompts_needed["0.95"]
        print(
            f"power: a draft with equal acceptance passes with {100 * result.power.equal_passes:.0f}% over these prompts; "
            f"95% needs {'more than ten million' if needed is None else needed} prompts"
        )
    if not result.passed:
        raise Refused(f"regression: {line}")
    print(f"no regression: {line}")


_ROUNDING = "acceptance differs by rounding between them, most with quantised or 16-bit weights"


def _settings(before: "Examined | None", record: "RunRecord | None", trust_remote_code: bool) -> "Settings":
    """The baseline says how a draft is examined; for a new baseline the run's config does."""
    from pipeline.config.loading import parse_stored_config
    from pipeline.errors import UsageError
    from pipeline.examination.on_completions import Settings

    config = None if record is None else parse_stored_config(record.config, f"run {record.id}")
    device = "auto" if config is None else config.device
    trusted = trust_remote_code or (config is not None and config.pair.trust_remote_code)
    if before is not None:
        settings, dtype = before.conditions.settings, before.conditions.dtype
    elif config is not None:
        settings, dtype = config.evaluate, config.pair.draft.dtype
    else:
        raise UsageError(
            "--update-baseline: a new baseline takes its settings from a run; name RUN and its --store, or give a baseline file "
            "that exists"
        )
    return Settings(evaluate=settings, dtype=dtype, device=device, trust_remote_code=trusted)


def _left_out(count: int) -> str:
    return f"; {count} prompts left out, because a draft was trained on them" if count else ""
