"""Acceptance by segment of the completion: thinking, tool calls, the answer. numpy only.

A round belongs to the segment of the first token that it can produce. So the tokens of a segment's rounds may end in the next
one, and all segments' rounds are all rounds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.rounds import ExpectedRounds, Floats, Lengths
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
    accepted_BT: Floats,
    examined_BT: Floats,
    lengths_B: Lengths,
    by_gamma: Sequence[tuple[Floats, ExpectedRounds]],
) -> list[dict[str, SegmentCounts]]:
    """Counts of each completion by the name of the segment. `labels`: of each completion, at least its length. `accepted_BT` and
    `examined_BT`: numerator and denominator of the acceptance rate, by token. `by_gamma` has for gamma 1, 2, ... the
    probabilities of acceptance, (B, T, P), and the rounds."""
    batch, width, segments = len(lengths_B), int(lengths_B.max()), len(names)
    # The place of each token in sums by completion and segment; padding has a segment of its own, which is dropped.
    places_BT = np.full((batch, width), segments) + np.arange(batch)[:, None] * (segments + 1)
    begins_BT = np.zeros((batch, width), dtype=bool)
    for row, (labels_T, length) in enumerate(zip(labels, lengths_B, strict=True)):
        places_BT[row, :length] += labels_T[:length].astype(np.int64) - segments
        begins_BT[row, :length] = begins(labels_T[:length])
    accepted_BT, examined_BT = accepted_BT[:, :width], examined_BT[:, :width]

    def summed(weights_BT: NDArray[Any]) -> Floats:
        sums = np.bincount(places_BT.ravel(), weights_BT.ravel(), batch * (segments + 1)).astype(np.float64)
        return sums.reshape(batch, segments + 1)[:, :segments]

    rounds_GBS, emitted_GBS = [], []
    for tokens_BT, (_, rounds) in zip(_tokens_of_rounds([a for a, _ in by_gamma], lengths_B), by_gamma, strict=True):
        starts_BT = rounds.starts_BT[:, :width]
        rounds_GBS.append(summed(starts_BT))
        emitted_GBS.append(summed(starts_BT * tokens_BT))
    tokens_BS = summed(np.ones((batch, width)))
    columns = {
        "tokens": tokens_BS.astype(np.int64).tolist(),
        "accepted": summed(accepted_BT).tolist(),
        "examined": summed(examined_BT).tolist(),
        "rounds": np.stack(rounds_GBS, axis=-1).tolist(),
        "emitted": np.stack(emitted_GBS, axis=-1).tolist(),
        "begins": summed(begins_BT).astype(np.int64).tolist(),
        "begins_accepted": summed(accepted_BT * begins_BT).tolist(),
    }
    return [
        {
            name: SegmentCounts(**{key: values[row][label] for key, values in columns.items()})
            for label, name in enumerate(names)
            if columns["tokens"][row][label]
        }
        for row in range(batch)
    ]


def _tokens_of_rounds(by_gamma: Sequence[Floats], lengths_B: Lengths) -> Iterator[Floats]:
    """The expected tokens, by draft length, 1 and up, of the completion that a round produces which begins at each token, (B, T):
    one, and one more for each draft token that is accepted and is not the completion's last."""
    batch, width = len(lengths_B), int(lengths_B.max())
    before_last_BT1 = (np.arange(width) < lengths_B[:, None] - 1)[:, :, None]
    of, done = None, 0
    for gamma, a_BTP in enumerate(by_gamma, 1):
        if of is not a_BTP:  # the first one, or another at each gamma
            of, done = a_BTP, 0
            accepted_BT, tokens_BT = np.ones((batch, width)), np.ones((batch, width))
            drafted_BTP = np.where(before_last_BT1, a_BTP[:, :width], 0.0)
        for place in range(done, gamma):  # accepted_BT becomes the probability that the tokens up to this place are
            kept = max(width - place, 0)
            accepted_BT[:, :kept] *= drafted_BTP[:, place:, min(place, drafted_BTP.shape[2] - 1)]
            accepted_BT[:, kept:] = 0.0
            tokens_BT += accepted_BT
        done = gamma
        yield tokens_BT


def segments_json(segments: Mapping[str, SegmentCounts]) -> dict[str, dict[str, object]]:
    return {name: dict(vars(counts)) for name, counts in segments.items()}
