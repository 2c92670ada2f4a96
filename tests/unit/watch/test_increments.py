"""What was counted between two looks: restarts, series that begin again, contradictions, counters that grow in steps."""

import random
from typing import get_args

import pytest

from pipeline.engines.counts import Counts
from pipeline.engines.facts import WatchedEngine
from pipeline.watch.exposition import NotCounters, Page, Total, read_page
from pipeline.watch.increments import Increment, WatchedReplica, forget, increment
from tests.standin_metrics import LENGTH, CountingEngine
from tests.unit.watch.test_exposition import METRICS, damaged

ENGINES = get_args(WatchedEngine)
BEGAN = 1.7956e9


def _look(engine: CountingEngine, before: WatchedReplica | None) -> Increment:
    return increment(read_page(engine.page(), engine.kind), before, engine.kind, BEGAN)


def _totals(began: float | None = None, **values: float) -> Page:
    return Page(engines={"": {name: Total(value=value, created=began) for name, value in values.items()}})


def _between(one: Page, two: Page, engine: WatchedEngine = "vllm") -> Increment:
    return increment(two, increment(one, None, engine, 0.0).after, engine, 1.0)


def test_pages_of_a_real_engine() -> None:
    """Between two pages of vLLM's CPU build: the differences of their counters (fixtures/metrics/README.md)."""
    pages = [read_page((METRICS / name).read_text(), "vllm") for name in ("vllm.txt", "vllm_later.txt")]
    found = _between(*pages)
    assert Counts(drafts=156, draft_tokens=468, accepted=328, accepted_first=122, tokens=480) == found.counts
    assert () == found.problems


@pytest.mark.parametrize("kind", ENGINES)
def test_the_first_look_has_no_increment_and_later_ones_what_was_decoded(kind: WatchedEngine) -> None:
    """Of every engine; of SGLang without draft tokens and first positions."""
    engine = CountingEngine(kind)
    engine.decode(50, (30, 20, 10))
    first = _look(engine, None)
    assert first.counts is None
    decoded = engine.decode(10, (7, 5, 2), requests=2)
    second = _look(engine, first.after)
    assert decoded == second.counts
    nothing = _look(engine, second.after).counts
    assert nothing is not None
    assert decoded == nothing + decoded


@pytest.mark.parametrize("kind", ENGINES)
def test_a_restart_counts_whole(kind: WatchedEngine) -> None:
    """The counters began at 0 again, and have not reached what they were."""
    engine = CountingEngine(kind)
    engine.decode(50, (30, 20, 10), requests=9)
    before = _look(engine, None).after
    engine.restart(BEGAN + 100)
    decoded = engine.decode(10, (7, 5, 2), requests=2)
    assert decoded == _look(engine, before).counts


def test_a_restart_that_outgrew_the_counters_before() -> None:
    """It is seen by when they began."""
    engine = CountingEngine("vllm")
    engine.decode(5, (3, 2, 1))
    before = _look(engine, None).after
    engine.restart(BEGAN + 100)
    decoded = engine.decode(50, (30, 20, 10))
    assert decoded == _look(engine, before).counts


def test_series_that_begin_again_at_different_times() -> None:
    """Where it is known when each began, each counts by itself; else an increment of which some began again is left out."""
    old = {"drafts": 10.0, "draft_tokens": 30.0, "accepted": 15.0, "first": 8.0}
    new = {"drafts": 12.0, "draft_tokens": 36.0, "accepted": 3.0, "first": 9.0}
    one = _totals(BEGAN, **old)
    two = Page(
        engines={
            "": {name: Total(value=value, created=BEGAN + 9 * (name == "accepted")) for name, value in new.items()}
        }
    )
    assert Counts(drafts=2, draft_tokens=6, accepted=3, accepted_first=1) == _between(one, two).counts
    found = _between(_totals(**old), _totals(**new))
    assert (None, ("accepted began again and drafts did not; this increment is left out",)) == (
        found.counts,
        found.problems,
    )
    after = increment(_totals(drafts=14.0, draft_tokens=42.0, accepted=6.0, first=10.0), found.after, "vllm", 2.0)
    assert Counts(drafts=2, draft_tokens=6, accepted=3, accepted_first=1) == after.counts


