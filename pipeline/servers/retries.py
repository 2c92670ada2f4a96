"""Attempts and pauses of requests to one server: backoff with jitter, or what the server asks for. Torch-free. The requests of a
generation, which any endpoint may answer, are retried by `Pool.ask` (`pool.py`), by the same `Timing`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from pipeline.servers.answers import BadAnswer
from pipeline.servers.endpoint import Overloaded, Unavailable

TRANSIENT = (Unavailable, BadAnswer)

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """Attempts and seconds. Tests set shorter ones."""

    failures: int = 3  # in a row, until an endpoint is closed
    attempts: int = 12  # of one request, on all endpoints
    check_attempts: int = 4  # of a request that only this endpoint can answer
    retry: float = 0.1
    longest_retry: float = 10.0
    reopen: float = 0.5  # until a closed endpoint is asked again; doubled each time
    longest_reopen: float = 30.0
    pause: float = 1.0  # where a server asks for a pause and does not state how long
    least_pause: float = (
        0.05  # doubled with each pause in a row, up to `pause`, where the server asks for a shorter one
    )
    # A request that takes so many times the usual time is given to another endpoint, if there is one.
    slow: float = 10.0
    slow_at_least: float = 20.0

    def pause_of(self, error: Overloaded, in_a_row: int) -> float:
        """Seconds of a pause. A server that asks for none again and again is not asked without end."""
        least = min(self.pause, self.least_pause * 2.0 ** min(in_a_row, 20))
        return max(least, self.pause if error.seconds is None else error.seconds)


TIMING = Timing()


async def after_pauses(request: Callable[[], Awaitable[T]], timing: Timing = TIMING) -> T:
    """The result of one request, sent again after each pause that the server asks for. The last Overloaded after
    `check_attempts`, or at once if the pause is longer than `longest_reopen`."""
    for in_a_row in range(timing.check_attempts - 1):
        try:
            return await request()
        except Overloaded as error:
            if (error.seconds or 0.0) > timing.longest_reopen:
                raise
            await asyncio.sleep(timing.pause_of(error, in_a_row))
    return await request()


async def retried(work: Callable[[], Awaitable[T]], timing: Timing = TIMING) -> T:
    """The result of `work`, a few requests to one endpoint, done again after a transient failure. Raises the last failure, at
    once if the server asks for a pause that is longer than `longest_reopen`."""
    backoff = wait_random_exponential(multiplier=timing.retry, max=timing.longest_retry)

    def pause(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Overloaded):
            return timing.pause_of(error, state.attempt_number)
        return float(backoff(state))

    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(TRANSIENT),
        stop=stop_after_attempt(timing.check_attempts),
        wait=pause,
        before_sleep=lambda state: _raise_if_longer(state, timing.longest_reopen),
        reraise=True,
    ):
        with attempt:
            return await work()
    raise AssertionError  # the last failure was raised


def _raise_if_longer(state: RetryCallState, seconds: float) -> None:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, Overloaded) and (error.seconds or 0.0) > seconds:
        raise error
