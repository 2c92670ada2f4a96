"""External sort, signatures, clusters and splits."""

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.config.corpus import Splits
from pipeline.corpus.external_sort import RECORD, equal_rows, sorted_records
from pipeline.corpus.minhash import PERMUTATIONS, band_keys, rows_per_band, shingle_hashes, signatures, similarity
from pipeline.corpus.near_duplicates import Clusters, UnionFind, find_clusters
from pipeline.corpus.row_buffer import ROW_HASHES
from pipeline.corpus.splits import assign_splits, identities, split_of
from pipeline.errors import UsageError


def _records(count: int, keys: int) -> NDArray[np.void]:
    generator = np.random.default_rng(3)
    records = np.empty(count, dtype=RECORD)
    records["key"] = generator.integers(2**64 - keys, 2**64 - 1, count, dtype=np.uint64)
    records["row"] = generator.permutation(count)
    return records


@pytest.mark.parametrize(("chunk", "keys"), [(7, 2), (7, 2**63), (64, 60), (1000, 60)])
def test_sort_on_disk_equals_sort_in_memory(tmp_path: Path, chunk: int, keys: int) -> None:
    """Any number of runs, keys near 2^64 and repeated keys: the order equals an in-memory sort, and no file is left."""
    records = _records(200, keys)
    blocks = list(sorted_records(np.array_split(records, 3), tmp_path / "runs", chunk))

    assert np.sort(records, order=["key", "row"]).tolist() == np.concatenate(blocks).tolist()
    assert [] == list(tmp_path.iterdir())


def test_sort_on_disk_holds_no_more_than_a_chunk(tmp_path: Path) -> None:
    """No block that comes out of the merge is larger than the memory it was allowed."""
    assert 128 >= max(len(block) for block in sorted_records([_records(1000, 2**63)], tmp_path / "runs", 128))


def test_equal_rows_cross_blocks() -> None:
    """Rows of a key are found together wherever the blocks are cut; keys that occur once are left out."""
    records = np.array([(1, 0), (2, 1), (2, 4), (2, 5), (3, 2), (4, 3), (4, 6)], dtype=RECORD)
    for cut in range(8):
        found = [rows.tolist() for rows in equal_rows([records[:cut], records[cut:]])]
        assert [[1, 4, 5], [3, 6]] == found


def test_sort_of_nothing(tmp_path: Path) -> None:
    """No records, no groups: a corpus without groups is not an error."""
    assert [] == list(equal_rows(sorted_records([], tmp_path / "runs")))


def test_shingles_are_sets_of_five_tokens() -> None:
    """Repeats count once, a short text is one shingle of its own, order matters."""
    assert 5 == len(shingle_hashes([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5]))
    assert 1 == len(shingle_hashes([1, 2]))
    assert shingle_hashes([1, 2]) != shingle_hashes([2, 1])


def test_signature_estimates_jaccard() -> None:
    """Estimated similarity is within four standard errors (0.035 each) of the true one: one run in 16,000 may not be,
    and the seed is fixed."""
    one, other = list(range(1000)), [*range(900), *range(5000, 5100)]
    sets = [set(shingle_hashes(ids).tolist()) for ids in (one, other)]
    true = len(sets[0] & sets[1]) / len(sets[0] | sets[1])
    sketches = signatures([one, other])

    assert true == pytest.approx(similarity(sketches[0], sketches[1:])[0], abs=0.14)