def test_a_gateway_is_noticed() -> None:
    """Counters that began earlier than before are those of another replica."""
    one, two = _totals(BEGAN + 500, drafts=9.0, draft_tokens=27.0), _totals(BEGAN, drafts=9000.0, draft_tokens=27000.0)
    found = _between(one, two)
    assert found.counts is None
    assert "list each replica in watch.endpoints, not a gateway" in found.problems[0]


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ({"drafts": 2, "draft_tokens": 6, "accepted": 7, "first": 2}, "7 accepted tokens of 6 draft tokens"),
        ({"drafts": 2, "draft_tokens": 6, "accepted": 3, "first": 3}, "3 accepted first tokens of 2 drafts"),
        ({"drafts": 2, "draft_tokens": 6, "accepted": 1, "first": 2}, "2 accepted first tokens of 1 accepted tokens"),
        ({"drafts": 7, "draft_tokens": 6, "accepted": 1, "first": 1}, "7 drafts of 6 draft tokens"),
    ],
)
def test_contradictions_are_left_out(new: dict[str, float], reason: str) -> None:
    """What no decode counts is told and not counted; the next increment is."""
    zero = _totals(BEGAN, drafts=0, draft_tokens=0, accepted=0, first=0)
    found = _between(zero, _totals(BEGAN, **new))
    assert (None, (f"{reason}; this increment is left out",)) == (found.counts, found.problems)
    later = _totals(
        BEGAN, **{name: value + 6 for name, value in new.items()} | {"draft_tokens": new["draft_tokens"] + 9}
    )
    assert (
        Counts(drafts=6, draft_tokens=9, accepted=6, accepted_first=6)
        == increment(later, found.after, "vllm", 2.0).counts
    )


def test_sglang_with_fewer_tokens_than_calls() -> None:
    """Each verify call and each request has a token."""
    found = _between(_totals(drafts=0, tokens=0, requests=0), _totals(drafts=9, tokens=10, requests=3), "sglang")
    assert ("2 more verify calls and requests than generated tokens; this increment is left out",) == found.problems


def test_tokens_without_drafts_are_told() -> None:
    """llama.cpp shows counters of drafts without a draft too."""
    engine = CountingEngine("llama.cpp", requests=7)
    assert "no draft was counted" in _look(engine, None).problems[0]


def test_counters_that_are_written_with_six_digits() -> None:
    """llama.cpp's above a million: increments wait until steps are small beside them, and sums are kept."""
    engine, before, found, decoded = CountingEngine("llama.cpp"), None, list[Counts](), 0
    engine.decode(30_000_000, (20_000_000, 15_000_000, 10_000_000), requests=10)
    looks = 0
    for _ in range(1000):
        look = _look(engine, before)
        before = look.after
        assert () == look.problems
        if look.counts is not None:
            looks += 1
            found += [look.counts] if look.counts.drafts else []
        engine.decode(1000, (700, 500, 200), requests=2)
        decoded += 1000
    total = sum(found[1:], found[0])
    assert 999 == looks
    assert len(found) < 60
    assert pytest.approx(decoded, rel=0.03) == total.drafts
    assert total.accepted_first is not None
    assert all(one.accepted_first == pytest.approx(0.7 * (one.drafts or 0), rel=0.02) for one in found)


def test_ranks_add_up() -> None:
    """Each answers a part of the requests."""
    engine, rank = CountingEngine("vllm"), CountingEngine("vllm", rank="1")
    before = increment(read_page(engine.page() + rank.page(), "vllm"), None, "vllm", BEGAN).after
    decoded = engine.decode(10, (7, 5, 2)) + rank.decode(1000, (700, 500, 200))
    assert decoded == increment(read_page(engine.page() + rank.page(), "vllm"), before, "vllm", BEGAN).counts


def test_a_replica_without_a_draft_yet_has_accepted_none() -> None:
    """vLLM shows the series by position with the first draft; without a number a sum over replicas would have none."""
    zero = _totals(drafts=0, draft_tokens=0, accepted=0)
    found = _between(zero, zero).counts
    assert found is not None
    assert 0.0 == found.accepted_first


@pytest.mark.parametrize(("kind", "problems"), [("vllm", 1), ("llama.cpp", 0)])
def test_counters_that_are_written_in_steps_may_exceed_each_other_a_little(kind: WatchedEngine, problems: int) -> None:
    """103 accepted of 100: impossible, but where both are rounded."""
    zero = _totals(drafts=0, draft_tokens=0, accepted=0, first=0)
    found = _between(zero, _totals(drafts=100, draft_tokens=100, accepted=103, first=50), kind)
    assert problems == len(found.problems)


def test_draft_tokens_without_drafts_are_speculation() -> None:
    """TensorRT-LLM without counters by position."""
    found = _between(
        _totals(draft_tokens=0, accepted=0, tokens=0), _totals(draft_tokens=30, accepted=9, tokens=50), "tensorrt-llm"
    )
    assert () == found.problems


