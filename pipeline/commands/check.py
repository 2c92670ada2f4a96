"""`understudy check`: the acceptance regression check of CI."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import DEFAULT_STORE, StorePath


def check(
    draft: Annotated[
        Path, typer.Option("--draft", metavar="DIR", help="The draft's model directory, or an artifact that holds one.")
    ],
    baseline: Annotated[Path, typer.Option("--baseline", metavar="FILE", help="The baseline to compare with (JSON).")],
    completions: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A generate artifact; by default that of --run in --store.")
    ] = None,
    store: StorePath = DEFAULT_STORE,
    run_id: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="The run whose pair and completions are used; the latest by default."),
    ] = None,
    margin: Annotated[float, typer.Option(min=0, max=1, help="Acceptance that may be lost; 0.01 is a point.")] = 0.01,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the draft's figures to --baseline instead.")
    ] = False,
) -> None:
    """Examine a draft on stored completions and compare it with a baseline, prompt by prompt. Exit 3 on a regression."""
    from pipeline.errors import BrokenDraft, Refused, UsageError
    from pipeline.judgement.regression import baseline_json, compare, read_baseline
    from pipeline.store.artifacts import Store
    from pipeline.store.files import read_json, write_json
    from pipeline.store.runs import require_run

    if not update_baseline and not baseline.is_file():
        raise UsageError(f"--baseline {baseline}: no such file; write it with --update-baseline")
    before, stored = ({}, []) if update_baseline else read_baseline(read_json(baseline), str(baseline))
    target = Store(store)
    record = require_run(target, run_id)
    from pipeline.examination.against_run import (
        examine_again,  # loads torch: after everything that can be wrong without it
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
            f"--baseline {baseline}: made under another {', '.join(differing)}; "
            "compare like with like or write it anew with --update-baseline"
        )
    result = compare(counts, stored, margin, conditions["confidence"])
    change = result.difference
    line = (
        f"acceptance {result.draft:.4f} against {result.baseline:.4f} of the baseline: {change.value * 100:+.2f} points "
        f"[{change.low * 100:+.2f}, {change.high * 100:+.2f}] over {change.prompts} prompts, margin {margin * 100:g} points"
    )
    if not result.passed:
        raise Refused(f"regression: {line}")
    print(f"no regression: {line}")
