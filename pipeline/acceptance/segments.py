"""Acceptance by segment of the completion: thinking, tool calls, the answer. numpy only.

A round belongs to the segment of the first token that it can produce. So the tokens of a segment's rounds may end in the next
one, and all segments' rounds are all rounds.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.rounds import Floats, Lengths, Rounds
from pipeline.store.parsing import Count, Number, stored

Labels = NDArray[np.uint8]


@stored
class SegmentCounts:
    """Counts of one completion in one segment. Lists are by gamma: entry g - 1 is gamma g."""

    tokens: Count
    accepted: Number  # numerator of the acceptance rate in it
    examined: Number  # its denominator
    rounds: list[Number]  # expected rounds that begin in it
    emitted: list[Number]  # tokens of the completion that these rounds produce
    begins: Count  # tokens with which it begins after another segment
    begins_accepted: Number  # sum of a_t over them


def begins(labels_T: Labels) -> NDArray[np.bool_]:
    """The tokens that are of another segment than the one before them, (T,). The first token is none."""
    found_T = np.zeros(len(labels_T), dtype=bool)
    found_T[1:] = labels_T[1:] != labels_T[:-1]
    return found_T


def count_segments(
    labels: Sequence[Labels],
    names: Sequence[str],
    a_BT: Floats,
    lengths_B: Lengths,
    by_gamma: Sequence[Rounds],
) -> list[dict[str, SegmentCounts]]:
    """Counts of each completion by the name of the segment. `labels`: of each completion, at least its length. `a_BT` is 0 from
    the end of a completion on, and `by_gamma` has the rounds for gamma 1, 2, ..."""
    batch, width, segments = len(lengths_B), int(lengths_B.max()), len(names)
    # The place of each token in sums by completion and segment; padding has a segment of its own, which is dropped.
    places_BT = np.full((batch, width), segments) + np.arange(batch)[:, None] * (segments + 1)
    begins_BT = np.zeros((batch, width), dtype=bool)
    for row, (labels_T, length) in enumerate(zip(labels, lengths_B, strict=True)):
        places_BT[row, :length] += labels_T[:length].astype(np.int64) - segments
        begins_BT[row, :length] = begins(labels_T[:length])
    a_BT = a_BT[:, :width]

    def summed(weights_BT: NDArray[Any]) -> Floats:
        found = np.bincount(places_BT.ravel(), weights_BT.ravel(), batch * (segments + 1)).astype(np.float64)
        return found.reshape(batch, segments + 1)[:, :segments]

    rounds_GBS, emitted_GBS = [], []
    for rounds, tokens_BT in zip(by_gamma, _tokens_of_rounds(a_BT, lengths_B), strict=False):
        starts_BT = rounds.starts_BT[:, :width]
        rounds_GBS.append(summed(starts_BT))
        emitted_GBS.append(summed(starts_BT * tokens_BT))
    tokens_BS = summed(np.ones((batch, width)))
    columns = {
        "tokens": tokens_BS.astype(np.int64).tolist(),
        "accepted": summed(a_BT).tolist(),
        "examined": tokens_BS.tolist(),
        "rounds": np.stack(rounds_GBS, axis=-1).tolist(),
        "emitted": np.stack(emitted_GBS, axis=-1).tolist(),
        "begins": summed(begins_BT).astype(np.int64).tolist(),
        "begins_accepted": summed(a_BT * begins_BT).tolist(),
    }
    return [
        {
            name: SegmentCounts(**{key: values[row][label] for key, values in columns.items()})
            for label, name in enumerate(names)
            if columns["tokens"][row][label]
        }
        for row in range(batch)
    ]


def _tokens_of_rounds(a_BT: Floats, lengths_B: Lengths) -> Iterator[Floats]:
    """By draft length, 1 and up: the expected tokens of the completion that a round produces which begins at each token, (B, T):
    one, and one more for each draft token that is accepted and is not the completion's last."""
    batch, width = a_BT.shape
    drafted_BT = np.where(np.arange(width) < lengths_B[:, None] - 1, a_BT, 0.0)
    accepted_BT, tokens_BT = np.ones((batch, width)), np.ones((batch, width))
    for index in count():  # accepted_BT becomes the probability that the first index + 1 draft tokens are
        kept = max(width - index, 0)
        accepted_BT[:, :kept] *= drafted_BT[:, index:]
        accepted_BT[:, kept:] = 0.0
        tokens_BT += accepted_BT
        yield tokens_BT


def count_walks(
    labels_T: Labels, names: Sequence[str], walks: Sequence[Sequence[tuple[int, int, bool]]], at_gamma: int
) -> dict[str, SegmentCounts]:
    """Counts of one completion whose rounds are known, such as those of prompt-lookup. `walks`: by gamma, for each round its
    first token, how many tokens it accepted, and whether a wrong one ended it. The rate is that of `at_gamma`."""
    length = len(labels_T)
    accepted_T, examined_T = np.zeros(length), np.zeros(length)
    for first, accepted, rejected in walks[at_gamma - 1]:
        accepted_T[first : first + accepted] = 1
        examined_T[first : first + accepted + rejected] = 1
    begins_T = begins(labels_T)
    found: dict[str, SegmentCounts] = {}
    for label, name in enumerate(names):
        inside_T = labels_T == label
        if not inside_T.any():
            continue
        rounds = [[(first, accepted) for first, accepted, _ in walk if inside_T[first]] for walk in walks]
        found[name] = SegmentCounts(
            tokens=int(inside_T.sum()),
            accepted=float(accepted_T[inside_T].sum()),
            examined=float(examined_T[inside_T].sum()),
            rounds=[float(len(one)) for one in rounds],
            emitted=[float(sum(min(accepted + 1, length - first) for first, accepted in one)) for one in rounds],
            begins=int((begins_T & inside_T).sum()),
            begins_accepted=float(accepted_T[begins_T & inside_T].sum()),
        )
    return found


def segments_json(found: Mapping[str, SegmentCounts]) -> dict[str, dict[str, object]]:
    return {name: dict(vars(counts)) for name, counts in found.items()}
