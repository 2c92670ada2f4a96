"""Repeats that contradict each other: two models, servers or datasets in one table."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.measurements import Measurement, read_measurements
from pipeline.latency.costs.repeats import contradictions, falls, other_servers

LENGTHS = {0: 1.0, 1: 1.6, 2: 2.2}


def _read(tmp_path: Path, header: str, rows: Sequence[str], name: str = "sweep.csv") -> list[Measurement]:
    path = tmp_path / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return read_measurements(path).measured


def _rows(label: str, by: float, more: float = 0.0, loads: Sequence[float] = (1, 8, 32)) -> list[str]:
    """`by`: factor of the step times. `more`: added to the tokens per step; the steps stay."""
    rows = []
    for load, (gamma, tokens) in product(loads, LENGTHS.items()):
        length = tokens + more * (gamma > 0)
        step = by * (5 + 0.1 * load) * (1 + 0.1 * gamma)
        rows.append(f"{label},{load},{gamma},{step / length},{length if gamma else ''},{step * load:.6f}")
    return rows


HEADER = "model,concurrency,k,tpot_ms,acceptance_length,tpot_p99_ms"


def test_two_models_in_one_table_are_named_and_count_in_the_error(tmp_path: Path) -> None:
    """ "0.0% off on left-out points" was said of costs that are 44% off."""
    measured = _read(tmp_path, HEADER, [*_rows("small", 1), *_rows("large", 4)])
    errors = fit_measurements(measured).leave_one_out
    (found,) = contradictions(measured)

    assert errors is not None
    assert pytest.approx(0.441, abs=0.01) == errors.chosen == errors.linear
    assert (9, 4.0, ("model",)) == (found.points, pytest.approx(found.ratio), found.labels)
    assert "differs by 300% (9 loads have such repeats); they differ in model" in found.said()


def test_two_files_are_named(tmp_path: Path) -> None:
    """Of two servers, each with a table of its own."""
    measured = [
        *_read(tmp_path, HEADER, _rows("same", 1), "quiet.csv"),
        *_read(tmp_path, HEADER, _rows("same", 1.3), "busy.csv"),
    ]

    assert [("file",)] == [one.labels for one in contradictions(measured)]


def test_repeats_without_a_label_are_named_too(tmp_path: Path) -> None:
    """A column with another value in each row is a result, and does not tell repeats apart."""
    (found,) = contradictions(_read(tmp_path, HEADER, [*_rows("same", 1), *_rows("same", 2)]))

    assert () == found.labels
    assert "no other column distinguishes them" in found.said()


def test_two_datasets_are_named_by_their_acceptance(tmp_path: Path) -> None:
    """The steps are the same: the tokens per step are the mean of both."""
    (found,) = contradictions(_read(tmp_path, HEADER, [*_rows("code", 1), *_rows("chat", 1, -0.4)]))

    assert ("the number of tokens per step", ("model",)) == (found.what, found.labels)


@pytest.mark.parametrize(("by", "loads"), [(1.09, (1, 8, 32)), (1.14, (1.07, 8.56, 34.24))])
def test_repeats_within_noise_are_repeats(by: float, loads: Sequence[float], tmp_path: Path) -> None:
    """10%, and what a higher load may explain besides."""
    assert [] == contradictions(_read(tmp_path, HEADER, [*_rows("one", 1), *_rows("other", by, loads=loads)]))


def test_a_throughput_that_falls_as_the_batch_grows_is_named(tmp_path: Path) -> None:
    """4 prompts ran at "16". Without drafts the throughput rises; a fall of 9% is noise."""
    header, plain = "running,k,output_tok_s,acceptance_length", ["1,0,151,", "8,0,1187,", "16,0,1085,", "32,0,4194,"]
    drafted = ["1,2,248,1.8", "8,2,1641,1.8", "16,2,782,1.8", "32,2,4999,1.8"]
    (said,) = falls(_read(tmp_path, header, [*plain, *drafted]))

    assert "line 8: 782 tokens/s at 16 requests, but " in said
    assert "line 7 has 1,641 at 8 (draft length 2): fewer requests ran, or a time is wrong" in said


def test_the_repeats_that_differ_most_are_named(tmp_path: Path) -> None:
    """At 8 requests by half, elsewhere by a fifth; the other loads are counted."""
    other = _rows("other", 1.2, loads=(1, 32)) + _rows("other", 1.5, loads=(8,))
    (found,) = contradictions(_read(tmp_path, HEADER, [*_rows("one", 1), *other]))

    assert (9, 8, pytest.approx(1.5)) == (found.points, found.low.requests, found.ratio)


@pytest.mark.parametrize(
    ("column", "plain", "drafted", "said"),
    [
        ("Model", "8B", "70B", ["70B with drafts, and 8B without"]),
        ("Model", "8B", "8B", []),
        ("model", "8B", "8B + EAGLE-3", []),
        ("draft model", "", "0.6B", []),
        ("config", "A", "B", []),
    ],
)  # fmt: skip
def test_rows_with_drafts_are_of_the_same_server(
    column: str, plain: str, drafted: str, said: list[str], tmp_path: Path
) -> None:
    """Plain decoding of one model beside drafts of another is no repeat, and gave a speedup."""
    rows = [f"{drafted if k else plain},{load},{k},{10 - k},{1 + k / 2 or ''}" for load in (1, 8) for k in (0, 2)]

    found = other_servers(_read(tmp_path, f"{column},concurrency,k,tpot_ms,acceptance_length", rows))

    assert said == [one.partition(": ")[2].partition(":")[0] for one in found]


def test_several_models_are_named_where_no_load_is_shared(tmp_path: Path) -> None:
    """Of two, at loads of their own; one that a contradiction names already is not said again."""
    rows = [f"{model},{load},{10 + load}" for model, loads in (("8B", (1, 4)), ("30B", (2, 8))) for load in loads]
    table = _read(tmp_path, "model_id,concurrency,tpot_ms", rows)

    assert ["check model_id: 30B, 8B: costs are of one server; fit each alone"] == other_servers(table)
    assert [] == other_servers(table, ["model_id"])


def test_a_result_is_no_label(tmp_path: Path) -> None:
    """Counts of `vllm bench serve` differ between repeats, and say nothing of a server."""
    rows = [f"{load},{load * (10 + turn)},{100 * turn + 1}" for load in (1, 2, 4, 8) for turn in (0, 5)]
    (found,) = contradictions(_read(tmp_path, "concurrency,tpot_ms,total_output_tokens", rows))

    assert () == found.labels
    assert "4 loads have such repeats); no other column distinguishes them" in found.said()
    assert "so measure longer" in found.said()
