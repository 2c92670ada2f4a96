"""From an observation to a verdict, what is said of it, and what is told."""

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config.root import Config
from pipeline.config.watch import WatchConfig
from pipeline.engines.counts import Counts
from pipeline.errors import UnderstudyError
from pipeline.export.schema import Expected, write_expected
from pipeline.store.artifacts import Store
from pipeline.watch.drift_notice import drift_notice
from pipeline.watch.lines import figures, paying_line, state_line, status_line
from pipeline.watch.moved import Recent, moved
from pipeline.watch.moved import with_look as domains_with_look
from pipeline.watch.prediction import ServedDraft, served
from pipeline.watch.reading import Look
from pipeline.watch.reference import SLOTS, Reference
from pipeline.watch.share import ALL, FIRST, Predicted, watched_shares
from pipeline.watch.state import STATE, Last, WatchState, new_state
from pipeline.watch.thresholds import Paying, Window, observed_speedup
from pipeline.watch.watcher import Costs, changes, ended, with_look
from tests.unit.watch.expectations import FlatCosts, expected_at, found_in, watched_state, with_reference

SETTINGS = WatchConfig(burst_minutes=0.01)
_DRIFT = ("counts", "by_name", FIRST, "drift")
ALL_5 = f"{ALL} (draft length 5)"
SERVED = ServedDraft("vllm", expected_at(first=0.8, accepted=2.5, gamma=5))


def _counts(first: float, drafts: float = 1000.0) -> Counts:
    """As `SERVED` predicts, where `first` is 0.8."""
    return Counts(
        drafts=drafts, draft_tokens=5 * drafts, accepted=drafts * first / 0.8 * 2.5, accepted_first=drafts * first
    )


def _looks(
    state: WatchState, firsts: list[float], settings: WatchConfig = SETTINGS, served: ServedDraft = SERVED, **more: Any
) -> WatchState:
    for first in firsts:
        time = 300.0 * (state.looks + 1)
        observation = Look(time=time, seconds=300.0, counts=_counts(first), **more)
        state = with_look(state, observation, served, settings, None)
    return state


@pytest.mark.parametrize(
    ("counts", "gamma", "expected"),
    [
        (_counts(0.8), None, [(FIRST, 1000.0, 800.0)]),
        (_counts(0.8), 5, [(FIRST, 1000.0, 800.0), (ALL_5, 5000.0, 2500.0)]),
        (_counts(0.8), 4, [(FIRST, 1000.0, 800.0)]),  # the draft length is not what it is said to be
        (replace(_counts(0.8), draft_tokens=4960.0), 5, [(FIRST, 1000.0, 800.0), (ALL_5, 4960.0, 2500.0)]),
        (replace(_counts(0.8), draft_tokens=4940.0), 5, [(FIRST, 1000.0, 800.0)]),
        (Counts(drafts=10.0, draft_tokens=50.0, accepted=20.0), None, [(ALL, 50.0, 20.0)]),
        (Counts(drafts=10.0, draft_tokens=31.0, accepted=20.0), 5, [(ALL, 31.0, 20.0)]),
        (Counts(draft_tokens=50.0, accepted=60.0), None, [(ALL, 50.0, 50.0)]),
        (Counts(drafts=10.0, accepted=20.0), 4, [(f"{ALL} (draft length 4)", 40.0, 20.0)]),
        (Counts(drafts=10.0, accepted=20.0), None, []),
        (Counts(drafts=0.0, draft_tokens=0.0, accepted=0.0, accepted_first=0.0), 5, []),
        (Counts(tokens=10.0), 5, []),
    ],
    ids=str,
)
def test_which_counts_are_watched(counts: Counts, gamma: int | None, expected: list[tuple[str, float, float]]) -> None:
    """First tokens; all of them too at a constant draft length, or where nothing else is counted."""
    assert expected == [(one.name, one.trials, one.successes) for one in watched_shares(counts, None, gamma)]


