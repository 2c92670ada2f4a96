"""The counters of one engine in the text of its metrics page (Prometheus exposition format). Pure.

Of a page only the lines of the engine's counters are parsed, by prometheus_client. The names come from the table of engine facts.
What stands between (an OpenTelemetry collector, SGLang's router) writes `_` for their `:`, and Ray puts `ray_` before them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pipeline.engines.facts import FACTS, Counters, WatchedEngine
from pipeline.errors import UnderstudyError
from pipeline.escaping.terminal import printable
from pipeline.store.parsing import Positive

_CREATED = "_created"  # when a counter began, in Unix seconds: a series beside it that some engines show
_TOTAL = "_total"
_MOST_LINE = 4096  # characters
_MOST_SERIES = 4096  # of the counters that are read
_MOST_VALUE = 2.0**53
_FIRST = "0"  # the first draft position
_SHOWN = 80  # characters of a line in a message
_ALIKE = 3  # names that are shown


class NotCounters(UnderstudyError):
    """The page does not have the counters. One line, without the endpoint's name."""


@dataclass(frozen=True, kw_only=True)
class Total:
    """One series: its value, and when it began, in Unix seconds; None where the engine does not show it."""

    value: Positive
    created: Positive | None = None


Totals = Mapping[str, Total]
"""The series of one engine, by what they count and by their other labels: `drafts`, `tokens is_streaming=true`.

What they count: `drafts`, `draft_tokens`, `accepted`, `first` (accepted at the first position), `tokens`, `requests`."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A metrics page. `engines`: by data-parallel rank, empty text where there is one engine. `running`: requests in decode on an
    engine, on average; None where the page does not have it."""

    engines: Mapping[str, Totals]
    running: float | None = None


def counted(series: str) -> str:
    """What a series of `Totals` counts."""
    return series.partition(" ")[0]


def read_page(text: str, engine: WatchedEngine, model: str | None = None) -> Page:
    """The totals in a page. `model`: which of several served models; None: the only one. NotCounters names what is wrong."""
    names = FACTS[engine].counters
    _check_kind(text, engine)
    lines = list(_lines(text, names))
    samples = list(_parse(lines))
    samples = _of_model(samples, names, model)
    created = {_identity(sample, _CREATED): _checked(sample) for sample in samples if sample.name.endswith(_CREATED)}
    engines: dict[str, dict[str, Total]] = {}
    for sample in samples:
        for what in _counts(sample, names):
            rank = sample.labels.get(names.rank, "")
            labels = {label: value for label, value in sample.labels.items() if label not in (names.rank, names.model)}
            series = " ".join([what, *(f"{label}={value}" for label, value in sorted(labels.items()))])
            total = Total(value=_checked(sample), created=created.get(_identity(sample, _TOTAL)))
            if engines.setdefault(rank, {}).setdefault(series, total) is not total:
                raise NotCounters(f"{_shown(sample)} appears twice")
    complete = {rank: _complete(totals, text, engine) for rank, totals in engines.items()}
    if not complete:
        raise _missing(text, engine, set())
    return Page(engines=complete, running=_running(samples, names))


def _check_kind(text: str, engine: WatchedEngine) -> None:
    """NotCounters where the text is no page of this engine's metrics at all."""
    begin = text[:_MOST_LINE].lstrip()[:1]
    title, names = FACTS[engine].title, FACTS[engine].counters
    if not begin:
        raise NotCounters("the page is empty")
    if begin in ("<", "{", "["):
        kind = "an HTML page" if begin == "<" else "JSON"
        raise NotCounters(f"it answers with {kind}, not with metrics; {title} has them at {names.path} ({names.needs})")
    if not text.endswith("\n"):
        raise NotCounters("the page is cut off: its last line does not end")
    prefix = names.tokens[: names.tokens.index("_" if ":" not in names.tokens else ":") + 1]
    if prefix not in text and _plain(prefix) not in text:
        raise NotCounters(f"no metrics of {title} are there, which watch.engine names ({names.needs})")


def _plain(name: str) -> str:
    """A name in the spelling in which all are compared."""
    return name.replace(":", "_").removeprefix("ray_")


def _name(line: str) -> str:
    end = line.find("{")
    return (line[:end] if end >= 0 else line[:_MOST_LINE].partition(" ")[0]).strip()


def _wanted(names: Counters) -> Mapping[str, str]:
    """The names of the engine's counters, by their plain spelling."""
    counters = {name for name in _by_name(names) if name}
    return {
        _plain(name): name
        for name in counters | {name.removesuffix(_TOTAL) + _CREATED for name in counters} | {names.running}
    }


def _lines(text: str, names: Counters) -> Iterator[str]:
    """The samples of the engine's counters, under its own names; where a page has them under these and others, once."""
    wanted, count = _wanted(names), 0
    by_name: dict[str, dict[bool, list[str]]] = {}
    for line in text.split("\n"):
        name = _name(line)
        own = wanted.get(_plain(name))
        if own is None:
            continue
        count += 1
        if len(line) > _MOST_LINE or count > _MOST_SERIES:
            raise NotCounters(f"more than {_MOST_SERIES:,} series, or a line of more than {_MOST_LINE:,} characters")
        by_name.setdefault(own, {}).setdefault(name == own, []).append(own + line.lstrip()[len(name) :])
    for spellings in by_name.values():
        yield from spellings.get(True, spellings.get(False, []))


