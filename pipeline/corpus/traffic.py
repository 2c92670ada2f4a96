"""Which rows of a log are used: a window of time, and a sample by domain and age. Reads rows; uses neither models nor stages.

Times are compared with the start of the day on which the run began (UTC), so runs of one day have one corpus.
"""

import hashlib
import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.corpus.readers import SourceRow
from pipeline.corpus.redaction import redact
from pipeline.corpus.rows import BadRow
from pipeline.store.files import canonical_json

_DAY = 86_400.0
_DIGITS = re.compile(r"\d{9,20}(?:\.\d{1,9})?")
_LATEST = 1e11  # larger numbers of seconds are milliseconds, microseconds or nanoseconds


class Traffic:
    """The used rows of one source. Iterated more than once, it reads the source again.

    `since`: seconds since 1970; rows before it are left out, whatever the source's window is.
    """

    def __init__(
        self, rows: Iterable[SourceRow], source: PromptSource, today: date, since: float | None = None
    ) -> None:
        self._rows, self._source = rows, source
        self._end = datetime(today.year, today.month, today.day, tzinfo=UTC).timestamp() + _DAY
        window = None if source.since is None else self._end - _DAY - seconds(source.since)
        self._first = max((time for time in (since, window) if time is not None), default=None)
        self._needs_time = source.needs_time or since is not None
        self.newest: float | None = None  # time of a row, where times are read
        self.older: int = 0  # rows before the window
        self.not_sampled: int = 0
        self.redacted: Counter[str] = Counter()

    def __iter__(self) -> Iterator[SourceRow]:
        """Rows in file order. A row without a readable time, where one is needed, is yielded as a BadRow."""
        chosen = self._sample() if self._source.sample is not None else None
        self.older = self.not_sampled = 0
        for place, row in enumerate(self._rows):
            time = self._time(row)
            if isinstance(time, BadRow):
                yield SourceRow(row.file, row.number, time)
            elif self._is_old(time):
                self.older += 1
            elif chosen is not None and place not in chosen:
                self.not_sampled += 1
            elif self._source.redact and isinstance(row.value, Mapping):
                value = self._redacted(row.value)
                yield SourceRow(row.file, row.number, value, redacted=value != row.value)
            else:
                yield row

    def _redacted(self, value: Mapping[str, Any]) -> dict[str, Any]:
        source = self._source
        labels = (source.domain_field, source.group_field, source.time_field)
        return {key: item if key in labels else redact(item, self.redacted) for key, item in value.items()}

    def _sample(self) -> set[int]:
        """Places of the sampled rows: equal numbers of each domain as far as they go, by age within a domain.

        Weighted sampling without replacement (Efraimidis and Spirakis 2006): the rows with the largest log(u) / weight, where
        u is a hash of the row.
        """
        wanted = self._source.sample
        assert wanted is not None  # the caller has checked
        best: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for place, row in enumerate(self._rows):
            time = self._time(row)
            if isinstance(time, BadRow) or self._is_old(time):
                continue
            domain = self._source.domain or (
                row.value.get(self._source.domain_field) if isinstance(row.value, Mapping) else None
            )
            heap = best[str(domain)]
            heapq.heappush(heap, (math.log(_uniform(row.value)) / self._weight(time), place))
            if len(heap) > wanted:
                heapq.heappop(heap)
        return {
            place
            for heap, count in zip(best.values(), _shares([len(heap) for heap in best.values()], wanted), strict=True)
            for _, place in heapq.nlargest(count, heap)
        }

    def _weight(self, time: float | None) -> float:
        half_life = self._source.half_life
        if half_life is None or time is None:
            return 1.0
        age = max(0.0, self._end - time)
        return max(float(0.5 ** (age / seconds(half_life))), 1e-12)

    def _is_old(self, time: float | None) -> bool:
        if time is None or self._first is None:
            return False
        self.newest = time if self.newest is None else max(self.newest, time)
        return time < self._first

    def time_of(self, row: SourceRow) -> float | None:
        """Seconds since 1970 where the row has a readable time, needed or not."""
        return timestamp(row.value.get(self._source.time_field)) if isinstance(row.value, Mapping) else None

    def _time(self, row: SourceRow) -> "float | BadRow | None":
        """Seconds since 1970; None where no time is needed."""
        if not self._needs_time or isinstance(row.value, BadRow):
            return None
        given = row.value.get(self._source.time_field) if isinstance(row.value, Mapping) else None
        time = timestamp(given)
        if time is None:
            what = "is missing" if given is None else f"is {str(given)[:40]!r}: neither seconds since 1970 nor ISO 8601"
            return BadRow("no time", f"'{self._source.time_field}' {what}")
        return time


def seconds(duration: str) -> float:
    """The seconds of a duration such as 14d or 48h."""
    return timedelta(**{{"d": "days", "h": "hours"}[duration[-1]]: int(duration[:-1])}).total_seconds()


def _shares(sizes: list[int], wanted: int) -> list[int]:
    """How many to take of each domain: equal numbers, and what a small domain lacks goes to the others."""
    shares, left = [0] * len(sizes), wanted
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for number, place in enumerate(order):
        shares[place] = min(sizes[place], left // (len(sizes) - number))
        left -= shares[place]
    return shares


def _uniform(value: Any) -> float:
    """A number in (0, 1) from the row's content: the same rows are sampled wherever they stand in a file."""
    try:
        text = canonical_json(value)
    except (TypeError, ValueError):
        text = repr(value)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") + 0.5) / 2**64


def timestamp(value: Any) -> float | None:
    """Seconds since 1970; None where `value` is not a time.

    Of a datetime, an ISO 8601 text, or a number of seconds, milliseconds, microseconds or nanoseconds, which may be a text.
    """
    if isinstance(value, str):
        value = _number_or_datetime(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST * 1e9:
        return None
    while value > _LATEST:
        value /= 1000
    return float(value)


def _number_or_datetime(text: str) -> float | datetime | None:
    if _DIGITS.fullmatch(text):  # `fromisoformat` would read ten of them as a date
        return float(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