def test_the_prediction_is_that_of_the_watched_count() -> None:
    predicted = Predicted(digest="d", gamma=5, first=0.8, accepted=2.5)
    assert [0.8, 0.5] == [one.predicted for one in watched_shares(_counts(0.7), predicted, None)]
    assert [0.5] == [one.predicted for one in watched_shares(Counts(draft_tokens=50.0, accepted=20.0), predicted, None)]


def test_tokens_of_a_draft_are_not_independent() -> None:
    """Draft tokens have the prediction's draft length as their dependence; both counts have its design effect."""
    predicted = Predicted(digest="d", gamma=5, first=0.8, accepted=2.5, design_effect=3.0)
    found = watched_shares(_counts(0.7), predicted, 4) + watched_shares(Counts(drafts=9.0, accepted=20.0), predicted, 4)
    assert [(1000.0, 1, 3.0), (5000.0, 5, 3.0), (45.0, 5, 3.0)] == [
        (one.trials, one.dependence, one.design_effect) for one in found
    ]


def test_the_first_look_counts_nothing() -> None:
    state = with_look(new_state(0.0), Look(time=1.0, seconds=None, counts=None), SERVED, SETTINGS, None)
    assert (1, {}) == (state.looks, state.last)
    assert "nothing was counted yet" in status_line(found_in(state), SETTINGS)


def test_a_drift_and_its_end_are_changes() -> None:
    steady = _looks(new_state(0.0), [0.8] * 5)
    low = _looks(steady, [0.4] * 5)
    assert [[], ["drift"]] == [list(changes(new_state(0.0), steady)), list(changes(steady, low))]
    assert ("low", "no drift") == (low.verdict, state_line(steady))
    assert "below what it should be since about 1970-01-01T00:2" in state_line(low)
    assert "predicted 0.800" in status_line(found_in(low), SETTINGS)
    again = _looks(low, [0.8] * 10)
    assert (["drift"], "steady") == (list(changes(low, again)), again.verdict)
    assert (None, "low") == (figures(found_in(again))["drift"], figures(found_in(low))["drift"])


def test_a_look_far_from_its_prediction_is_no_drift_yet() -> None:
    """The line and `--json` say so; the verdict, and so exit code and notice, wait for the rule. A look as predicted ends it."""
    settings = WatchConfig()
    state = _looks(new_state(0.0), [0.1, 0.1], settings)
    line, shown = status_line(found_in(state), settings), figures(found_in(state))
    assert line.startswith(
        "no drift yet, but acceptance of the first draft token is far below what it should be: an alarm in about"
    )
    assert "minutes if it stays there (until then it may be a burst of other traffic: watch.burst_minutes); " in line
    assert "acceptance of the first draft token 0.100, predicted 0.800 (1,000 drafts)" in line
    assert ("steady", None, []) == (state.verdict, shown["drift"], shown["drifts"])
    assert (FIRST, "low", True) == tuple(shown["outside"][key] for key in ("count", "side", "as_burst"))
    assert ["drift"] == list(changes(_looks(new_state(0.0), [0.8]), state))
    as_predicted = _looks(state, [0.8], settings)
    assert ("no drift", None) == (state_line(as_predicted), figures(found_in(as_predicted))["outside"])


def test_another_draft_is_another_beginning() -> None:
    low = _looks(new_state(0.0), [0.4] * 8)
    other = ServedDraft("vllm", expected_at(first=0.8, accepted=2.5, gamma=5, digest="other"))
    after = with_look(low, Look(time=9e3, seconds=None, counts=None), other, SETTINGS, None)
    assert ("low", "steady", "other") == (low.verdict, after.verdict, after.draft)


def test_the_look_that_finds_another_draft_tests_nothing() -> None:
    """Its counts are of the draft before as well: here of eight hours in which the watch did not run."""
    steady = _looks(
        new_state(0.0), [0.55] * 3, served=ServedDraft("vllm", expected_at(first=0.55, accepted=1.5, gamma=5))
    )
    other = ServedDraft("vllm", expected_at(first=0.8, accepted=2.5, gamma=5, digest="other"))
    look = Look(time=3e4, seconds=28_800.0, counts=_counts(0.55, 1e5))
    found, again = (with_look(state, look, other, SETTINGS, None) for state in (steady, replace(steady, draft="other")))
    assert ("steady", "low") == (found.verdict, again.verdict)


