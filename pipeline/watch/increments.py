"""What was counted between two looks at counters that begin at 0 again whenever an engine starts. Pure.

Each series is followed by itself. One that began again counts whole; Prometheus's `increase` does the same without extrapolation.
Totals that counters left are remembered for some looks: behind a gateway they come back, and those of an engine that began again
do not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.engines.counts import Counts
from pipeline.engines.facts import FACTS, Counters, WatchedEngine
from pipeline.store.parsing import Count, Flag, Number, Text
from pipeline.watch.exposition import Page, Total, Totals, counted

_SAME_SECONDS = 1.0  # by which the beginning of a series may differ and be the same
_REMEMBERED, _MOST_LEFT = 12, 4  # looks for which totals that were left are remembered, and how many
_NEAR = 0.03  # of the totals, which they may have grown by since they were left
_STEPS = 200  # of a counter that grows in steps, so that their size is below 1% of an increment


@dataclass(frozen=True, kw_only=True)
class Left:
    """The totals from which an engine's counters did not go on. `looks`: since then. `came_back`: they went on from others that
    had been left before."""

    totals: Mapping[Text, Total]
    looks: Count = 0
    came_back: Flag = False


@dataclass(frozen=True, kw_only=True)
class WatchedReplica:
    """What the looks before have found at an endpoint. `seen`: when it last had counters, in Unix seconds. `engines`, `left`: by
    rank. `asked`: the number of the last canary that is left out (`own_requests.py`); None in a state of an earlier version."""

    seen: Number
    engines: Mapping[Text, Mapping[Text, Total]]
    left: Mapping[Text, tuple[Left, ...]] = field(default_factory=dict)
    asked: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Increment:
    """What one endpoint counted since the look before. `counts`: None where there is nothing to compare with. `after`: for the
    next look. `came`: the engines of the page, by rank, that were not there before: they count from the next look on. `left_out`:
    canaries since then."""

    counts: Counts | None
    after: WatchedReplica
    problems: tuple[str, ...] = ()
    came: tuple[str, ...] = ()
    left_out: int = 0


class _Contradiction(Exception):
    """The counters of two looks do not fit each other. The text names how."""


def increment(page: Page, before: WatchedReplica | None, engine: WatchedEngine, now: float) -> Increment:
    """The sum over the engines of a page. An engine whose counters contradict each other is left out, and named in `problems`."""
    names = FACTS[engine].counters
    counted_engines, problems, after = list[Counts](), list[str](), dict[str, Totals]()
    left = {} if before is None else {rank: _remembered(totals_left) for rank, totals_left in before.left.items()}
    for rank, totals in page.engines.items():
        past = None if before is None else before.engines.get(rank)
        after[rank] = totals
        if past is None:
            continue
        others, goes_on = left.get(rank, ()), _follows(past, totals)
        came_back = _came_back(past, others, totals)
        if came_back is not None or not goes_on:
            kept = [earlier for earlier in others if earlier is not came_back]
            left[rank] = (*kept, Left(totals=past, came_back=came_back is not None))[-_MOST_LEFT:]
        try:
            if (came_back is not None or not goes_on) and any(earlier.came_back for earlier in others):
                raise _Contradiction(
                    "its counters go back and forth between several totals, so several engines answer there; list each replica "
                    "in watch.endpoints, not a gateway"
                )
            grown = _grown(past, totals)
            if _is_coarse(totals, grown, names):
                after[rank], grown = past, dict.fromkeys(grown, 0.0)
            counts = _as_counts(grown, names)
            _check(counts, names)
        except _Contradiction as reason:
            problems.append(f"{f'engine {rank}: ' if rank else ''}{reason}; this increment is left out")
        else:
            counted_engines.append(counts)
    if _is_idle(page, names):
        problems.append("it has generated tokens, and no draft was counted: does the engine run with a draft?")
    total = sum(counted_engines[1:], counted_engines[0]) if counted_engines else None
    known = {} if before is None else before.engines
    came = tuple(rank for rank in page.engines if rank not in known)
    replica = WatchedReplica(
        seen=now, engines=after, left={rank: kept_totals for rank, kept_totals in left.items() if kept_totals}
    )
    return Increment(counts=total, after=replica, problems=tuple(problems), came=came)


def _remembered(left: Sequence[Left]) -> tuple[Left, ...]:
    return tuple(replace(earlier, looks=earlier.looks + 1) for earlier in left if earlier.looks < _REMEMBERED)


def _follows(past: Totals, totals: Totals) -> bool:
    """Whether no series fell, and none began later."""
    return all(
        series in totals
        and totals[series].value >= old.value
        and abs((totals[series].created or 0.0) - (old.created or 0.0)) <= _SAME_SECONDS
        for series, old in past.items()
    )


def _came_back(past: Totals, left: Sequence[Left], totals: Totals) -> Left | None:
    """What was left and goes on here, nearer than what was there at the look before; an engine that began again may happen to do
    so, and hardly twice in a row."""

    def grown(old: Totals) -> float:
        return sum(total.value - old[series].value for series, total in totals.items() if series in old)

    whole = sum(total.value for total in totals.values())
    nearest = min(
        (earlier for earlier in left if _follows(earlier.totals, totals)),
        key=lambda earlier: grown(earlier.totals),
        default=None,
    )
    if nearest is None or grown(nearest.totals) > _NEAR * whole:
        return None
    return nearest if not _follows(past, totals) or grown(nearest.totals) < grown(past) else None


def forget(replicas: Mapping[str, WatchedReplica], now: float, seconds: float, most: int) -> dict[str, WatchedReplica]:
    """The replicas that were seen in the last `seconds`, and of these the `most` that were seen last."""
    kept = [(url, replica) for url, replica in replicas.items() if now - replica.seen <= seconds]
    return dict(sorted(kept, key=lambda item: item[1].seen)[-most:])


def _grown(past: Totals, totals: Totals) -> dict[str, float]:
    """How much each series grew. A series that was not there before began since.

    All series of an engine begin again together. Where nothing states when a series began, and one has fallen while another has
    not, the other may have begun again as well: nothing is known.
    """
    grown, fell, rose = dict[str, float](), list[str](), list[str]()
    for series, total in totals.items():
        old = past.get(series)
        if old is None:
            grown[series] = total.value
            continue
        restarted = _has_restarted(old, total)
        grown[series] = total.value if restarted else total.value - old.value
        if total.created is None or old.created is None:
            if restarted:
                fell.append(series)
            elif old.value > 0:
                rose.append(series)
    if fell and rose:
        raise _Contradiction(f"{counted(fell[0])} began again and {counted(rose[0])} did not")
    return grown


def _has_restarted(old: Total, total: Total) -> bool:
    if total.created is not None and old.created is not None:
        if total.created < old.created - _SAME_SECONDS:
            raise _Contradiction(
                "its counters began before those of the look before, so several engines answer there; list each replica in "
                "watch.endpoints, not a gateway"
            )
        if total.created > old.created + _SAME_SECONDS:
            return True
    return total.value < old.value


def _is_coarse(totals: Totals, grown: Mapping[str, float], names: Counters) -> bool:
    """Whether drafts are written in steps that are too large for the increment: it is then taken at a later look."""
    drafts = [series for series in totals if counted(series) == "drafts"]
    return any(grown[series] < _STEPS * step for series in drafts if (step := _step(totals[series].value, names)) > 1)


def _step(value: float, names: Counters) -> float:
    """By how much a value grows in writing."""
    if names.digits is None or value < 1:
        return 0.0
    return float(10.0 ** (math.floor(math.log10(value)) + 1 - names.digits))


def _as_counts(grown: Mapping[str, float], names: Counters) -> Counts:
    sums: dict[str, float] = {}
    for series, value in grown.items():
        sums[counted(series)] = sums.get(counted(series), 0.0) + value
    drafts, tokens = sums.get("drafts"), sums.get("tokens")
    accepted, first = sums.get("accepted"), sums.get("first")
    if (
        names.requests and drafts is not None and tokens is not None
    ):  # verifications and prefills emit a token of the target
        accepted = tokens - drafts - sums.get("requests", 0.0)
    if names.per_position and first is None and drafts == 0 and sums.get("draft_tokens") == 0:
        first = 0.0  # the series comes with the first draft
    return Counts(
        drafts=drafts, draft_tokens=sums.get("draft_tokens"), accepted=accepted, accepted_first=first, tokens=tokens
    )


def _check(counts: Counts, names: Counters) -> None:
    """Raises _Contradiction where no decode counts so."""
    slack = 1.0 if names.digits is None else 1.05  # of what is written in steps
    for what, more, than, most in (
        ("accepted tokens", counts.accepted, "draft tokens", counts.draft_tokens),
        ("accepted first tokens", counts.accepted_first, "drafts", counts.drafts),
        ("accepted first tokens", counts.accepted_first, "accepted tokens", counts.accepted),
        ("drafts", counts.drafts, "draft tokens", counts.draft_tokens),
    ):
        if more is not None and most is not None and more > max(most, 0.0) * slack:
            raise _Contradiction(f"{more:,.0f} {what} of {most:,.0f} {than}")
    if counts.accepted is not None and counts.accepted < 0:
        raise _Contradiction(f"{-counts.accepted:,.0f} more verify calls and requests than generated tokens")


def _is_idle(page: Page, names: Counters) -> bool:
    """Whether tokens were generated, and none of them by a draft."""
    sums = {
        what: sum(
            total.value
            for totals in page.engines.values()
            for series, total in totals.items()
            if counted(series) == what
        )
        for what in ("drafts", "draft_tokens", "tokens")
    }
    return sums["tokens"] > 0 and sums["drafts"] == 0 and sums["draft_tokens"] == 0
