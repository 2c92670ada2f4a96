"""What `understudy profile` prints: forward times by batch size, and the draft's cost relative to the target's."""

from pathlib import Path

from pipeline.latency.costs.profile import Profile
from pipeline.report.console import Report

COLUMNS = ("batch size", "target, 1 token", "target, {tokens} tokens", "draft, 1 token", "draft / target")


def print_profile(profile: Profile, path: Path) -> None:
    """To stdout."""
    out = Report()
    about, context = profile.about, profile.target.contexts[0]
    out.text(
        f"{about['device']}, {about['threads']} threads, {about['dtype']}; times of {about['passes']} forward passes in ms at a "
        f"context of {context} tokens"
    )
    gammas = sorted({1, profile.max_gamma // 2, profile.max_gamma} - {0})
    first, plain_target, verify, *others = COLUMNS
    rows = []
    for batch in profile.target.batches:
        plain, drafted = (float(side.at(batch, 1, context)) for side in (profile.target, profile.draft))
        verified = (f"{1e3 * float(profile.target.at(batch, gamma + 1, context)):.2f}" for gamma in gammas)
        rows.append([str(batch), f"{1e3 * plain:.2f}", *verified, f"{1e3 * drafted:.2f}", f"{drafted / plain:.2f}"])
    out.table([first, plain_target, *(verify.format(tokens=gamma + 1) for gamma in gammas), *others], rows)
    for note in profile.notes:
        out.text(note)
    out.line(f"written to {path}")