@pytest.mark.parametrize("before", [None, SERVED.expected])
def test_a_reference_is_of_deviations_or_of_counts(before: Expected | None) -> None:
    """One that was learned with a prediction says nothing without one, and the other way round."""
    reference = Reference(
        level=(0.0 if before else 0.8,) * SLOTS, band=0.01, design_effect=1.0, typical=1e3, block=0.01
    )
    state = _looks(new_state(0.0), [0.8] * 2, served=ServedDraft("vllm", before))
    state = with_reference(state, reference)
    after = ServedDraft("vllm", None if before else SERVED.expected)
    found = _looks(state, [0.8] * 5, served=after)
    assert ("steady", None) == (found.verdict, found.reference(FIRST))
    kept = replace(SERVED, expected=expected_at(first=0.8, accepted=2.5, gamma=5, digest="other"))
    if before is not None:
        assert reference == _looks(state, [0.8] * 5, served=kept).reference(FIRST)


def test_what_is_learned_is_counted_in_drafts() -> None:
    """Also where the count that is shown is of draft tokens."""
    counts = Counts(drafts=1000.0, accepted=2500.0)
    state = new_state(0.0)
    for look in range(1, 4):
        state = with_look(state, Look(time=300.0 * look, seconds=300.0, counts=counts), SERVED, SETTINGS, None)
    assert "2,000 of 20,000 drafts" in status_line(found_in(state), SETTINGS)  # the first look found the draft


def test_another_draft_length_has_a_reference_of_its_own() -> None:
    """Hours deviate more, the more draft tokens there are; first tokens are the same."""
    state = with_reference(_looks(new_state(0.0), [0.8] * 2), watched_state().reference(FIRST))
    longer = ServedDraft("vllm", expected_at(first=0.8, accepted=3.0, gamma=7, digest="longer"))
    counts = Counts(drafts=1000.0, draft_tokens=7000.0, accepted=3000.0, accepted_first=800.0)
    for look in (3, 4):
        state = with_look(state, Look(time=300.0 * look, seconds=300.0, counts=counts), longer, SETTINGS, None)
    assert [True, True, False] == [
        state.reference(name) is not None for name in (FIRST, ALL_5, f"{ALL} (draft length 7)")
    ]


def test_the_window_begins_anew_with_another_draft() -> None:
    """Else what it said before would be said for ever."""
    window = SETTINGS.model_copy(update={"rule": "window", "window": 1000})
    low = _looks(new_state(0.0), [0.1] * 2, window)
    assert ("low", low.window.since) == (low.verdict, low.since)
    other = ServedDraft("vllm", expected_at(first=0.8, accepted=2.5, gamma=5, digest="other"))
    nothing = Look(time=9e3, seconds=None, counts=None)
    assert "steady" == with_look(low, nothing, other, window, None).verdict


def test_what_is_remembered_of_a_look() -> None:
    """Its share and its number of drafts; domains fade with the time that passed, and counts without a time are none."""
    state = _looks(new_state(0.0), [0.8, 0.8, 0.7], by_domain={"chat": _counts(0.8)})
    assert Last(time=900.0, share=0.7, predicted=0.8, trials=1000.0) == state.last[FIRST]
    assert Last(time=900.0, share=0.4375, predicted=0.5, trials=5000.0, dependence=5.0) == state.last[ALL_5]
    for count, trials in ((FIRST, 1000), (ALL_5, 5000)):
        assert trials * (2 + math.exp(-300 / 7200) - 1) == pytest.approx(state.domains[count]["chat"].short[0])
    back = with_look(state, Look(time=500.0, seconds=None, counts=_counts(0.1)), SERVED, SETTINGS, None)
    assert (state.last, 4) == (back.last, back.looks)


