"""Which split a cluster falls into: a function of what is in it, not of where it stands in the file.

A cluster's identity is the smallest hash among its rows' group names, or among its prompts' contents where no row has a
group. So adding other prompts, in any order, moves nothing, and neither does another tokenizer or template. The limit:
a cluster that gains a member with a smaller hash, or that grows together with another, may move; whoever compares
drafts therefore still drops the prompts either was trained on.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from pipeline.config.corpus import Splits
from pipeline.corpus.near_duplicates import Clusters
from pipeline.errors import UsageError

SPLITS = ("train", "dev", "examination")


def identities(facts: NDArray[np.void], clusters: Clusters) -> NDArray[np.uint64]:
    """The identity [rows] of each row's cluster; rows that were dropped as copies count too."""
    top = np.uint64(2**64 - 1)
    by_content = np.full(len(facts), top, dtype=np.uint64)
    by_group = by_content.copy()
    np.minimum.at(by_content, clusters.first, facts["content"])
    grouped = np.array(facts["grouped"], dtype=bool)
    np.minimum.at(by_group, clusters.first[grouped], facts["group_name"][grouped])
    has_group = np.zeros(len(facts), dtype=bool)
    has_group[clusters.first[grouped]] = True
    return np.asarray(np.where(has_group, by_group, by_content)[clusters.first], dtype=np.uint64)


def split_of(identity: int, shares: Splits) -> int:
    """The split's position in SPLITS. The identity is hashed once more: the smallest of several hashes is small, and
    compared with the shares as it is, it would send large clusters to train."""
    digest = hashlib.sha256(b"understudy split " + identity.to_bytes(8, "little")).digest()
    place = int.from_bytes(digest[:8], "little") / 2**64
    if place < shares.train:
        return 0
    return 1 if place < shares.train + shares.dev else 2


def assign_splits(facts: NDArray[np.void], clusters: Clusters, shares: Splits) -> NDArray[np.uint8]:
    """The split [rows] of every row. UsageError where a split is left without a kept row."""
    found, inverse = np.unique(identities(facts, clusters), return_inverse=True)
    splits = np.array([split_of(int(identity), shares) for identity in found], dtype=np.uint8)[inverse]
    for number, name in enumerate(SPLITS):
        if not (splits[clusters.kept] == number).any():
            count = len(np.unique(clusters.first))
            raise UsageError(
                f"corpus.splits.{name} = {getattr(shares, name):g}: the {name} split is empty, for the "
                f"prompts form only {count:,} clusters, none of which is torn apart; add prompts or raise "
                "the share"
            )
    return splits
