"""`understudy check`: the acceptance regression check of CI."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, RunId, StorePath


def check(
    draft: Annotated[
        Path, typer.Option("--draft", metavar="DIR", help="The draft's model directory, or an artifact that holds one.")
    ],
    baseline: Annotated[
        Path, typer.Option("--baseline", metavar="FILE", help="The JSON file of the figures to compare with.")
    ],
    run: RunId = None,
    completions: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A generate artifact; by default the one of RUN.")
    ] = None,
    store: StorePath = DEFAULT_STORE,
    margin: Annotated[
        float, typer.Option(min=0, max=1, help="The acceptance rate that the draft may lose; 0.01 is 1 point.")
    ] = 0.01,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the draft's figures to --baseline and compare nothing.")
    ] = False,
) -> None:
    """Examine a draft on the completions of a run and compare it with a baseline, prompt by prompt. Exit 3 on a regression."""
    from pipeline.errors import BrokenDraft, Refused, UsageError
    from pipeline.judgement.regression import baseline_json, compare, read_baseline
    from pipeline.store.artifacts import Store
    from pipeline.store.files import read_json, write_json
    from pipeline.store.runs import require_run

    if not update_baseline and not baseline.is_file():
        raise UsageError(f"--baseline {baseline}: no such file; write it with --update-baseline")
    before, stored = ({}, []) if update_baseline else read_baseline(read_json(baseline), str(baseline))
    target = Store(store)
    record = require_run(target, run)
    from pipeline.examination.against_run import (
        examine_again,  # loads torch, so it comes after every check that needs no torch
    )

    try:
        counts, conditions = examine_again(target, record, draft, completions)
    except BrokenDraft as error:
        raise Refused(f"regression: {error}") from None
    if update_baseline:
        write_json(baseline, baseline_json(counts, conditions))
        print(f"baseline of {len(counts)} prompts written to {baseline}")
        return
    differing = sorted(name for name in conditions if before.get(name) != conditions[name])
    if differing:
        raise UsageError(
            f"--baseline {baseline}: made with another {', '.join(differing)}; "
            "use the same settings, or write it again with --update-baseline"
        )
    result = compare(counts, stored, margin, conditions["confidence"])
    change = result.difference
    line = (
        f"acceptance rate {result.draft:.4f}, baseline {result.baseline:.4f}: {change.value * 100:+.2f} points "
        f"[{change.low * 100:+.2f}, {change.high * 100:+.2f}] over {change.prompts} prompts, margin {margin * 100:g} points"
    )
    if not result.passed:
        raise Refused(f"regression: {line}")
    print(f"no regression: {line}")