def test_a_speedup_is_of_the_exported_draft_length() -> None:
    """Not of the one in the config, which is for engines without an export; the time is that of the look."""
    costs = Costs(FlatCosts(plain=1.0, speculative=4.0), 512)
    observation = Look(time=900.0, seconds=300.0, counts=_counts(0.8), running=4.0)
    settings = SETTINGS.model_copy(update={"draft_length": 60})  # longer than the costs reach
    paying = with_look(replace(new_state(0.0), draft="d"), observation, SERVED, settings, costs).paying
    assert (pytest.approx(3.5 / 4), False, 900.0) == (paying.speedup, paying.pays, paying.since)


def test_a_reference_is_a_change_once() -> None:
    state = watched_state()
    learning = with_reference(state, None)
    assert [["reference"], []] == [list(changes(before, state)) for before in (learning, state)]


def test_the_notice_of_a_drift_and_of_its_end() -> None:
    low = _looks(new_state(0.0), [0.8] * 3 + [0.4] * 8)
    body = asdict(drift_notice(low, "big-draft", 9e3))
    assert ("low", "big-draft", 0.4, 0.8) == tuple(body[key] for key in ("drift", "name", "acceptance", "predicted"))
    assert "none" == drift_notice(ended(low, 9e3), "big-draft", 9e3).drift


def test_the_domain_that_moved_is_named() -> None:
    """json falls by 40 points; chat has more traffic and stays."""
    domains = domains_with_look({}, {"chat": _counts(0.8, 3000.0), "json": _counts(0.9)}, None, 300.0)
    for rate in [0.9] * 40 + [0.5] * 40:
        domains = domains_with_look(domains, {"chat": _counts(0.8, 3000.0), "json": _counts(rate)}, None, 300.0)
    found = moved(domains[FIRST], -1)
    assert found is not None
    assert ("json", True, True) == (found.domain, -0.4 < found.change < -0.1, 0.2 < found.part < 0.3)
    assert None is moved({}, -1)


def test_domains_are_bounded() -> None:
    """Those with the most traffic are kept."""
    kept = domains_with_look({}, {f"d{number}": _counts(0.5, number) for number in range(1, 99)}, None, 300.0)
    assert {f"d{number}" for number in range(49, 99)} == set(kept[FIRST])


@pytest.mark.parametrize(
    ("domains", "side", "expected"),
    [
        ({"rare": (10.0, 0.8, 0.2), "common": (1000.0, 0.8, 0.7), "most": (9000.0, 0.8, 0.795)}, -1, "common"),
        ({"one": (1000.0, 0.8, 0.9)}, -1, None),
        ({"one": (1000.0, 0.8, 0.9), "other": (1000.0, 0.8, 0.7)}, 1, "one"),
    ],
    ids=str,
)
def test_the_domain_that_makes_most_of_the_change(
    domains: dict[str, tuple[float, float, float]], side: int, expected: str | None
) -> None:
    """By its change and its traffic; none where no domain changed to that side. Each has drafts, and its share before and now."""
    known = {
        name: Recent((100 * drafts, 100 * drafts * before), (drafts, drafts * now))
        for name, (drafts, before, now) in domains.items()
    }
    found = moved(known, side)
    assert expected == (None if found is None else found.domain)


def test_the_window_rule() -> None:
    """Low below the threshold, over again 5 points above it; counts of too few tokens say nothing."""
    settings = WatchConfig(rule="window", window=1000, threshold=0.5)
    few = Window().with_look(_counts(0.1, 10.0), 1.0, settings)
    low = few.with_look(_counts(0.1), 2.0, settings)
    still = low.with_look(Counts(drafts=1000.0, draft_tokens=1000.0, accepted=520.0), 3.0, settings)
    over = still.with_look(Counts(drafts=1000.0, draft_tokens=1000.0, accepted=600.0), 4.0, settings)
    assert [False, True, True, False] == [one.low for one in (few, low, still, over)]
    assert [2.0, 2.0, 4.0] == [one.since for one in (low, still, over)]
    assert 1 == len(over.counts)
    state = _looks(new_state(0.0), [0.1] * 2, settings)
    assert ("low", True) == (state.verdict, "rule window" in status_line(found_in(state), settings))


