"""The clock of a chat template: templates that write the date (`strftime_now`) ask for the time, which is an input here.

A prompt of a log is rendered at its row's time, as the server rendered it (in UTC), and others at noon of a stated day, so that a
prompt is the same text tomorrow. transformers has no argument for it: its templates get a clock in place of `datetime`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime, time, tzinfo
from typing import Any

CALL = "strftime_now"
_moment: ContextVar[datetime | None] = ContextVar("moment", default=None)


class _Clock:
    """`datetime`, but for the time that it is."""

    def now(self, tz: tzinfo | None = None) -> datetime:
        stated = _moment.get()
        return datetime.now(tz) if stated is None else stated

    def __getattr__(self, name: str) -> Any:
        return getattr(datetime, name)


def moment_of(seconds: float) -> datetime | None:
    """The moment of so many seconds since 1970, in UTC; None beyond the years that there are."""
    try:
        return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    except (OverflowError, ValueError, OSError):
        return None


def noon_of(day: date) -> datetime:
    """The moment at which prompts without a time of their own are rendered."""
    return datetime.combine(day, time(12))


def install() -> None:
    """Let templates ask this clock. Without a stated moment it is that of the machine."""
    from transformers.utils import chat_template_utils

    if not isinstance(chat_template_utils.datetime, _Clock):
        chat_template_utils.datetime = _Clock()


@contextmanager
def clock_at(moment: datetime | None) -> Iterator[None]:
    """Templates that are rendered within this context find this time; None: that of the machine."""
    token = _moment.set(moment)
    try:
        yield
    finally:
        _moment.reset(token)