def test_ranks_that_come_and_go() -> None:
    """A rank has an increment from its second look on; one that is gone is forgotten."""
    engine, rank = CountingEngine("vllm"), CountingEngine("vllm", rank="1")
    rank.decode(1000, (7, 5, 2))
    before = _look(engine, None).after
    decoded = engine.decode(10, (7, 5, 2))
    found = increment(read_page(engine.page() + rank.page(), "vllm"), before, "vllm", BEGAN)
    assert (decoded, {"0", "1"}) == (found.counts, set(found.after.engines))
    again = increment(read_page(engine.page() + rank.page(), "vllm"), found.after, "vllm", BEGAN)
    assert Counts(drafts=0, draft_tokens=0, accepted=0, accepted_first=0, tokens=0) == again.counts
    assert {"0"} == set(_look(engine, again.after).after.engines)


@pytest.mark.parametrize(("kind", "count"), [*((kind, 2) for kind in ENGINES), ("vllm", 3), ("llama.cpp", 3)])
def test_a_gateway_that_shows_one_replica_after_another(kind: WatchedEngine, count: int) -> None:
    """Some looks are taken for restarts; from then on nothing counts and the line says why. One replica alone counts again."""
    engines = [CountingEngine(kind, began=BEGAN + 100 * number) for number in range(count)]
    for number, engine in enumerate(engines):
        engine.decode(100_000 + 30_000 * number, (70_000, 50_000, 20_000), requests=900)
    before, said, taken = _look_of(engines[0]), list[str](), 0
    for step in range(1, 30):
        for engine in engines:
            engine.decode(300, (100, 50, 20), requests=3)
        found = _look(engines[step % count], before)
        before, taken = found.after, taken + (found.counts is not None)
        said += [one for one in found.problems if "list each replica" in one]
    assert taken <= 2 * count
    assert len(said) >= 29 - 2 * count
    engines[0].decode(300, (100, 50, 20), requests=3)
    before = _look(engines[0], before).after
    decoded = engines[0].decode(300, (100, 50, 20), requests=3)
    assert _look(engines[0], before).counts == decoded
    assert all(len(left) <= 4 for left in before.left.values())


def test_what_is_remembered_is_bounded() -> None:
    """Replicas that were not seen for long are forgotten, and of the others the last are kept."""
    replicas = {f"http://{number}": WatchedReplica(seen=float(number), engines={}) for number in range(10)}
    assert ["http://7", "http://8", "http://9"] == list(forget(replicas, 10.0, 3.0, 100))
    assert ["http://8", "http://9"] == list(forget(replicas, 10.0, 100.0, 2))


@pytest.mark.parametrize("kind", ENGINES)
def test_sums_are_those_of_the_engine_through_many_restarts(kind: WatchedEngine) -> None:
    """Whatever happens between two looks, but for what an engine counts after the last look before its restart."""
    rng, engine = random.Random(37), CountingEngine(kind)
    before, sums, truth, left = _look_of(engine), Counts(), Counts(), 0
    for step in range(200):
        if rng.random() < 0.1 and (kind in ("vllm", "tensorrt-llm") or engine.drafts > 600):  # else it may be unnoticed
            engine.restart(BEGAN + 10 * step)
        accepted = sorted((rng.randrange(50) for _ in range(LENGTH)), reverse=True)
        decoded = engine.decode(
            50 + rng.randrange(500), (accepted[0], accepted[1], accepted[2]), requests=1 + rng.randrange(3)
        )
        look = _look(engine, before)
        before = look.after
        if look.counts is None:
            left += 1
            assert "began again" in look.problems[0]
            continue
        sums = look.counts if step == 0 else sums + look.counts
        truth = decoded if step == 0 else truth + decoded
    assert truth == sums
    assert left < 20


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_damaged_pages_give_no_impossible_increments(count: int) -> None:
    """Between any two pages that can be read: nothing is negative, and no more is accepted than was proposed."""
    rng, found = random.Random(37), 0
    engines = [CountingEngine(kind) for kind in ENGINES]
    before: dict[str, WatchedReplica | None] = dict.fromkeys(ENGINES)
    for _ in range(count):
        engine = rng.choice(engines)
        engine.decode(100, (70, 50, 20), requests=2)
        text = damaged(engine.page(), rng) if rng.random() < 0.8 else engine.page()
        try:
            page = read_page(text, engine.kind)
        except NotCounters:
            continue
        look = increment(page, before[engine.kind], engine.kind, BEGAN)
        before[engine.kind] = look.after
        assert all(1 == len(problem.splitlines()) for problem in look.problems)
        if (counts := look.counts) is not None:
            found += 1
            assert all(value is None or value >= 0 for value in vars(counts).values())
            assert counts.draft_tokens is None or (counts.accepted or 0.0) <= 1.05 * counts.draft_tokens
    assert 0 < found < count


def _look_of(engine: CountingEngine) -> WatchedReplica:
    engine.decode(1, (1, 1, 1))
    return _look(engine, None).after
