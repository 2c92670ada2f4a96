"""The counts of each prompt of an examination, to JSON and back. No I/O, no model.

The per-prompt counts are the sufficient statistics: every figure (`pipeline/acceptance/figures.py`), gain and paired
interval follows from them, so a gate or a regression check needs nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pipeline.acceptance.moments import rounds_variance
from pipeline.acceptance.position_bins import accepted_by_bin, tokens_before_edges
from pipeline.acceptance.rounds import Convention, Floats, Lengths, expected_rounds
from pipeline.acceptance.segments import Labels, SegmentCounts, count_segments, segments_json
from pipeline.errors import UnderstudyError
from pipeline.store.parsing import Count, Number, Positive, Text, parse, stored


@stored
class PromptCounts:
    """The counts of one examined completion, from which every figure follows. Lists are by gamma: entry g - 1 is gamma g."""

    id: Text
    conversation: Text  # shared by the turns of a chat; the sampling unit of intervals
    domain: Text
    tokens: Count  # length of the completion
    accepted: Number  # numerator of the acceptance rate: sum of a_t, or tokens accepted by examination
    examined: Number  # its denominator: tokens, or tokens accepted plus first rejections
    rounds: list[Positive]
    calls: list[Positive]
    rounds_variance: list[Number]  # of one decode of this completion
    accepted_drafts: list[Positive]
    per_position: list[Positive]  # at the largest gamma: rounds whose drafted token i was accepted
    loop_tokens: Count = 0
    loop_accepted: Number = 0.0  # sum of a_t over tokens inside a loop
    prompt_tokens: Count = 0
    # sum of a_t by bin of `pipeline/acceptance/position_bins.py`; context: positions counted from the start of the prompt
    accepted_by_output: list[Number] = field(default_factory=list)
    accepted_by_context: list[Number] = field(default_factory=list)
    segments: dict[Text, SegmentCounts] = field(default_factory=dict)  # by name; empty where all tokens are of one


_ROW = TypeAdapter(PromptCounts)
_BLOCK = 4096


@dataclass(frozen=True)
class Completions:
    """Facts about B examined completions that do not depend on the draft."""

    ids: Sequence[str]
    conversations: Sequence[str]
    domains: Sequence[str]
    prompt_tokens_B: Lengths
    lengths_B: Lengths  # lookahead not included
    loops: Sequence[NDArray[np.bool_]]  # which tokens stand inside a loop
    labels: Sequence[Labels] | None = None  # of segments, for each token; None: all are of one
    segments: Sequence[str] = ()  # names, by label


def count_completions(
    completions: Completions, a: Sequence[Floats], max_gamma: int, convention: Convention
) -> list[PromptCounts]:
    """Counts of every completion for gamma 1..max_gamma. `a` holds a_t of each, lookahead included.

    Raises UnderstudyError without a completion, for max_gamma < 1, and where the convention needs more tokens past the
    end than there are.
    """
    if not completions.ids or max_gamma < 1:
        raise UnderstudyError(
            f"max_gamma is {max_gamma}; examine at least gamma 1"
            if completions.ids
            else "there is no completion to examine"
        )
    lengths_B = completions.lengths_B
    a_BT = _padded(completions, a, max_gamma, convention)
    counted_BT = np.where(np.arange(a_BT.shape[1]) < lengths_B[:, None], a_BT, 0.0)
    loops_BT = np.zeros(a_BT.shape, dtype=bool)
    for row, loop_T in enumerate(completions.loops):
        loops_BT[row, : len(loop_T)] = loop_T
    by_gamma = [expected_rounds(a_BT, lengths_B, gamma, convention) for gamma in range(1, max_gamma + 1)]
    output_BE = tokens_before_edges(np.zeros_like(lengths_B), lengths_B)
    context_BE = tokens_before_edges(completions.prompt_tokens_B, lengths_B)
    columns: dict[str, Sequence[Any]] = {
        "id": completions.ids,
        "conversation": completions.conversations,
        "domain": completions.domains,
        "tokens": lengths_B.tolist(),
        "accepted": counted_BT.sum(1).tolist(),
        "examined": lengths_B.astype(np.float64).tolist(),
        "rounds": np.stack([rounds.rounds_B for rounds in by_gamma], axis=1).tolist(),
        "calls": np.stack([rounds.calls_B for rounds in by_gamma], axis=1).tolist(),
        "rounds_variance": np.stack(
            [rounds_variance(a_BT, lengths_B, gamma, convention) for gamma in range(1, max_gamma + 1)], axis=1
        ).tolist(),
        "accepted_drafts": np.stack([rounds.accepted_BG.sum(1) for rounds in by_gamma], axis=1).tolist(),
        "per_position": by_gamma[-1].accepted_BG.tolist(),
        "loop_tokens": loops_BT.sum(1).tolist(),
        "loop_accepted": (counted_BT * loops_BT).sum(1).tolist(),
        "prompt_tokens": completions.prompt_tokens_B.tolist(),
        "accepted_by_output": _used(accepted_by_bin(counted_BT, output_BE), output_BE),
        "accepted_by_context": _used(accepted_by_bin(counted_BT, context_BE), context_BE),
    }
    if completions.labels is not None:
        columns["segments"] = count_segments(completions.labels, completions.segments, counted_BT, lengths_B, by_gamma)
    rows = zip(*columns.values(), strict=True)
    return [PromptCounts(**dict(zip(columns, row, strict=True))) for row in rows]


@dataclass(frozen=True)
class LengthCounts:
    """Counts of N completions at one draft length G."""

    conversations: Sequence[str]
    domains: Sequence[str]
    rounds_N: Floats
    rounds_variance_N: Floats  # of one decode
    accepted_N: Floats
    positions_G: Floats  # accepted by position, over all completions

    def __add__(self, other: "LengthCounts") -> "LengthCounts":
        return LengthCounts(
            [*self.conversations, *other.conversations],
            [*self.domains, *other.domains],
            np.concatenate([self.rounds_N, other.rounds_N]),
            np.concatenate([self.rounds_variance_N, other.rounds_variance_N]),
            np.concatenate([self.accepted_N, other.accepted_N]),
            self.positions_G + other.positions_G,
        )


def count_at_length(completions: Completions, a: Sequence[Floats], gamma: int, convention: Convention) -> LengthCounts:
    """Counts at one draft length. Raises as `count_completions`."""
    lengths_B, a_BT = completions.lengths_B, _padded(completions, a, gamma, convention)
    rounds = expected_rounds(a_BT, lengths_B, gamma, convention)
    variance_B = rounds_variance(a_BT, lengths_B, gamma, convention)
    accepted_B, positions_G = rounds.accepted_BG.sum(1), rounds.accepted_BG.sum(0)
    return LengthCounts(
        completions.conversations, completions.domains, rounds.rounds_B, variance_B, accepted_B, positions_G
    )


def _padded(completions: Completions, a: Sequence[Floats], max_gamma: int, convention: Convention) -> Floats:
    """a_t as one array, (B, T), with as much of the lookahead as the convention counts."""
    lookahead = 0 if convention.clipped else max_gamma - 1
    width = int(completions.lengths_B.max()) + lookahead
    a_BT = np.zeros((len(a), width))
    for row, (values, length) in enumerate(zip(a, completions.lengths_B, strict=True)):
        if len(values) < length + lookahead:
            raise UnderstudyError(
                f"prompt {completions.ids[row]}: convention '{convention.name}' needs {lookahead} target tokens "
                f"past the end and {len(values) - length} are stored; raise generate.lookahead"
            )
        a_BT[row, : min(len(values), width)] = values[:width]
    return a_BT


def _used(values_BE: Floats, places_BE: NDArray[np.int64]) -> list[list[float]]:
    """Without the bins behind a completion's last token."""
    used_B = (places_BE[:, :-1] < places_BE[:, -1:]).sum(1)
    return [row[:used] for row, used in zip(values_BE.tolist(), used_B.tolist(), strict=True)]


