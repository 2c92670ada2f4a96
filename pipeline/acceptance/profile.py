"""The counts of each prompt of an examination, to JSON and back. No I/O, no model.

The per-prompt counts are the sufficient statistics: every figure (`pipeline/acceptance/figures.py`), gain and paired
interval follows from them, so a gate or a regression check needs nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pipeline.acceptance.moments import rounds_variance
from pipeline.acceptance.position_bins import accepted_by_bin, tokens_before_edges
from pipeline.acceptance.rounds import (
    Acceptance,
    Convention,
    ExpectedRounds,
    Floats,
    Lengths,
    examined_tokens,
    expected_rounds,
)
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
    completions: Completions,
    acceptance: Sequence[Acceptance],
    max_gamma: int,
    convention: Convention,
    rate_gamma: int | None = None,
) -> list[PromptCounts]:
    """Counts of every completion for gamma 1..max_gamma.

    `rate_gamma`: of a draft of which acceptance depends on where rounds start. Its acceptance rate is over the tokens that are
    examined in rounds of this draft length; None: over all tokens.
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
    by_gamma = _by_gamma(completions, acceptance, range(1, max_gamma + 1), convention)
    loop_BT = np.zeros((len(lengths_B), by_gamma[0].a_BTP.shape[1]), dtype=bool)
    for row, loop_T in enumerate(completions.loops):
        loop_BT[row, : len(loop_T)] = loop_T
    columns: dict[str, Sequence[Any]] = {
        "id": completions.ids,
        "conversation": completions.conversations,
        "domain": completions.domains,
        "tokens": lengths_B.tolist(),
        "rounds": np.stack([at_gamma.rounds.rounds_B for at_gamma in by_gamma], axis=1).tolist(),
        "calls": np.stack([at_gamma.rounds.calls_B for at_gamma in by_gamma], axis=1).tolist(),
        "rounds_variance": np.stack([at_gamma.variance_B for at_gamma in by_gamma], axis=1).tolist(),
        "accepted_drafts": np.stack([at_gamma.rounds.accepted_BG.sum(1) for at_gamma in by_gamma], axis=1).tolist(),
        "per_position": by_gamma[-1].rounds.accepted_BG.tolist(),
        "loop_tokens": loop_BT.sum(1).tolist(),
        "prompt_tokens": completions.prompt_tokens_B.tolist(),
    }
    inside_BT = np.arange(loop_BT.shape[1]) < lengths_B[:, None]
    if rate_gamma is None:
        accepted_BT, examined_BT = np.where(inside_BT, by_gamma[0].a_BTP[:, :, 0], 0.0), inside_BT.astype(np.float64)
        columns |= _of_every_token(completions, accepted_BT, loop_BT)
    else:
        accepted_BT, examined_BT = by_gamma[rate_gamma - 1].examined(lengths_B, rate_gamma, convention)
        columns |= {"accepted": accepted_BT.sum(1).tolist(), "examined": examined_BT.sum(1).tolist()}
    if completions.labels is not None:
        columns["segments"] = count_segments(
            completions.labels,
            completions.segments,
            accepted_BT,
            examined_BT,
            lengths_B,
            [(at_gamma.a_BTP, at_gamma.rounds) for at_gamma in by_gamma],
        )
    rows = zip(*columns.values(), strict=True)
    return [PromptCounts(**dict(zip(columns, row, strict=True))) for row in rows]


class _AtGamma(NamedTuple):
    """Acceptance and counts at one draft length."""

    a_BTP: Floats
    drafted_BT: Lengths | None
    rounds: ExpectedRounds
    variance_B: Floats

    def examined(self, lengths_B: Lengths, gamma: int, convention: Convention) -> tuple[Floats, Floats]:
        return examined_tokens(self.a_BTP, lengths_B, gamma, convention, self.drafted_BT, self.rounds.starts_BT)


