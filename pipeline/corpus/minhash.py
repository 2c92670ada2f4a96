"""MinHash signatures of prompts: 5-gram shingles, datasketch permutations, bands. Handles token ids, not files or rows.

The share of equal positions of two signatures is an unbiased estimate of the Jaccard similarity of the 5-gram sets (Broder
1997), with a standard error of sqrt(J (1 - J) / 128): 0.035 at J = 0.8. Signatures differ between versions of datasketch, so
pairs near the threshold may differ too; signatures are not stored.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PERMUTATIONS = 128
_SEED = 1
_GRAM = 5
_FOUND_AT_THRESHOLD = 0.99
_SHINGLES_AT_ONCE = 4096  # datasketch allocates a matrix of shingles x permutations
_MIX = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5, 0x85EBCA77C2B2AE63],
    dtype=np.uint64,
)


def shingle_hashes(ids: Sequence[int]) -> NDArray[np.uint32]:
    """Sorted distinct 32-bit hashes of the 5-grams of `ids`; fewer than 5 tokens are padded to one 5-gram."""
    tokens = np.full(max(len(ids), _GRAM), -1, dtype=np.int64)
    tokens[: len(ids)] = ids
    grams = np.lib.stride_tricks.sliding_window_view(tokens, _GRAM).astype(np.uint64)
    return np.unique((avalanche((grams * _MIX).sum(axis=1, dtype=np.uint64)) >> np.uint64(32)).astype(np.uint32))


def avalanche(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the result depends on every bit of the input."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def signatures(prompts: Sequence[Sequence[int]]) -> NDArray[np.uint32]:
    """MinHash signatures [prompts, 128] of lists of token ids, with a fixed seed."""
    from datasketch import MinHash

    empty = MinHash(num_perm=PERMUTATIONS, seed=_SEED, hashfunc=int)  # the shingles are hashes already
    out = np.empty((len(prompts), PERMUTATIONS), dtype=np.uint32)
    for row, ids in enumerate(prompts):
        sketch, hashes = empty.copy(), shingle_hashes(ids)
        for start in range(0, len(hashes), _SHINGLES_AT_ONCE):
            sketch.update_batch(hashes[start : start + _SHINGLES_AT_ONCE].tolist())
        out[row] = sketch.digest()
    return out


def similarity(signature: NDArray[np.uint32], others: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Estimated Jaccard similarity [n] of `signature` [128] with `others` [n, 128]."""
    return np.asarray((others == signature).mean(axis=1), dtype=np.float64)


def rows_per_band(threshold: float) -> int:
    """Rows per band: the largest number with which a pair at `threshold` shares a band with probability 0.99.

    P(shared band) = 1 - (1 - J^r)^(128 // r) (Leskovec et al., Mining of Massive Datasets, 3.4). Candidate pairs are checked
    by comparing whole signatures, so bands are chosen for recall, not precision.
    """

    def share_found(rows: int) -> float:
        return float(1 - (1 - threshold**rows) ** (PERMUTATIONS // rows))

    return max((rows for rows in range(1, PERMUTATIONS + 1) if share_found(rows) >= _FOUND_AT_THRESHOLD), default=1)


def band_keys(block: NDArray[np.uint32], rows: int) -> NDArray[np.uint64]:
    """A 64-bit key [n, bands] for each band of signatures [n, 128]; bands with the same index and content have the same key."""
    bands = PERMUTATIONS // rows
    places = block[:, : bands * rows].reshape(len(block), bands, rows).astype(np.uint64)
    keys = np.broadcast_to(np.arange(bands, dtype=np.uint64), places.shape[:2])
    for place in range(rows):
        keys = avalanche(keys * _MIX[0] + places[:, :, place])
    return keys