def test_the_window_rule_on_an_engine_that_counts_no_draft_tokens() -> None:
    """SGLang: they are those of the draft length. The window stays as small as elsewhere."""
    state = new_state(0.0)
    for look in range(1, 100):
        counts = Counts(drafts=100.0, accepted=10.0, tokens=120.0)
        observation = Look(time=300.0 * look, seconds=300.0, counts=counts)
        state = with_look(state, observation, SERVED, WatchConfig(rule="window"), None)
    assert ("low", 1) == (state.verdict, len(state.window.counts))


def test_the_window_has_its_tokens_and_no_more() -> None:
    """Looks of 800 tokens: three are 2,000 and more."""
    settings, window = WatchConfig(rule="window", window=2000, threshold=0.5), Window()
    for look in range(5):
        counts = Counts(drafts=400.0, draft_tokens=800.0, accepted=400.0)
        window = window.with_look(counts, float(look), settings)
    assert (3, False) == (len(window.counts), window.low)


def test_the_prediction_is_of_the_served_draft_length() -> None:
    """An export has figures of others too. Accepted tokens are those of a draft."""
    expected = expected_at(first=0.8, accepted=2.5, gamma=5)
    figures = replace(expected.deployed.by_draft_length[5], design_effect=3.0)
    others = {5: figures, 8: expected_at(first=0.1, accepted=4.0, gamma=8).deployed.by_draft_length[8]}
    expected = replace(expected, deployed=replace(expected.deployed, by_draft_length=others))
    assert (
        Predicted(digest="d", gamma=5, first=0.8, accepted=2.5, design_effect=3.0)
        == ServedDraft("vllm", expected).predicted
    )


def test_an_export_is_named_by_its_directory_or_its_file(tmp_path: Path) -> None:
    """Without either, the config's export says which engine runs."""
    write_expected(tmp_path, expected_at(first=0.8, accepted=2.5, gamma=5))
    raw: dict[str, Any] = {
        "name": "watched",
        "pair": {"target": {"source": "./big"}, "draft": {"source": "./small"}},
        "corpus": {"sources": [{"path": "prompts.jsonl"}]},
    }
    for path in (tmp_path, tmp_path / "expected.json"):
        found = served(Config.model_validate(raw | {"watch": {"expected": str(path)}}))
        assert ("vllm", 5) == (found.engine, None if found.expected is None else found.expected.gamma)
    export = {"promote": {"export": {"engine": "sglang", "out": str(tmp_path / "link")}}}
    assert ServedDraft("sglang", None) == served(Config.model_validate(raw | export))


def test_speculation_pays_or_not() -> None:
    """At batch 4 a speculative step takes 3 times a plain one: 2.5 + 1 tokens pay, 1.5 + 1 do not."""
    costs = FlatCosts(plain=1.0, speculative=3.0)
    observation = Look(
        time=1.0, seconds=300.0, counts=Counts(drafts=10.0, draft_tokens=50.0, accepted=25.0), running=4.2
    )
    assert 3.5 / 3 == pytest.approx(observed_speedup(observation, 5, costs, 512))
    for lacking in ({"running": None}, {"running": 0.0}, {"running": 1e6}, {"counts": Counts(drafts=10.0)}):
        assert None is observed_speedup(replace(observation, **lacking), 5, costs, 512)
    assert None is observed_speedup(observation, 9, costs, 512)


