"""What was counted between two looks at counters that begin at 0 again whenever an engine starts. Pure.

Each series is followed by itself. One that began again counts whole; Prometheus's `increase` does the same without extrapolation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.engines.counts import Counts
from pipeline.engines.facts import FACTS, Counters, WatchedEngine
from pipeline.store.parsing import Number, Text
from pipeline.watch.exposition import Page, Total, Totals, counted

_SAME_SECONDS = 1.0  # by which the beginning of a series may differ and be the same
_STEPS = 200  # of a counter that grows in steps, so that their size is below 1% of an increment


@dataclass(frozen=True, kw_only=True)
class Replica:
    """What the looks before have found at an endpoint. `seen`: when it last had counters, in Unix seconds."""

    seen: Number
    engines: Mapping[Text, Mapping[Text, Total]]


@dataclass(frozen=True, kw_only=True)
class Increment:
    """`counts` since the look before; None where there is none to compare with. `after`: for the next look. `came`: the engines
    of the page, by rank, that were not there before: they count from the next look on."""

    counts: Counts | None
    after: Replica
    problems: tuple[str, ...] = ()
    came: tuple[str, ...] = ()


class _Contradiction(Exception):
    """The counters of two looks do not fit each other. The text says how."""


def increment(page: Page, before: Replica | None, engine: WatchedEngine, now: float) -> Increment:
    """The sum over the engines of a page. An engine whose counters contradict each other is left out, and named in `problems`."""
    names = FACTS[engine].counters
    found, problems, after = list[Counts](), list[str](), dict[str, Totals]()
    for rank, totals in page.engines.items():
        past = None if before is None else before.engines.get(rank)
        after[rank] = totals
        if past is None:
            continue
        try:
            grown = _grown(past, totals)
            if _is_coarse(totals, grown, names):
                after[rank], grown = past, dict.fromkeys(grown, 0.0)
            counts = _as_counts(grown, names)
            _check(counts, names)
        except _Contradiction as reason:
            problems.append(f"{f'engine {rank}: ' if rank else ''}{reason}; this increment is left out")
        else:
            found.append(counts)
    if _is_idle(page, names):
        problems.append("it has generated tokens, and no draft was counted: does the engine run with a draft?")
    total = sum(found[1:], found[0]) if found else None
    known = {} if before is None else before.engines
    came = tuple(rank for rank in page.engines if rank not in known)
    return Increment(counts=total, after=Replica(seen=now, engines=after), problems=tuple(problems), came=came)


def forget(replicas: Mapping[str, Replica], now: float, seconds: float, most: int) -> dict[str, Replica]:
    """The replicas that were seen in the last `seconds`, and of these the `most` that were seen last."""
    kept = [(url, replica) for url, replica in replicas.items() if now - replica.seen <= seconds]
    return dict(sorted(kept, key=lambda one: one[1].seen)[-most:])


def _grown(past: Totals, totals: Totals) -> dict[str, float]:
    """By series, by how much it grew. A series that was not there before began since.

    All series of an engine begin again together. Where nothing says when a series began, and one has fallen while another has
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
    return any(grown[one] < _STEPS * step for one in drafts if (step := _step(totals[one].value, names)) > 1)


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
    """_Contradiction where no decode counts so."""
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
            total.value for totals in page.engines.values() for one, total in totals.items() if counted(one) == what
        )
        for what in ("drafts", "draft_tokens", "tokens")
    }
    return sums["tokens"] > 0 and sums["drafts"] == 0 and sums["draft_tokens"] == 0