def test_long_texts_are_sketched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature does not depend on how many shingles are hashed at once."""
    whole = signatures([range(500)])
    monkeypatch.setattr("pipeline.corpus.minhash._SHINGLES_AT_ONCE", 7)

    assert whole.tolist() == signatures([range(500)]).tolist()


@pytest.mark.parametrize("threshold", [0.05, 0.5, 0.8, 0.95, 1.0])
def test_bands_find_pairs_at_the_threshold(threshold: float) -> None:
    """A pair at the threshold shares a band with a chance of at least 0.99, in as wide bands as allow that."""
    rows = rows_per_band(threshold)

    assert 1 - (1 - threshold**rows) ** (PERMUTATIONS // rows) >= 0.99
    assert 128 == rows_per_band(1.0)


def test_band_keys_depend_on_number_and_content() -> None:
    """Equal bands in equal places have equal keys, in different places they have not."""
    block = np.tile(np.arange(4, dtype=np.uint32), (2, 32))
    keys = band_keys(block, 4)

    assert keys[0].tolist() == keys[1].tolist()
    assert 32 == len(set(keys[0].tolist()))


def test_union_find_roots_are_first_rows() -> None:
    """For any order of joins, the root of a set is its first row."""
    union = UnionFind(6)
    for pair in [(5, 4), (3, 4), (1, 5), (0, 2)]:
        union.join(*pair)

    assert [0, 1, 0, 1, 1, 1] == union.roots().tolist()


def _facts(ids: list[int], groups: list[int | None], places: list[int] | None = None) -> NDArray[np.void]:
    facts = zip(ids, groups, places or [0] * len(ids), strict=True)
    rows = [(one, one, one, group or 0, group or 0, place, group is not None) for one, group, place in facts]
    return np.array(rows, dtype=ROW_HASHES)


def _texts(count: int) -> list[list[int]]:
    chance = random.Random(5)
    return [[chance.randrange(5000) for _ in range(200)] for _ in range(count)]


def test_clusters_of_copies_near_copies_and_groups(tmp_path: Path) -> None:
    """Duplicates beyond the first are dropped, groups are kept, a dropped row still links its group, and both kinds are
    counted."""
    a, b, c, d = _texts(4)
    near = [*a[:195], 1, 2, 3, 4, 5]
    hashes = _facts([1, 2, 3, 1, 4, 5], [None, None, 77, None, 77, None])
    found = find_clusters(hashes, signatures([a, b, near, a, c, d]), 0.8, tmp_path)

    assert [True, True, False, False, True, True] == found.kept.tolist()
    assert [0, 1, 0, 0, 0, 5] == found.first.tolist()
    assert (1, 1) == (found.exact_duplicates, found.near_duplicates)
    assert [] == list(tmp_path.iterdir())


def test_similar_texts_in_other_places_are_no_duplicates(tmp_path: Path) -> None:
    """Turns of a session, and a question in two template modes: both are kept, in one cluster with their near-copies."""
    a, b = _texts(2)
    copies = [[*a[:195], *range(number, number + 5)] for number in range(3)]
    hashes = _facts([1, 2, 3, 4, 5], [None] * 5, [0, 7, 7, 0, 7])
    found = find_clusters(hashes, signatures([a, copies[0], b, copies[1], copies[2]]), 0.8, tmp_path)

    assert [True, True, True, False, False] == found.kept.tolist()
    assert [0, 0, 2, 0, 0] == found.first.tolist()
    assert 2 == found.near_duplicates


def test_prompts_of_a_conversation_are_one_cluster(tmp_path: Path) -> None:
    """However different they are: a near-copy of one could take it to another split."""
    hashes = _facts([1, 2, 3], [None] * 3)
    hashes["conversation"] = [5, 6, 5]
    found = find_clusters(hashes, signatures(_texts(3)), 0.8, tmp_path)

    assert [0, 1, 0] == found.first.tolist()
    assert found.kept.all()


def test_threshold_decides_what_is_near(tmp_path: Path) -> None:
    """A pair of similarity 0.9 is one at 0.8 and two at 0.99; candidates of a band are verified."""
    (a,) = _texts(1)
    sketches = signatures([a, [*a[:195], 1, 2, 3, 4, 5]])
    hashes = _facts([1, 2], [None, None])

    assert [1, 2] == [int(find_clusters(hashes, sketches, level, tmp_path).kept.sum()) for level in (0.8, 0.99)]


def test_rows_below_the_threshold_are_not_joined(tmp_path: Path) -> None:
    """Rows that share a band but have low similarity are two prompts."""
    generator = np.random.default_rng(0)
    sketches = generator.integers(0, 2**32, (2, PERMUTATIONS), dtype=np.uint32)
    sketches[1, :40] = sketches[0, :40]

    assert [True, True] == find_clusters(_facts([1, 2], [None, None]), sketches, 0.8, tmp_path).kept.tolist()


def _clusters(first: list[int]) -> Clusters:
    rows = np.array(first, dtype=np.int64)
    return Clusters(np.ones(len(rows), dtype=bool), rows, 0, 0)


def test_identity_prefers_groups_then_least_content() -> None:
    """A cluster's identity is its least group hash, or its least content hash where no row has a group."""
    hashes = _facts([50, 40, 30, 20], [None, None, 90, None])

    assert [40, 40, 90, 90] == identities(hashes, _clusters([0, 0, 2, 2])).tolist()


def test_split_shares_do_not_depend_on_cluster_size() -> None:
    """Small identities (the least hash of a large cluster) follow the shares as well: 5 sigma of
    2,000 draws is 0.055, and the draws are fixed."""
    shares = Splits()
    found = np.bincount([split_of(identity, shares) for identity in range(2000)], minlength=3) / 2000

    assert [0.6, 0.1, 0.3] == pytest.approx(found.tolist(), abs=0.055)


def test_empty_split_is_refused() -> None:
    """A corpus of one cluster cannot be split in three, and the message says which split is empty, and what a cluster is."""
    with pytest.raises(
        UsageError, match=r"corpus\.splits\.\w+ = .* split is empty: .* only 1 cluster \(.* chats .*open"
    ):
        assign_splits(_facts([1, 2], [None, None]), _clusters([0, 0]), Splits())
