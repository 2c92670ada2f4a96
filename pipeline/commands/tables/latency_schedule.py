"""What `understudy latency schedule` prints: the best draft length by batch size."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from pipeline.commands.tables.console import Report
from pipeline.latency.load.schedule import (
    FORMATS,
    Schedule,
    batch_ranges,
    for_vllm,
    largest_paying_batch,
)

COLUMNS = ("batch size", "draft", "draft length", "speedup", "break-even acceptance", "step times off by")
_NOT_MEASURED = "*"
_MORE_POINTS = "measure more loads and draft lengths"
_CERTAIN = 1.005  # speedup that is shown as 1


def print_schedule(schedule: Schedule, notes: Sequence[str]) -> None:
    """Print the schedule to stdout."""
    out = Report()
    several = len(schedule.drafts) > 1
    rows = []
    for first, last in _ranges(schedule):
        name = schedule.winner_N[first] or "none"
        guessed = not all(schedule.measured_N[first : last + 1])
        rows.append(
            [
                _sizes(first + 1, last + 1),
                *([name] if several else []),
                f"{schedule.lengths_N[first]}{_NOT_MEASURED if guessed else ''}",
                _span(schedule.speedup_N[[first, last]], "{:.2f}"),
                _span(schedule.break_even_N[[first, last]], "{:.2f}"),
                ", ".join(dict.fromkeys(accuracy.short for accuracy in schedule.accuracy_N[first : last + 1])),
            ]
        )
    out.table([column for column in COLUMNS if several or column != "draft"], rows)
    cap = len(schedule.lengths_N)
    paying = (
        [(cap, cap, int(schedule.lengths_N[-1]))]
        if schedule.load
        else batch_ranges((schedule.lengths_N > 0).astype(np.int64))
    )
    if not all(draft.plain for draft in schedule.drafts):
        named = [_sizes(1, cap)]
    elif named := [_sizes(first, last) for first, last, pays in paying if pays]:
        errors = ", ".join(dict.fromkeys(accuracy.said for accuracy in schedule.accuracy_N if accuracy.fitted))
        off = f"; {errors}" if errors else ""
        out.text(f"speculation is faster at batch size {', '.join(named)} (batch cap: {cap}{off})")
    else:
        out.text(
            f"speculation is not faster at {'' if schedule.load else 'any '}batch size {'' if schedule.load else 'up to '}{cap}"
        )
    out.text(
        "break-even acceptance: the acceptance rate per token below which no draft length is faster than plain decoding; a long "
        "draft needs more"
    )
    for note in notes:
        out.text(note)
    if named and not several:
        out.line(f"vllm: {json.dumps(for_vllm(schedule.lengths_N))}")
        out.text("for TensorRT-LLM: --engine tensorrt-llm")


def said_of_unmeasured(schedule: Schedule) -> list[str]:
    """A note where a draft length is chosen that was not measured there."""
    guessed = [
        f"{schedule.lengths_N[first]} at batch size {_sizes(first + 1, last + 1)}"
        for first, last in _ranges(schedule)
        if not all(schedule.measured_N[first : last + 1])
    ]
    if not guessed:
        return []
    return [
        f"{_NOT_MEASURED} draft length {', '.join(guessed)}: not measured at all of these batch sizes, so times are interpolated "
        "or extrapolated; measure it before you serve it"
    ]


def said_of_accuracy(schedule: Schedule) -> list[str]:
    """What the errors of fitted step times mean for the choice."""
    if not any(accuracy.fitted for accuracy in schedule.accuracy_N):
        return []
    if any(draft.accuracy.fitted and draft.accuracy.left_out is None for draft in schedule.drafts):
        return [f"step times off by: unknown for fits of too few points, so no draft length is certain; {_MORE_POINTS}"]
    most = max(accuracy.certain_speedup for accuracy in schedule.accuracy_N)
    said = "step times off by: mean error on left-out points of `latency fit`"
    said += (
        ", and at the edge of the measured loads (edge)"
        if any(accuracy.edge for accuracy in schedule.accuracy_N)
        else ""
    )
    if most >= _CERTAIN:
        upto = f"a speedup up to {most:.2f}" if np.isfinite(most) else "any speedup"
        said += f". With these errors at their worst, {upto} can be a slowdown"
    sizes = [_sizes(first, last) for first, last, is_so in batch_ranges(schedule.uncertain_N.astype(np.int64)) if is_so]
    return [
        said + (f": so at batch size {', '.join(sizes)} a draft is not known to be faster" if sizes else ""),
        *_said_of_open(schedule),
    ]


def _said_of_open(schedule: Schedule) -> list[str]:
    """Notes where the error at the edge is larger than the difference of draft lengths."""
    groups = [
        (lengths, list(group))
        for lengths, group in groupby(range(len(schedule.open_N)), key=schedule.open_N.__getitem__)
    ]
    return [
        f"no choice at batch size {_sizes(group[0] + 1, group[-1] + 1)}: draft lengths {', '.join(map(str, lengths))} differ by "
        "less than the error at the edge; measure heavier loads to choose"
        for lengths, group in groups
        if lengths
    ]


def _sizes(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _ranges(schedule: Schedule) -> list[tuple[int, int]]:
    """First and last index of each range of batch sizes with one draft and one draft length, of what is known."""
    places = range((schedule.load or 1) - 1, len(schedule.lengths_N))
    groups = groupby(places, key=lambda place: (schedule.winner_N[place], int(schedule.lengths_N[place])))
    return [(members[0], members[-1]) for members in (list(group) for _, group in groups)]


def _span(ends: Any, form: str) -> str:
    first, last = (form.format(end) if np.isfinite(end) else "never" if end > 0 else "unknown" for end in ends)
    return first if first == last else f"{first} to {last}"


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    """Lists are by batch size, from 1; a break-even of null: no acceptance rate would pay."""
    return {
        "draft": schedule.winner_N,
        "draft_length": schedule.lengths_N.tolist(),
        "speedup": [float(speedup) if np.isfinite(speedup) else None for speedup in schedule.speedup_N],
        "accuracy": [accuracy.json() for accuracy in schedule.accuracy_N],
        "break_even_acceptance": [
            float(acceptance) if np.isfinite(acceptance) else None for acceptance in schedule.break_even_N
        ],
        "not_measured": sorted(
            set(schedule.lengths_N.tolist()).intersection(*(draft.unmeasured for draft in schedule.drafts))
        ),
        "measured": schedule.measured_N,
        "no_choice": [list(lengths) for lengths in schedule.open_N],
        "break_even_batch_size": largest_paying_batch(schedule.lengths_N),
        **(
            {engine: written(schedule.lengths_N) for engine, written in FORMATS.items()}
            if len(schedule.drafts) == 1
            else {}
        ),
    }
