"""False alarms and delays of the drift test beside simpler rules, under a stated model of traffic (`watch_traffic.py`)."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from pipeline.config.watch import WatchConfig
from pipeline.watch.share import ALL, FIRST, WatchedShare
from pipeline.watch.watched_counts import WatchedCounts
from tests.benchmarks.distillation.domains import DATA
from tests.benchmarks.figures import write
from tests.benchmarks.watch_traffic import PER_DAY, SCRAPE, Traffic, answer_lengths, traffic

_REQUESTS = {"5": 5.0, "50": 50.0, "500": 500.0}  # mean of a scrape
# Acceptance by domain. Examined: of the draft that `distillation` trained by forward KL for the changed target.
_EXAMINED = {
    "chat": 0.6802,
    "code": 0.7137,
    "commands": 0.7057,
    "documents": 0.6886,
    "json": 0.8670,
    "maths": 0.6830,
    "plays": 0.6767,
}
_WIDE = {"chat": 0.62, "json": 0.85, "code": 0.72, "prose": 0.55}
_YEARS, _FALLS, _REPEATS = 8, (0.02, 0.05, 0.10, 0.20), 8
_WEEK, _PATIENCE = 7, 45  # days: of the reference, and after which a fall counts as missed
_OFFSET = 0.01  # by which the prediction is too high
_HELD = PER_DAY // 24  # scrapes after an alarm in which a rule raises no other
_TOKENS = 5  # of a draft

Predictions = tuple[float, float]  # of first tokens, and of all
Rule = Callable[[Traffic, Predictions, int], list[int]]  # also the first scrape -> scrapes with an alarm of a fall


def main() -> None:
    """By domains, by requests a scrape and by rule: alarms of so many years without a change, and the delays of true falls."""
    lengths = answer_lengths(DATA)
    domains = {"examined": _EXAMINED, "wide": _WIDE}
    rows = []
    for name, rates in domains.items():
        for requests in _REQUESTS.values():
            rng = np.random.default_rng([2026, int(requests), len(rates)])
            row: dict[str, Any] = {
                "domains": name,
                "requests": requests,
                "alarms": dict.fromkeys(RULES, 0),
                "delays": {},
            }
            row["alarms_high"] = 0
            for _ in range(_YEARS):
                found = traffic(rng, rates, lengths, requests, 365)
                row.setdefault("drafts", float(found.drafts.mean()))
                predicted = _predicted(found)
                told = [side for _, side in _told(found, predicted, 0)]
                row["alarms"]["sequential"] += told.count("low")
                row["alarms_high"] += told.count("high")
                for rule in ("window", "cusum", "threshold"):
                    row["alarms"][rule] += len(RULES[rule](found, predicted, 0))
            for fall in _FALLS:
                row["delays"][f"{fall:g}"] = _delays(rng, rates, lengths, requests, fall, "all")
            row["later"] = {
                f"{fall:g}": _delays(rng, rates, lengths, requests, fall, "later", ["sequential"])
                for fall in _FALLS[1:]
            }
            rows.append(row)
    figure = {"years": _YEARS, "repeats": _REPEATS, "domains": domains, "rows": rows}
    write("watch_alarms", "python -m tests.benchmarks watch_alarms", figure)


def _delays(
    rng: np.random.Generator,
    rates: Mapping[str, float],
    lengths: Any,
    requests: float,
    fall: float,
    fall_of: Literal["all", "later"],
    rules: Sequence[str] = (),
) -> dict[str, dict[str, float | None]]:
    """By rule: the median hours and draft tokens from a fall to its alarm; None where most falls were not found."""
    late: dict[str, list[tuple[float, float]]] = {rule: [] for rule in rules or RULES}
    for _ in range(_REPEATS):
        at = int(rng.integers(2 * _WEEK * PER_DAY, 3 * _WEEK * PER_DAY))
        found = traffic(rng, rates, lengths, requests, 3 * _WEEK + _PATIENCE, fall, at, fall_of)
        for rule in late:
            seen = next((one for one in RULES[rule](found, _predicted(found), at) if one >= at), None)
            late[rule].append(
                (math.inf, math.inf)
                if seen is None
                else ((seen + 1 - at) * SCRAPE / 3600, float(found.drafts[at : seen + 1].sum()) * _TOKENS)
            )
    return {
        rule: {
            name: _finite(statistics.median(row[place] for row in rows))
            for place, name in enumerate(("hours", "tokens"))
        }
        for rule, rows in late.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _predicted(found: Traffic) -> Predictions:
    week = slice(0, _WEEK * PER_DAY)
    drafts = found.drafts[week].sum()
    first, accepted = found.first[week].sum() / drafts, found.accepted[week].sum() / (_TOKENS * drafts)
    return float(first) + _OFFSET, float(accepted) + _OFFSET


def _sequential(found: Traffic, predicted: Predictions, since: int) -> list[int]:
    return [scrape for scrape, side in _told(found, predicted, since) if side == "low"]


def _told(found: Traffic, predicted: Predictions, since: int) -> Sequence[tuple[int, str]]:
    """`watch.rule: sequential` at its defaults, at a constant draft length: when a drift was found, and its side. A drift ends by
    its own test."""
    settings, counts, alarms = WatchConfig(), WatchedCounts(began=0.0), []
    scrapes = zip(found.drafts.tolist(), found.first.tolist(), found.accepted.tolist(), strict=True)
    for scrape, (drafts, first, accepted) in enumerate(scrapes):
        if not drafts:
            continue
        before = counts.verdict
        shares = [
            WatchedShare(name=FIRST, trials=drafts, successes=first, predicted=predicted[0]),
            WatchedShare(
                name=ALL, trials=_TOKENS * drafts, successes=accepted, predicted=predicted[1], dependence=_TOKENS
            ),
        ]
        counts = counts.with_look(shares, (scrape + 1) * SCRAPE, SCRAPE, settings)
        if counts.verdict not in ("steady", before):
            alarms.append((scrape, counts.verdict))
            if since and scrape >= since:
                break
    return alarms


def _window(found: Traffic, predicted: Predictions, since: int) -> list[int]:
    """`watch.rule: window`: the last scrapes that have 200 draft tokens, and an acceptance below 0.5."""
    drafts, first = np.cumsum(found.drafts), np.cumsum(found.first)
    start = np.searchsorted(drafts, drafts - WatchConfig().window / _TOKENS, side="right") - 1
    n = drafts - np.where(start >= 0, drafts[start], 0)
    k = first - np.where(start >= 0, first[start], 0)
    return _held(np.flatnonzero((n > 0) & (k < WatchConfig().threshold * n)))


def _cusum(found: Traffic, predicted: Predictions, since: int) -> list[int]:
    """Page's CUSUM of the binomial likelihood ratio for a fall of 5 points, the drafts taken as independent; log ratio of a
    year."""
    level, bound = predicted[0] - _OFFSET, math.log(365 * PER_DAY)
    low = level - 0.05
    steps = found.first * math.log(low / level) + (found.drafts - found.first) * math.log((1 - low) / (1 - level))
    total, alarms = 0.0, []
    for scrape, step in enumerate(steps.tolist()):
        total = max(0.0, total + step)
        if total > bound:
            alarms.append(scrape)
            total = 0.0
    return _held(np.array(alarms, dtype=int))


def _threshold(found: Traffic, predicted: Predictions, since: int) -> list[int]:
    """An alert on the mean of the last hour: 5 points below the first week's."""
    drafts, first = (np.convolve(one, np.ones(_HELD))[: len(one)] for one in (found.drafts, found.first))
    return _held(np.flatnonzero((drafts > 0) & (first < (predicted[0] - _OFFSET - 0.05) * drafts)))


