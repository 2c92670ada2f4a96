"""`understudy profile`: forward-pass times of a pair on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import (
    DEFAULT_STORE,
    DeviceOption,
    DraftName,
    DtypeOption,
    StorePath,
    TargetName,
    TrustOption,
    path_option,
)

if TYPE_CHECKING:
    from pipeline.latency.costs.profile import Profile

COLUMNS = ("batch size", "target, 1 token", "target, {tokens} tokens", "draft, 1 token", "draft / target")
_CONTEXTS, _PROMPTS = (128, 512), (32, 128, 512)  # defaults, in tokens


def profile(
    target: TargetName,
    draft: DraftName,
    out: Annotated[Path, path_option(metavar="F", help="The JSON file to write.")] = Path("profile.json"),
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes to measure, separated by commas.")] = "1,2,4,8,16,32",
    max_gamma: Annotated[int, typer.Option(min=1, max=16, help="The longest draft length to measure.")] = 8,
    context_lengths: Annotated[
        str | None,
        typer.Option(
            help="Context lengths to measure, in tokens, separated by commas; by default 128 and 512, or what fits."
        ),
    ] = None,
    prompt_lengths: Annotated[
        str | None,
        typer.Option(
            help="Prefill lengths to measure, in tokens, separated by commas; by default 32, 128 and 512, or what fits."
        ),
    ] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = "auto",
    store: StorePath = DEFAULT_STORE,
    trust_remote_code: TrustOption = False,
) -> None:
    """Measure the forward times of a target and its draft.

    Times are measured by batch size, number of tokens and context length. Measurements are kept in FILE.measured until all are
    done, so a second call continues after a killed one.
    """
    batches = _numbers(batch_sizes, "--batch-sizes")
    contexts = _numbers(context_lengths, "--context-lengths") if context_lengths else None
    prompts = _numbers(prompt_lengths, "--prompt-lengths") if prompt_lengths else None
    import json

    from pipeline.drafts.head_config import find_target
    from pipeline.latency.costs.measured_points import points_path
    from pipeline.models.files import model_digest
    from pipeline.models.step_shape import step_shape
    from pipeline.progress import Progress
    from pipeline.registry.finding import find_draft
    from pipeline.store.artifacts import Store
    from pipeline.store.files import check_user_file, write_user_text

    check_user_file(out, "--out")
    check_user_file(points_path(out), "--out")
    named = find_draft(draft, Store(store), "--draft")
    from pipeline.drafts.named_pair import load_named_pair
    from pipeline.latency.costs.measure import Grid, measure_profile  # loads torch

    pair = load_named_pair(target, {draft: named}, dtype, device, trust_remote_code)
    (loaded,) = pair.drafts.values()
    contexts, prompts = _lengths(contexts, prompts, max_gamma, pair.context)
    shape = step_shape(named.directory)  # drafts of equal shape cost the same
    about = {"target": model_digest(find_target(target)), "draft": named.digest, "draft_shape": shape}
    measured = measure_profile(
        pair.target,
        loaded.models[0],
        pair.vocabulary,
        Grid(batches=batches, gammas=max_gamma, contexts=contexts, prompts=prompts),
        about=about,
        progress=Progress(),
        out=out,
    )
    write_user_text(out, json.dumps(measured.json(), indent=1) + "\n", "--out")
    points_path(out).unlink(missing_ok=True)
    _print_profile(measured, out)


def _lengths(
    contexts: tuple[int, ...] | None, prompts: tuple[int, ...] | None, max_gamma: int, most: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The context and prompt lengths to measure: those given, or by default those that fit in a context of `most` tokens.
    UsageError for lengths that do not fit."""
    from pipeline.errors import UsageError

    room = most - max_gamma - 1
    contexts = contexts or tuple(sorted({min(length, room) for length in _CONTEXTS}))
    prompts = prompts or tuple(sorted({min(length, room) for length in _PROMPTS}))
    longest = max(*contexts, *prompts)
    if longest > room or room < 1:
        raise UsageError(
            f"--context-lengths, --prompt-lengths, --max-gamma: {longest + max_gamma + 1} tokens are needed, "
            f"and the pair's context is {most}; lower them"
        )
    return contexts, prompts


def _print_profile(measured: "Profile", path: Path) -> None:
    """Print forward times by batch size to stdout, and the draft's cost relative to the target's."""
    from pipeline.commands.tables.console import Report

    out = Report()
    about, context = measured.about, measured.target.contexts[0]
    out.text(
        f"{about['device']}, {about['threads']} threads, {about['dtype']}; times of {about['passes']} forward passes in ms at a "
        f"context of {context} tokens"
    )
    gammas = sorted({1, measured.max_gamma // 2, measured.max_gamma} - {0})
    first, plain_target, verify, *others = COLUMNS
    rows = []
    for batch in measured.target.batches:
        plain, drafted = (float(side.at(batch, 1, context)) for side in (measured.target, measured.draft))
        verified = (f"{1e3 * float(measured.target.at(batch, gamma + 1, context)):.2f}" for gamma in gammas)
        rows.append([str(batch), f"{1e3 * plain:.2f}", *verified, f"{1e3 * drafted:.2f}", f"{drafted / plain:.2f}"])
    out.table([first, plain_target, *(verify.format(tokens=gamma + 1) for gamma in gammas), *others], rows)
    for note in measured.notes:
        out.text(note)
    out.line(f"written to {path}")


def _numbers(text: str, option: str) -> tuple[int, ...]:
    from pipeline.errors import UsageError

    try:
        numbers = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        numbers = ()
    if not numbers or numbers[0] < 1:
        raise UsageError(f"{option} {text}: give whole numbers above 0, separated by commas, such as 1,4,16")
    return numbers
