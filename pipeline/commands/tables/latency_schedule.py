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


def print_schedule(found: Schedule, notes: Sequence[str]) -> None:
    """To stdout."""
    out = Report()
    several = len(found.drafts) > 1
    rows = []
    for first, last in _ranges(found):
        name = found.winner_N[first] or "none"
        guessed = not all(found.measured_N[first : last + 1])
        rows.append(
            [
                _sizes(first + 1, last + 1),
                *([name] if several else []),
                f"{found.lengths_N[first]}{_NOT_MEASURED if guessed else ''}",
                _span(found.speedup_N[[first, last]], "{:.2f}"),
                _span(found.break_even_N[[first, last]], "{:.2f}"),
                ", ".join(dict.fromkeys(one.short for one in found.accuracy_N[first : last + 1])),
            ]
        )
    out.table([column for column in COLUMNS if several or column != "draft"], rows)
    cap = len(found.lengths_N)
    paying = (
        [(cap, cap, int(found.lengths_N[-1]))] if found.load else batch_ranges((found.lengths_N > 0).astype(np.int64))
    )
    if not all(draft.plain for draft in found.drafts):
        named = [_sizes(1, cap)]
    elif named := [_sizes(first, last) for first, last, pays in paying if pays]:
        errors = ", ".join(dict.fromkeys(one.said for one in found.accuracy_N if one.fitted))
        off = f"; {errors}" if errors else ""
        out.text(f"speculation is faster at batch size {', '.join(named)} (batch cap: {cap}{off})")
    else:
        out.text(
            f"speculation is not faster at {'' if found.load else 'any '}batch size {'' if found.load else 'up to '}{cap}"
        )
    out.text(
        "break-even acceptance: the acceptance rate per token below which no draft length is faster than plain decoding; a long "
        "draft needs more"
    )
    for note in notes:
        out.text(note)
    if named and not several:
        out.line(f"vllm: {json.dumps(for_vllm(found.lengths_N))}")
        out.text("for TensorRT-LLM: --engine tensorrt-llm")


def said_of_unmeasured(found: Schedule) -> list[str]:
    """Where a draft length is chosen that was not measured there."""
    guessed = [
        f"{found.lengths_N[first]} at batch size {_sizes(first + 1, last + 1)}"
        for first, last in _ranges(found)
        if not all(found.measured_N[first : last + 1])
    ]
    if not guessed:
        return []
    return [
        f"{_NOT_MEASURED} draft length {', '.join(guessed)}: not measured at all of these batch sizes, so times are interpolated "
        "or extrapolated; measure it before you serve it"
    ]


def said_of_accuracy(found: Schedule) -> list[str]:
    """What the errors of fitted step times mean for the choice."""
    if not any(one.fitted for one in found.accuracy_N):
        return []
    if any(draft.accuracy.fitted and draft.accuracy.left_out is None for draft in found.drafts):
        return [f"step times off by: unknown for fits of too few points, so no draft length is certain; {_MORE_POINTS}"]
    most = max(one.certain_speedup for one in found.accuracy_N)
    said = "step times off by: mean error on left-out points of `latency fit`"
    said += ", and at the edge of the measured loads (edge)" if any(one.edge for one in found.accuracy_N) else ""
    if most >= _CERTAIN:
        upto = f"a speedup up to {most:.2f}" if np.isfinite(most) else "any speedup"
        said += f". With these errors at their worst, {upto} can be a slowdown"
    sizes = [_sizes(first, last) for first, last, is_so in batch_ranges(found.uncertain_N.astype(np.int64)) if is_so]
    return [
        said + (f": so at batch size {', '.join(sizes)} a draft is not known to be faster" if sizes else ""),
        *_said_of_open(found),
    ]


def _said_of_open(found: Schedule) -> list[str]:
    """Where the error at the edge is larger than the difference of draft lengths."""
    groups = [
        (lengths, list(group)) for lengths, group in groupby(range(len(found.open_N)), key=found.open_N.__getitem__)
    ]
    return [
        f"no choice at batch size {_sizes(group[0] + 1, group[-1] + 1)}: draft lengths {', '.join(map(str, lengths))} differ by "
        "less than the error at the edge; measure heavier loads to choose"
        for lengths, group in groups
        if lengths
    ]


def _sizes(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _ranges(found: Schedule) -> list[tuple[int, int]]:
    """First and last index of each range of batch sizes with one draft and one draft length, of what is known."""
    places = range((found.load or 1) - 1, len(found.lengths_N))
    groups = groupby(places, key=lambda place: (found.winner_N[place], int(found.lengths_N[place])))
    return [(members[0], members[-1]) for members in (list(group) for _, group in groups)]


def _span(ends: Any, form: str) -> str:
    first, last = (form.format(one) if np.isfinite(one) else "never" if one > 0 else "unknown" for one in ends)
    return first if first == last else f"{first} to {last}"


def schedule_json(found: Schedule) -> dict[str, Any]:
    """Lists are by batch size, from 1; a break-even of null: no acceptance rate would pay."""
    return {
        "draft": found.winner_N,
        "draft_length": found.lengths_N.tolist(),
        "speedup": [float(one) if np.isfinite(one) else None for one in found.speedup_N],
        "accuracy": [one.json() for one in found.accuracy_N],
        "break_even_acceptance": [float(one) if np.isfinite(one) else None for one in found.break_even_N],
        "not_measured": sorted(
            set(found.lengths_N.tolist()).intersection(*(draft.unmeasured for draft in found.drafts))
        ),
        "measured": found.measured_N,
        "no_choice": [list(one) for one in found.open_N],
        "break_even_batch_size": largest_paying_batch(found.lengths_N),
        **({engine: written(found.lengths_N) for engine, written in FORMATS.items()} if len(found.drafts) == 1 else {}),
    }
