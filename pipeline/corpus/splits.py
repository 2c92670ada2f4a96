"""The split of a cluster: a function of its texts, not of its position in the file.

A cluster's identity is the smallest hash of its rows' group names, or of the texts that open its conversations if no row has a
group. Splits therefore do not change when other prompts are added, or with another tokenizer or template, and a prompt that is
typed in another way next week, or a conversation that goes on, is in the split of this week's. A cluster may change its split
if it gains a member with a smaller hash or is merged with another cluster; comparisons of drafts therefore drop the prompts
that either draft was trained on.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from pipeline.config.corpus import Splits
from pipeline.corpus.near_duplicates import Clusters
from pipeline.errors import UsageError

SPLITS = ("train", "dev", "examination")


def identities(hashes: NDArray[np.void], clusters: Clusters) -> NDArray[np.uint64]:
    """The identity of each row's cluster, shape (rows,): the smallest 64-bit hash of a group name in the cluster, or of what
    opens a conversation if no row of the cluster has a group. Rows that were dropped as duplicates count too.

    `hashes` has one record per row, with the fields conversation, group_name and grouped.
    """
    top = np.uint64(2**64 - 1)
    by_text = np.full(len(hashes), top, dtype=np.uint64)
    by_group = by_text.copy()
    np.minimum.at(by_text, clusters.first, hashes["conversation"])
    grouped = np.array(hashes["grouped"], dtype=bool)
    np.minimum.at(by_group, clusters.first[grouped], hashes["group_name"][grouped])
    has_group = np.zeros(len(hashes), dtype=bool)
    has_group[clusters.first[grouped]] = True
    return np.asarray(np.where(has_group, by_group, by_text)[clusters.first], dtype=np.uint64)


def split_of(identity: int, shares: Splits) -> int:
    """The split of a cluster, as an index into SPLITS.

    The identity is hashed again to a number in [0, 1) that is compared with the shares. Without the second hash, large clusters
    would go to train more often, because the minimum of many hashes is small.
    """
    digest = hashlib.sha256(b"understudy split " + identity.to_bytes(8, "little")).digest()
    place = int.from_bytes(digest[:8], "little") / 2**64
    if place < shares.train:
        return 0
    return 1 if place < shares.train + shares.dev else 2


def assign_splits(hashes: NDArray[np.void], clusters: Clusters, shares: Splits) -> NDArray[np.uint8]:
    """The split of every row as an index into SPLITS, shape (rows,). UsageError if no prompt is left for one of the splits."""
    distinct, inverse = np.unique(identities(hashes, clusters), return_inverse=True)
    splits = np.array([split_of(int(identity), shares) for identity in distinct], dtype=np.uint8)[inverse]
    for number, name in enumerate(SPLITS):
        if not (splits[clusters.kept] == number).any():
            count = len(np.unique(clusters.first))
            raise UsageError(
                f"corpus.splits.{name} = {getattr(shares, name):g}: the {name} split is empty: the prompts form only "
                f"{count:,} cluster{'' if count == 1 else 's'} (near-duplicates, a group, or chats that open alike), "
                "and a cluster is never split; add prompts (an earlier corpus.since adds some) or raise the share"
            )
    return splits
