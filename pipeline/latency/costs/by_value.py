"""What the columns of a table whose names are not known can be, by their values. Pure.

Nothing is read by this: `offers.py` offers a line, for its user to judge. Words of a name state which columns are looked at,
values decide: throughput times time per token is the number of requests that decode (Little's law), a throughput rises with the
load, a time per token does not fall, a time between chunks is that of a token without drafts and of several with them, and
acceptance is within what a draft length allows. A quantity is offered where one column only fits.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product

from pipeline.latency.costs.candidates import Candidate, Column, counts, number, preferred, rates, times
from pipeline.latency.costs.columns import is_mean, is_median, plain_name, unit
from pipeline.latency.costs.kind_of_throughput import grows, is_of_all, is_of_each, rises
from pipeline.latency.costs.name_words import (
    LOOKED_AT,
    NO_MEAN,
    OF_DEVICE,
    OF_PART,
    OF_TOKEN,
    OTHERS,
    is_latency,
    of_drafts,
    of_requests,
    tells_by_name,
    tells_of_drafts,
)
from pipeline.latency.costs.row import MAX_TPOT, MIN_TPOT, MeasuredRow, length_by_chunks

_FITS = 1.3  # ratio of both sides of Little's law: prefills take a part of the requests
_MOST_ROWS = 0.8  # share of the rows that must fit
_EQUAL = 1.1  # ratio of two times of one token
_MOST_DRAFT, _MOST_DEVICES = 32, 128  # as offered
_REQUIRED_TIMES = {"step", "itl", "tpot", "each_throughput", "throughput"}  # or a latency with the output length
_REQUIRED_REQUESTS = {"running", "concurrency", "rate", "served_rate", "limit"}
ACCEPTANCE = ("acceptance_length", "draft_acceptance_rate", "acceptance_rate")
Assignment = dict[str, str]  # column by quantity, with a factor where its unit is another one


class Unread:
    """The columns of a table that were not read, and what it lacks."""

    def __init__(self, rows: Sequence[MeasuredRow]) -> None:
        self.rows = rows
        read = {column for row in rows for column in row.columns.values()}
        names = dict.fromkeys(name for row in rows for name in row.given if name not in read)
        numbers = {name: [number(row.given.get(name)) for row in rows] for name in names if isinstance(name, str)}
        self.numbers = {
            name: values
            for name, values in numbers.items()
            if not all(map(math.isnan, values)) and not NO_MEAN.search(plain_name(name))
        }
        self.texts = {
            name: [str(row.given.get(name, "")) for row in rows] for name in names if name not in self.numbers
        }
        has = {name for row in rows for name in row.values}
        self.lacks: dict[str, str] = {}
        if not has & _REQUIRED_TIMES and not {"latency", "tokens"} <= has:
            self.lacks |= dict.fromkeys(
                ("tpot", "step", "throughput", "each_throughput", "latency"), "the time per token"
            )
        if not has & _REQUIRED_REQUESTS:
            self.lacks |= dict.fromkeys(("concurrency", "running"), "the number of requests")
        if "gamma" not in has:
            self.lacks["gamma"] = "the draft length"
        if any(row.values.get("rate", math.inf) < math.inf for row in rows):
            if "served_rate" not in has:
                self.lacks["served_rate"] = "the number of requests served per second"
            if not has & {"tokens", "latency"}:
                self.lacks["tokens"] = "the output length"
        self.latency_read = "latency" in has
        self.needs_latency = "latency" in self.lacks or "rate" in has

    def assignment(self) -> tuple[Assignment, dict[str, list[str]]]:
        """Column by quantity, and columns of quantities that several fit."""
        self.assigned: dict[str, Candidate] = {}
        self.open: dict[str, list[str]] = {}
        self._gamma()
        self._requests_and_times()
        for quantity in ("running", "itl", "ttft", "tokens", "latency", "served_rate"):
            if not self._known(quantity) and (quantity != "latency" or self.needs_latency):
                self._one(quantity, list(getattr(self, f"_as_{quantity}")()))
        self._acceptance()
        if "latency" in self.lacks and self._known("latency"):
            self.lacks.setdefault("tokens", self.lacks["latency"])
            self._latency_in_milliseconds()
        sent, served = self._known("rate") or [], self._known("served_rate") or []
        if (
            self.latency_read
            and sent
            and served
            and all(most <= _EQUAL * least for most, least in zip(sent, served, strict=True))
        ):
            self.lacks.pop("served_rate", None)  # all are served
        return {name: candidate.given for name, candidate in self.assigned.items()}, self.open

    def _latency_in_milliseconds(self) -> None:
        """Offers milliseconds for a latency that was read in seconds since its name has no unit, where a token would take too
        long."""
        names = {row.columns.get("latency") for row in self.rows}
        name, latency, tokens = next(iter(names)), self._known("latency"), self._known("tokens")
        if not self.latency_read or name is None or len(names) > 1 or unit(name) or not latency or not tokens:
            return
        if all(value > MAX_TPOT * count >= value * 1e-3 for value, count in zip(latency, tokens, strict=True)):
            self.assigned["latency"] = Candidate(name, 1e-3, [value * 1e-3 for value in latency])

    def accepted(self) -> str | None:
        """A column by whose name and values there were drafts: accepted tokens, texts such as `eagle3`, `spec_tpot_ms` that was
        read as the time per token."""
        texts = (
            name
            for name, cells in self.texts.items()
            if any(tells_of_drafts(cell) or tells_by_name(name, cell) for cell in cells)
        )
        times = {
            column for row in self.rows for name, column in row.columns.items() if name in _REQUIRED_TIMES | {"latency"}
        }
        read = (name for name in sorted(times) if tells_of_drafts(name))
        accepted = (column for column in self._named("acceptance") if any(value > 0 for value in self.numbers[column]))
        return next(chain(accepted, texts, read), None)

    def _named(self, quantity: str) -> Iterator[str]:
        """Names of columns with the words of a quantity, and none that was found to be another one."""
        for name in self._free():
            plain = plain_name(name)
            others = OTHERS.get(quantity)
            if re.search(LOOKED_AT[quantity], plain) and not (others and re.search(others, plain)):
                yield name

    def _known(self, quantity: str) -> Column | None:
        """Values by row, where any row has one."""
        if quantity in self.assigned:
            return self.assigned[quantity].values
        values = [row.values.get(quantity, math.nan) for row in self.rows]
        return None if all(map(math.isnan, values)) else values

    def _one(self, quantity: str, fit: Sequence[Candidate]) -> None:
        """The only one, or the only mean (the only one that is no median) of several. Equal columns are one."""
        different = {str(candidate.values): candidate for candidate in reversed(fit)}  # blanks are equal too
        fit = list(reversed(different.values()))
        for some in (
            fit,
            [candidate for candidate in fit if is_mean(candidate.name)],
            [candidate for candidate in fit if not is_median(candidate.name)],
        ):
            if len(some) == 1:
                self.assigned[quantity] = some[0]
                return
        if fit:
            self.open[quantity] = [candidate.name for candidate in fit]

    def _gamma(self) -> None:
        def fits(values: Column) -> bool:
            known = [value for value in values if not math.isnan(value)]
            return any(known) and all(0 <= value <= _MOST_DRAFT and value == int(value) for value in known)

        if "gamma" in self.lacks:
            told = self.accepted() or any(row.values.keys() & set(ACCEPTANCE) for row in self.rows)
            named = [name for name in self._named("gamma") if fits(self.numbers[name])]
            named = [name for name in named if told or of_drafts(name) or len(set(self.numbers[name])) > 1]
            steps = [name for name in named if "draft_tokens" not in plain_name(name)]  # which are one more in SGLang
            self._one("gamma", [self._as(name) for name in steps or named])

    def _requests_and_times(self) -> None:
        """Assigns by Little's law where three columns satisfy it; else by how a throughput or a time changes with the load."""
        loads = (
            [Candidate("", 1.0, values)]
            if (values := self._known("running") or self._known("concurrency"))
            else list(counts(self._free()))
        )
        rates = [Candidate("", 1.0, values)] if (values := self._known("throughput")) else self._rates(_MOST_DEVICES)
        times = [Candidate("", 1.0, values)] if (values := self._known("tpot")) else self._times()
        if not any(candidate.name for candidate in (*loads[:1], *rates[:1], *times[:1])):
            return
        fit = [three for three in product(loads, rates, times) if self._satisfied(*three)]
        for place, quantity in enumerate(("requests", "throughput", "tpot")):
            fit = preferred(fit, place, quantity)
        if len(fit) == 1:
            load, rate, time = fit[0]
            self._take({of_requests(load.name): load, "throughput": rate, "tpot": time})
            return
        if not any(row.values.keys() & _REQUIRED_TIMES for row in self.rows) or "concurrency" in self.lacks:
            self._by_load(
                [
                    candidate
                    for candidate in loads
                    if not candidate.name or re.search(LOOKED_AT["requests"], plain_name(candidate.name))
                ]
            )

    def _by_load(self, loads: Sequence[Candidate]) -> None:
        """One of two of Little's law, with the load."""
        exact = [
            candidate
            for candidate in loads
            if not candidate.name or not re.fullmatch("(num_)?requests", plain_name(candidate.name))
        ]
        if "concurrency" in self.lacks:
            names = exact or loads
            if len(names) != 1 or names is loads:
                if names and "tpot" not in self.lacks:
                    self.open["concurrency"] = [candidate.name for candidate in names]
                return
            self._take({of_requests(names[0].name): names[0]})
        if "tpot" not in self.lacks or len(exact) != 1:
            return
        load = exact[0].values
        each = [candidate for candidate in self._rates() if self._is_each(load, candidate)]
        self._one("each_throughput", each)
        rates = [candidate for candidate in self._rates() if is_of_all(self._lengths(), load, candidate.values)]
        self._one("throughput", [candidate for candidate in rates if not OF_DEVICE.search(plain_name(candidate.name))])
        if rates and "throughput" not in self.assigned and not self.open.get("throughput"):
            self.open["throughput"] = [f"{candidate.name}*N" for candidate in rates]  # of how many devices is not known
        if not self.assigned.keys() & {"throughput", "each_throughput"} and not self.open.keys() & {"throughput"}:
            times = [candidate for candidate in self._times() if grows(self._lengths(), load, candidate.values)]
            self._one(
                "tpot",
                [
                    candidate
                    for candidate in times
                    if OF_TOKEN.search(plain_name(candidate.name)) and not self._is_slower(load, candidate)
                ],
            )
            if not self.assigned.keys() & {"tpot"} and not self.open.get("tpot") and "step" in self.lacks:
                steps = [
                    candidate
                    for candidate in times
                    if unit(candidate.name) is not None and not OF_PART.search(plain_name(candidate.name))
                ]
                self.open |= {"step": [candidate.name for candidate in steps]} if steps else {}
        if (
            not self.assigned.keys() & {"throughput", "each_throughput", "tpot"} and not self.open
        ):  # of all or of each: not known
            unclear = [
                candidate.given for candidate in self._rates() if not OF_DEVICE.search(plain_name(candidate.name))
            ]
            self.open |= {"throughput": unclear} if unclear else {}

    def _take(self, some: Mapping[str, Candidate]) -> None:
        self.assigned |= {quantity: candidate for quantity, candidate in some.items() if candidate.name}

    def _as(self, name: str, factor: float = 1.0) -> Candidate:
        return Candidate(name, factor, [value * factor for value in self.numbers[name]])

    def _rates(self, devices: int = 1) -> list[Candidate]:
        return list(rates(self.numbers, devices))

    def _times(self) -> list[Candidate]:
        return list(times(self._free()))

    def _free(self) -> dict[str, Column]:
        """Columns that were not found to be a quantity."""
        taken = {candidate.name for candidate in self.assigned.values()}
        return {name: values for name, values in self.numbers.items() if name not in taken}

    def _satisfied(self, load: Candidate, rate: Candidate, time: Candidate) -> bool:
        """Little's law, for three columns of which no two are one. With one load only, any number fits one of many."""
        names = [candidate.name for candidate in (load, rate, time) if candidate.name]
        if len(set(names)) < len(names) or (load.name and len(set(load.values)) < 2):
            return False
        ratios = [
            rate_ * time_ / load_
            for load_, rate_, time_ in zip(load.values, rate.values, time.values, strict=True)
            if not math.isnan(rate_ * time_ / load_)
        ]
        possible = all(MIN_TPOT <= value <= MAX_TPOT for value in time.values if not math.isnan(value))
        return possible and sum(1 / _FITS <= ratio <= _FITS for ratio in ratios) >= max(1, _MOST_ROWS * len(ratios))

    def _as_itl(self) -> Iterator[Candidate]:
        """One token without a draft, and several with one."""
        tpot, gamma = self._known("tpot"), self._known("gamma")
        if tpot is None or gamma is None or self._known("acceptance_length"):
            return
        for candidate in self._times():
            ratios = [
                (length, seconds / token)
                for seconds, token, length in zip(candidate.values, tpot, gamma, strict=True)
                if not math.isnan(seconds / token)
            ]
            drafted = [ratio for length, ratio in ratios if length > 0]
            fits = all(1 / _EQUAL < ratio < (1 + (length if length > 0 else 0.0)) * _EQUAL for length, ratio in ratios)
            if drafted and fits and all(ratio > _EQUAL for ratio in drafted):
                yield candidate

    def _as_ttft(self) -> Iterator[Candidate]:
        """TTFT in the unit of its name, else in milliseconds unless it would be shorter than a token takes."""
        tpot = self._known("tpot") or [0.0] * len(self.rows)
        for name in self._named("ttft"):
            if all(value >= 0 or math.isnan(value) for value in self.numbers[name]):
                seconds = unit(name)
                high = max(value for value in self.numbers[name] if not math.isnan(value)) > 5
                pairs = zip(self.numbers[name], tpot, strict=True)
                milliseconds = seconds is None and high and not any(first * 1e-3 < token for first, token in pairs)
                factor = 1e-3 if milliseconds else 1.0
                yield Candidate(name, factor, [value * factor * (seconds or 1.0) for value in self.numbers[name]])

    def _as_tokens(self) -> Iterator[Candidate]:
        """The output length of a request: the tokens of all requests of a test rise with the load."""
        loads = self._known("concurrency") or self._known("running") or [0.0] * len(self.rows)
        for candidate in map(self._as, self._named("tokens")):
            if not rises(self._lengths(), loads, candidate.values) and all(
                not value <= 1 for value in candidate.values
            ):
                yield candidate

    def _as_latency(self) -> Iterator[Candidate]:
        """The time from arrival to last token, whose time per token is possible."""
        tokens, ttft = self._known("tokens"), self._known("ttft") or [0.0] * len(self.rows)
        if tokens is None:
            return
        for name in filter(lambda name: is_latency(plain_name(name)), self._named("latency")):
            for factor in (1.0,) if unit(name) else (1.0, 1e-3):
                values = [value * factor * (unit(name) or 1.0) for value in self.numbers[name]]
                each = [
                    (value - (0.0 if math.isnan(first) else first)) / max(1.0, count - 1)
                    for value, first, count in zip(values, ttft, tokens, strict=True)
                ]
                if all(MIN_TPOT <= value <= MAX_TPOT for value in each):
                    yield Candidate(name, factor, values)
                    break

    def _as_running(self) -> Iterator[Candidate]:
        """The running ones of the requests that are open."""
        most = self._known("concurrency")
        for name in self.numbers:
            if most is None:
                return
            values = self.numbers[name]
            if "running" in plain_name(name) and all(
                0 < value <= _EQUAL * all_ for value, all_ in zip(values, most, strict=True)
            ):
                yield self._as(name)

    def _as_served_rate(self) -> Iterator[Candidate]:
        """A rate of served requests is not higher than that of arrivals."""
        rate = self._known("rate")
        if rate is None:
            return
        for name in self._named("served_rate"):
            values = self.numbers[name]
            if all(0 < value <= _FITS * most for value, most in zip(values, rate, strict=True)):
                yield self._as(name)

    def _acceptance(self) -> None:
        """Within what the draft length allows; blank, 0 or 1 without one."""
        gamma = self._known("gamma")
        if gamma is None or "itl" in self.assigned or any(self._known(name) for name in ACCEPTANCE):
            return
        if any(map(length_by_chunks, self.rows)):
            return
        lengths, rates = [], []
        for name in self._named("acceptance"):
            drafted = [
                (value, length)
                for value, length in zip(self.numbers[name], gamma, strict=True)
                if length > 0 and not math.isnan(value)
            ]
            if not drafted or not any(value > 0 for value, _ in drafted):
                continue
            if all(0 <= value <= 1 for value, _ in drafted):
                rates.append(self._as(name))
            elif all(value <= length + 1 for value, length in drafted) and not re.search(
                "rate|pct|percent|%", name.lower()
            ):
                lengths.append(self._as(name))
            elif all(1 <= value <= 100 for value, _ in drafted) and re.search("rate|pct|percent|%", name.lower()):
                rates.append(self._as(name, 1.0 if re.search("pct|percent|%", name.lower()) else 0.01))
        self._one("acceptance_length", lengths)
        if "acceptance_length" not in self.assigned:
            self._one("draft_acceptance_rate", rates)

    def _is_slower(self, loads: Column, candidate: Candidate) -> bool:
        """Whether a time between tokens is not shorter with drafts at any load: it can be that between chunks."""
        if not re.search("itl|inter_tok|between", plain_name(candidate.name)):
            return False
        cells = list(zip(self._lengths(), loads, candidate.values, strict=True))
        plain = {load: value for length, load, value in cells if length == 0}
        pairs = [(value, plain[load]) for length, load, value in cells if length > 0 and load in plain]
        return bool(pairs) and all(value >= without for value, without in pairs)

    def _is_each(self, loads: Column, candidate: Candidate) -> bool:
        """Whether its name states it, or it falls with the load, and the time per token that follows is possible."""
        plain, lengths = plain_name(candidate.name), self._lengths()
        falls = is_of_each(lengths, loads, candidate.values) and not OF_DEVICE.search(plain)
        said = falls or re.search(LOOKED_AT["each_throughput"], plain)
        return bool(said) and grows(lengths, loads, [1 / value for value in candidate.values])

    def _lengths(self) -> Column:
        """Draft lengths; 0 where there is none."""
        return [0.0 if math.isnan(value) else value for value in self._known("gamma") or [0.0] * len(self.rows)]