def _alike(text: str, names: Counters) -> str:
    """Names of a page that are of speculation too, as other versions have them; empty without any."""
    wanted = _wanted(names)
    seen = {name for line in text.split("\n") if "spec" in (name := _name(line)) and not name.startswith("#")}
    seen = {name for name in seen if _plain(name) not in wanted and not name.endswith(("_bucket", _CREATED))}
    return printable(", ".join(sorted(seen)[:_ALIKE])[: 3 * _SHOWN])


def _parse(lines: Iterable[str]) -> Iterator[Sample]:
    for line in lines:
        try:
            for family in text_string_to_metric_families(line):
                yield from family.samples
        except (ValueError, IndexError, OverflowError):
            raise NotCounters(f"a line that cannot be parsed: {printable(repr(line.strip()[:_SHOWN]))}") from None


def _by_name(names: Counters) -> dict[str, str]:
    """What each counter of all positions counts, by its name."""
    return {
        names.drafts: "drafts",
        names.draft_tokens: "draft_tokens",
        names.accepted: "accepted",
        names.per_position: "first",
        names.drafted_per_position: "draft_tokens",
        names.tokens: "tokens",
        names.requests: "requests",
    }


def _counts(sample: Sample, names: Counters) -> Iterator[str]:
    """What a sample counts. Where drafted tokens are counted by position, drafts are those of the first one."""
    if not sample.name or sample.name not in (known := _by_name(names)):
        return
    if sample.name not in (names.per_position, names.drafted_per_position):
        yield known[sample.name]
        return
    at_first = sample.labels.get(names.position) == _FIRST
    if sample.name == names.drafted_per_position:
        yield "draft_tokens"
        if at_first:
            yield "drafts"
    else:
        if names.drafted_per_position:
            yield "accepted"
        if at_first:
            yield "first"


def _of_model(samples: list[Sample], names: Counters, model: str | None) -> list[Sample]:
    """The samples of the model that is watched. NotCounters where there is none, or no single one."""
    if not names.model:
        return samples
    served = sorted({sample.labels.get(names.model, "") for sample in samples})
    listed = printable(", ".join(served)[:_SHOWN]) or "none"
    if model is not None and served and model not in served:
        raise NotCounters(f"it serves no model {model} (watch.model); it serves {listed}")
    if model is None and len(served) > 1:
        raise NotCounters(f"it serves several models: {listed}; name one in watch.model")
    return [sample for sample in samples if model is None or sample.labels.get(names.model, "") == model]


def _complete(totals: dict[str, Total], text: str, engine: WatchedEngine) -> Totals:
    """The totals of an engine that has all its counters. Counters by position replace those without, which may count other
    requests. NotCounters names what is missing."""
    names = FACTS[engine].counters
    if names.drafted_per_position and "drafts" in {counted(series) for series in totals}:
        totals = {series: total for series, total in totals.items() if series not in ("draft_tokens", "accepted")}
        # A position is shown when it first counts, so a draft that was never accepted has no counter of accepted tokens.
        for what in ("accepted", "first"):
            if not any(counted(series) == what for series in totals):
                totals[f"{what} {names.position}={_FIRST}"] = Total(value=0.0)
    has = {counted(series) for series in totals}
    needed = {"drafts", "tokens", "requests"} if names.requests else {"draft_tokens", "accepted"}
    if names.drafts:
        needed.add("drafts")
    if sum(total.value for series, total in totals.items() if counted(series) == "drafts") and names.per_position:
        needed.add("first")
    if needed - has:
        raise _missing(text, engine, has & needed)
    return totals


def _missing(text: str, engine: WatchedEngine, has: set[str]) -> NotCounters:
    names, facts = FACTS[engine].counters, FACTS[engine]
    if alike := _alike(text, names):
        wanted = ", ".join(filter(None, (names.drafts, names.draft_tokens, names.accepted)))
        return NotCounters(
            f"the page has {alike}, and not {wanted}: these are the names of {facts.title} {facts.checked}, or no draft was "
            "counted yet"
        )
    if not has or names.requests:
        return NotCounters(
            f"no speculative counters: the engine runs without a draft, or has served no request ({names.needs})"
        )
    return NotCounters(
        f"only some counters of {facts.title}: {', '.join(sorted(has))}; names are known of {facts.checked}"
    )


def _running(samples: list[Sample], names: Counters) -> float | None:
    """Requests on an engine, on average over the ranks. Processes of one rank state the same."""
    by_rank: dict[str, float] = {}
    for sample in samples:
        if sample.name == names.running:
            rank = sample.labels.get(names.rank, "")
            by_rank[rank] = max(by_rank.get(rank, 0.0), _checked(sample))
    return sum(by_rank.values()) / len(by_rank) if by_rank else None


def _identity(sample: Sample, suffix: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.name.removesuffix(suffix), tuple(sorted(sample.labels.items()))


def _checked(sample: Sample) -> float:
    """The value. NotCounters for one that no counter and no gauge of requests has."""
    try:
        value = float(sample.value)
    except OverflowError:
        value = math.inf
    if not 0 <= value < _MOST_VALUE:  # NaN is in no interval
        raise NotCounters(f"{_shown(sample)} is {value:g}, which no counter can be")
    return value


def _shown(sample: Sample) -> str:
    labels = ", ".join(f"{label}={value}" for label, value in sorted(sample.labels.items()))
    return printable(f"{sample.name}{{{labels}}}"[:_SHOWN])
