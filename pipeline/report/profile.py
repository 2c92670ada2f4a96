"""What `understudy profile` prints: forward times by batch size, and the draft's cost relative to the target's."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.latency.costs.profile import Profile

_PIPE_WIDTH = 140


def print_profile(profile: Profile, path: Path) -> None:
    """To stdout; a pipe gets plain text of a fixed width."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    about, context = profile.about, profile.target.contexts[0]
    console.print(
        f"{about['device']}, {about['threads']} threads, {about['dtype']}; forward times in ms at a context of {context} "
        "tokens",
        markup=False,
        soft_wrap=True,
    )
    gammas = sorted({1, profile.max_gamma // 2, profile.max_gamma} - {0})
    table = Table()
    for title in (
        "batch size",
        "target, 1 token",
        *(f"target, {gamma + 1} tokens" for gamma in gammas),
        "draft, 1 token",
        "draft / target",
    ):
        table.add_column(title, justify="right")
    for batch in profile.target.batches:
        plain, drafted = (float(side.at(batch, 1, context)) for side in (profile.target, profile.draft))
        verified = (f"{1e3 * float(profile.target.at(batch, gamma + 1, context)):.2f}" for gamma in gammas)
        table.add_row(str(batch), f"{1e3 * plain:.2f}", *verified, f"{1e3 * drafted:.2f}", f"{drafted / plain:.2f}")
    console.print(table)
    for note in profile.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(f"written to {path}", markup=False, soft_wrap=True)
