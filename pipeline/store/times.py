"""Times as records and manifests have them: UTC, to the second, in a form that can be compared as text."""

import calendar
import time

_FORM = "%Y-%m-%dT%H:%M:%SZ"


def utc_now(days: int = 0) -> str:
    """Now, or the time in so many days."""
    return time.strftime(_FORM, time.gmtime(time.time() + 86400 * days))


def utc_after(at: str) -> str:
    """The second after `at`."""
    return time.strftime(_FORM, time.gmtime(seconds_of(at) + 1))


def seconds_of(at: str) -> int:
    """Seconds since the epoch. ValueError for text that is no such time."""
    return calendar.timegm(time.strptime(at, _FORM))


def days_since(at: str) -> float:
    """Days from `at` until now."""
    return (time.time() - seconds_of(at)) / 86400