def test_a_speedup_is_of_the_batch_that_runs() -> None:
    """A step takes longer with each request in it; half a request is one. Costs without plain decoding say nothing."""
    costs, observation = (
        FlatCosts(plain=1.0, speculative=1.0),
        Look(time=1.0, seconds=300.0, counts=Counts(drafts=10.0, accepted=20.0), running=3.6),
    )
    step_GN = np.outer([1.0, 2.0, 2.0, 2.0, 2.0, 2.0], np.ones(64)) + np.arange(64)
    costs.steps = lambda *asked: step_GN  # type: ignore[method-assign]
    assert 3 * 4 / 5 == pytest.approx(observed_speedup(observation, 5, costs, 512))
    assert 3 / 2 == pytest.approx(observed_speedup(replace(observation, running=0.3), 5, costs, 512))
    costs.plain = False  # type: ignore[misc]
    assert None is observed_speedup(observation, 5, costs, 512)


def test_paying_is_a_mean_of_half_an_hour() -> None:
    """One look at a bad moment changes nothing; the time is that of the change."""
    good = Paying().with_look(1.2, 300.0, 300.0)
    bad = good.with_look(0.9, 600.0, 300.0)
    assert 1.2 - 0.3 * (1 - math.exp(-300 / 1800)) == pytest.approx(bad.speedup)
    assert (True, 0.0) == (bad.pays, bad.since)
    worse = bad.with_look(0.0, 900.0, 1800.0)
    still = worse.with_look(0.0, 1200.0, 300.0)
    assert [(False, 900.0)] * 2 == [(one.pays, one.since) for one in (worse, still)]


def test_paying_has_hysteresis() -> None:
    states = [Paying()]
    for look, speedup in enumerate([1.2, *[0.8] * 20, *[1.01] * 40, *[1.2] * 40]):
        states.append(states[-1].with_look(speedup, float(look), 300.0))
    pays = [one.pays for one in states]
    assert [True, False, True] == [pays[place] for place in (1, 60, 101)]
    assert 2 == sum(one != other for one, other in itertools.pairwise(pays))
    state = replace(new_state(0.0), paying=Paying(speedup=0.8, pays=False))
    assert "speculation is 25% slower than plain decoding at this load (x0.80)" in paying_line(state)
    assert ["paying"] == list(changes(new_state(0.0), state))


def test_the_state_is_one_file(tmp_path: Path) -> None:
    """What is written is read again; a damaged one is an error in one line with what to do."""
    store, state = Store(tmp_path), _looks(new_state(0.0), [0.8, 0.4, 0.4], by_domain={"chat": _counts(0.5)})
    assert None is STATE.find(store, "big-draft")
    STATE.write(store, state, "big-draft")
    assert state == STATE.find(store, "big-draft")
    path = STATE.path(store, "big-draft")
    path.write_text(
        path.read_text().replace('"verdict": "steady"', '"verdict": "odd"').replace('"low": {', '"left": {')
    )
    with pytest.raises(UnderstudyError, match="move it away; the watch then learns its reference again"):
        STATE.find(store, "big-draft")


def test_the_charts_in_the_file_are_those_of_this_version() -> None:
    raw = asdict(watched_state())
    charts = raw["counts"]["by_name"][FIRST]["drift"]["looks"]
    charts["low"]["components"] = charts["low"]["components"][:1]
    with pytest.raises(UnderstudyError, match="another number of sizes"):
        STATE.kind.parse(raw, "state")


def test_each_name_has_its_state(tmp_path: Path) -> None:
    """Two watches may have one store."""
    store = Store(tmp_path)
    assert STATE.path(store, "one") != STATE.path(store, "other")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ((*_DRIFT, "looks", "low"), None, "a chart for each side"),
        ((*_DRIFT, "end", "components"), [], "another number of sizes"),
        ((*_DRIFT, "reference", "level"), [0.0], "a level for each block of the day"),
        (("window", "counts", 0, "drafts"), -1.0, "numbers of 0 or more"),
    ],
    ids=str,
)
def test_a_state_that_no_watch_writes(place: tuple[Any, ...], value: Any, said: str) -> None:
    """Is refused when it is read, not in a look."""
    raw = json.loads(json.dumps(asdict(watched_state())))
    inner = raw
    for key in place[:-1]:
        inner = inner[key]
    if value is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    with pytest.raises(UnderstudyError, match=said):
        STATE.kind.parse(raw, "state")