def _by_gamma(
    completions: Completions, acceptance: Sequence[Acceptance], gammas: Sequence[int], convention: Convention
) -> list[_AtGamma]:
    """The rounds at each of `gammas`. Where acceptance is the same at all of them, so is the array."""
    lengths_B, most, at_gammas = completions.lengths_B, max(gammas), []
    padded: dict[int, tuple[Floats, Lengths | None]] = {}
    for gamma in gammas:
        version = min(gamma, max(len(item.a) for item in acceptance))
        if version not in padded:
            a_BTP = _padded(completions, [item.at(gamma) for item in acceptance], most, convention)
            drafted = [own for item in acceptance if (own := item.drafted_at(gamma)) is not None]
            padded[version] = (a_BTP, _padded(completions, drafted, most, convention)[:, :, 0] if drafted else None)
        a_BTP, drafted_BT = padded[version]
        rounds = expected_rounds(a_BTP, lengths_B, gamma, convention, drafted_BT)
        at_gammas.append(_AtGamma(a_BTP, drafted_BT, rounds, rounds_variance(a_BTP, lengths_B, gamma, convention)))
    return at_gammas


def _of_every_token(completions: Completions, accepted_BT: Floats, loop_BT: NDArray[np.bool_]) -> dict[str, Any]:
    """The columns of a draft of which every token is examined, whatever the rounds are."""
    lengths_B = completions.lengths_B
    output_BE = tokens_before_edges(np.zeros_like(lengths_B), lengths_B)
    context_BE = tokens_before_edges(completions.prompt_tokens_B, lengths_B)
    return {
        "accepted": accepted_BT.sum(1).tolist(),
        "examined": lengths_B.astype(np.float64).tolist(),
        "loop_accepted": (accepted_BT * loop_BT).sum(1).tolist(),
        "accepted_by_output": _used(accepted_by_bin(accepted_BT, output_BE), output_BE),
        "accepted_by_context": _used(accepted_by_bin(accepted_BT, context_BE), context_BE),
    }


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


def count_at_length(
    completions: Completions, acceptance: Sequence[Acceptance], gamma: int, convention: Convention
) -> LengthCounts:
    """Counts at one draft length. Raises as `count_completions`."""
    (at_gamma,) = _by_gamma(completions, acceptance, [gamma], convention)
    accepted_BG = at_gamma.rounds.accepted_BG
    return LengthCounts(
        completions.conversations,
        completions.domains,
        at_gamma.rounds.rounds_B,
        at_gamma.variance_B,
        accepted_BG.sum(1),
        accepted_BG.sum(0),
    )


def _padded(completions: Completions, values: Sequence[NDArray[Any]], max_gamma: int, convention: Convention) -> Any:
    """Values of each token, (T,) or (T, P), as one array (B, T, P), with as much of the lookahead as the convention counts."""
    lookahead = 0 if convention.clipped else max_gamma - 1
    width = int(completions.lengths_B.max()) + lookahead
    found_BTP = np.zeros((len(values), width, *values[0].shape[1:]), dtype=values[0].dtype)
    for row, (own, length) in enumerate(zip(values, completions.lengths_B, strict=True)):
        if len(own) < length + lookahead:
            raise UnderstudyError(
                f"prompt {completions.ids[row]}: convention '{convention.name}' needs {lookahead} target tokens "
                f"past the end and {len(own) - length} are stored; raise generate.lookahead"
            )
        found_BTP[row, : min(len(own), width)] = own[:width]
    return np.atleast_3d(found_BTP)


def _used(values_BE: Floats, places_BE: NDArray[np.int64]) -> list[list[float]]:
    """The bins without those behind a completion's last token."""
    used_B = (places_BE[:, :-1] < places_BE[:, -1:]).sum(1)
    return [row[:used] for row, used in zip(values_BE.tolist(), used_B.tolist(), strict=True)]


def shared_conversations(conversations: Iterable[str]) -> frozenset[str]:
    """The conversations of several prompts; one entry a prompt. They are held as UTF-8: a tenth of the memory of a dictionary."""
    names, blocks = iter(conversations), [np.zeros(0, "S1")]
    while block := [name.encode() for name in islice(names, _BLOCK)]:
        blocks.append(np.array(block))
    ids, counts = np.unique(np.concatenate(blocks), return_counts=True)
    return frozenset(name.decode() for name in ids[counts > 1].tolist())


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