def _held(scrapes: Any) -> list[int]:
    """At most an alarm an hour."""
    kept: list[int] = []
    for one in scrapes.tolist():
        if not kept or one - kept[-1] >= _HELD:
            kept.append(one)
    return kept


RULES: dict[str, Rule] = {
    "sequential": _sequential,
    "window": _window,
    "cusum": _cusum,
    "threshold": _threshold,
}


NAMES = {
    "sequential": "`watch.rule: sequential`",
    "window": "`watch.rule: window` (200 tokens, 0.5)",
    "cusum": "CUSUM, drafts taken as independent",
    "threshold": "mean of an hour, 5 points below the first week",
}


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## False alarms and delays of the drift test\n"
    yield (
        f"A model of a deployment's traffic, {figure['years']} years for each row, a scrape every 5 minutes, all rules on the "
        "same counters: arrivals and answer lengths of a production trace of an hour (Azure, 2023), crossed with the acceptance "
        "by domain of an examined draft (`examined`: json 0.87, six others 0.67 to 0.71), and with one whose domains differ more "
        "(`wide`: 0.55 to 0.85). The trace has no day, so the rest is a model: a daily and a weekly cycle of rate and mix, a mix "
        "that wanders (3 hours, 2 days), over-dispersed arrivals, three bursts a day of one domain (5 to 40 minutes, half to "
        "twice the mean traffic), requests whose acceptance differs (standard deviation 0.12). Counters are of all replicas "
        "together: their number changes nothing. The prediction is 1 point too high. The first week is the reference of all "
        "rules.\n"
    )
    yield "Alarms a year where nothing has changed (low side; at most one an hour is counted; in brackets the high side):\n"
    yield "| domains | requests a scrape | " + " | ".join(NAMES.values()) + " |"
    yield "|---" * (2 + len(NAMES)) + "|"
    for row in figure["rows"]:
        found = [row["alarms"][rule] / figure["years"] for rule in NAMES]
        cells = [_rate(one) for one in found]
        cells[0] += f" ({_rate(row['alarms_high'] / figure['years'])})"
        yield f"| {row['domains']} | {row['requests']:g} | " + " | ".join(cells) + " |"
    yield (
        f"\nMedian time from a fall of every domain to the alarm, of {figure['repeats']} falls, in hours and in draft tokens. A "
        "rule that raises an alarm every few hours anyway finds every fall soon: read its row above first. A fall of 2 points is "
        "the margin, so it is none.\n"
    )
    yield "| domains | requests a scrape | fall | " + " | ".join(NAMES.values()) + " |"
    yield "|---" * (3 + len(NAMES)) + "|"
    for row in figure["rows"]:
        for fall, rules in row["delays"].items():
            cells = [_delay(rules[rule]) for rule in NAMES]
            yield (
                f"| {row['domains']} | {row['requests']:g} | {100 * float(fall):.0f} points | "
                + " | ".join(cells)
                + " |"
            )

    yield (
        "\nA fall at later positions only: first tokens are accepted as before, and each token after an accepted one less often "
        "by so many points. `watch.rule: sequential` finds it by the accepted share of all draft tokens:\n"
    )
    falls = [f"{100 * float(fall):.0f} points" for fall in figure["rows"][0]["later"]]
    yield "| domains | requests a scrape | " + " | ".join(falls) + " |"
    yield "|---" * (2 + len(falls)) + "|"
    for row in figure["rows"]:
        cells = [_delay(found["sequential"]) for found in row["later"].values()]
        yield f"| {row['domains']} | {row['requests']:g} | " + " | ".join(cells) + " |"


def _rate(alarms: float) -> str:
    return f"{alarms:.2g}" if alarms < 10 else f"{alarms:,.0f}"


def _delay(found: Mapping[str, float | None]) -> str:
    if found["hours"] is None or found["tokens"] is None:
        return "not found"
    return f"{found['hours']:.1f} h, {found['tokens'] / 1000:,.0f} k"