def shared_conversations(conversations: Iterable[str]) -> frozenset[str]:
    """Those of several prompts; one entry a prompt. They are held as UTF-8: a tenth of the memory of a dictionary."""
    names, blocks = iter(conversations), [np.zeros(0, "S1")]
    while block := [name.encode() for name in islice(names, _BLOCK)]:
        blocks.append(np.array(block))
    found, counts = np.unique(np.concatenate(blocks), return_counts=True)
    return frozenset(name.decode() for name in found[counts > 1].tolist())


def counts_json(counts: Sequence[PromptCounts]) -> list[dict[str, Any]]:
    return [{**vars(item), "segments": segments_json(item.segments)} for item in counts]


def counts_from_json(rows: Iterable[Any]) -> Iterator[PromptCounts]:
    """Inverse of `counts_json`, row by row. ValueError names the field that is missing or wrong."""
    if not isinstance(rows, Iterable):
        raise ValueError("rows should be a list")
    for number, raw in enumerate(rows):
        try:
            row = parse(_ROW, raw)
        except ValueError as error:
            raise ValueError(f"{number}.{error}") from None
        if not 0 <= row.accepted <= row.examined:
            raise ValueError(f"prompt {row.id}: {row.accepted} accepted of {row.examined} examined tokens")
        yield row
