"""Several endpoints of one target: spreads the requests, retries, and stops asking an endpoint that fails. Torch-free.

An endpoint is closed after some failures in a row. Before it is opened again it must show that it still serves the same weights
(`readmit`), because a server that was restarted may serve others.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from pipeline.config.server import ServerConfig
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.servers.answers import BadAnswer
from pipeline.servers.endpoint import Endpoint, Overloaded, Unavailable, now
from pipeline.servers.limits import Budget, RateLimit

_FAILURES = 3  # in a row, until an endpoint is closed
_ATTEMPTS = 12  # of one request, on all endpoints
_RETRY_SECONDS, _LONGEST_RETRY = 0.1, 10.0
_REOPEN_SECONDS, _LONGEST_REOPEN = 0.5, 30.0
_PAUSE_SECONDS = 1.0  # where a server asks for a pause and does not say how long
# A request that takes so many times the usual time is given to another endpoint, if there is one.
_SLOW, _SLOW_AT_LEAST, _DURATIONS = 10.0, 20.0, 64
_CHECK_REQUESTS = 4  # of a check, one after another
_TRANSIENT = (Unavailable, BadAnswer)

T = TypeVar("T")
Readmit = Callable[[Endpoint], Awaitable[None]]


class EndpointsDown(UnderstudyError):
    """No endpoint has worked for `patience_seconds`."""


@dataclass
class _State:
    endpoint: Endpoint
    in_flight: int = 0
    failures: int = 0  # in a row
    closed: bool = False
    paused_until: float = 0.0
    served: int = 0  # requests answered
    last_error: str = ""

    def is_usable(self) -> bool:
        return not self.closed and self.paused_until <= now()


@dataclass
class Pool:
    """Use it as `async with Pool(...) as pool`. The endpoints are opened and closed with it."""

    endpoints: Sequence[Endpoint]
    settings: ServerConfig
    readmit: Readmit  # raises Unavailable if the endpoint is still down, another error if it must not be used again
    progress: Progress
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = Budget(self.settings.token_budget)
        self._rate = RateLimit(self.settings.tokens_per_second)
        self._states = [_State(endpoint) for endpoint in self.endpoints]
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._reopening: set[asyncio.Task[None]] = set()
        self._fatal: UnderstudyError | None = None
        self._one_check = asyncio.Lock()  # so that checks add one request to `concurrency` at most

    async def __aenter__(self) -> "Pool":
        self._changed, self._worked_at = asyncio.Condition(), now()
        try:
            for endpoint in self.endpoints:
                await endpoint.open()
            await self._admit_all()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _admit_all(self) -> None:
        """Admit the endpoints that answer, and wait until there is one."""
        admitted = await asyncio.gather(
            *(self.readmit(endpoint) for endpoint in self.endpoints), return_exceptions=True
        )
        for state, error in zip(self._states, admitted, strict=True):
            if isinstance(error, _TRANSIENT):
                self._close(state, error)
            elif error is not None:
                raise error
        async with self._changed:
            while not self.working:
                if self._fatal is not None:
                    raise self._fatal
                if now() - self._worked_at > self.settings.patience_seconds:
                    raise self._down()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._next_change(any_usable=False))

    async def __aexit__(self, *_: object) -> None:
        for task in self._reopening:
            task.cancel()
        for endpoint in self.endpoints:
            await endpoint.close()

    async def any_endpoint(self) -> Endpoint:
        """An endpoint that works; EndpointsDown if there is none."""
        for state in self._states:
            if not state.closed:
                return state.endpoint
        raise self._down()

    async def check(self, url: str, work: Callable[[Endpoint], Awaitable[None]]) -> None:
        """Do `work`, a few requests, on the endpoint at `url`, and close it if it does not answer. An endpoint that is closed
        already, or is not of this pool, is left alone. Raises what `work` raises beside transient failures."""
        for state in self._states:
            if state.endpoint.url != url or state.closed:
                continue
            deadline = self._deadline()
            try:
                async with self._one_check, asyncio.timeout(deadline and _CHECK_REQUESTS * deadline):
                    await work(state.endpoint)
            except (*_TRANSIENT, TimeoutError) as error:
                if not state.closed:
                    self._close(state, error if isinstance(error, UnderstudyError) else self._slow(state))

    @property
    def capacity(self) -> int:
        """Requests that all endpoints take at a time."""
        return sum(endpoint.capacity for endpoint in self.endpoints)

    @property
    def working(self) -> int:
        """The number of endpoints that are not closed."""
        return sum(not state.closed for state in self._states)

    async def ask(self, tokens: int, work: Callable[[Endpoint], Awaitable[tuple[T, int]]]) -> tuple[T, Endpoint]:
        """The result of `work` on some endpoint, and that endpoint.

        `tokens`: the most that the request can take; `work` returns its result with the tokens that it took. Transient failures
        (Unavailable, BadAnswer) are retried, on any endpoint. EndpointsDown, BudgetSpent, or the error that a request ends with.
        """
        self.budget.reserve(tokens)
        taken = 0
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_TRANSIENT),
                stop=stop_after_attempt(_ATTEMPTS),
                wait=wait_random_exponential(multiplier=_RETRY_SECONDS, max=_LONGEST_RETRY),
                retry_error_callback=_gave_up,
                reraise=True,
            ):
                with attempt:
                    await self._rate.wait(tokens)
                    result, taken, endpoint = await self._try(work)
            return result, endpoint
        finally:
            self.budget.settle(tokens, taken)

    async def _try(self, work: Callable[[Endpoint], Awaitable[tuple[T, int]]]) -> tuple[T, int, Endpoint]:
        while True:
            state = await self._acquire()
            began = now()
            try:
                async with asyncio.timeout(self._deadline()):
                    result, taken = await work(state.endpoint)
            except Overloaded as error:
                state.paused_until = now() + (_PAUSE_SECONDS if error.seconds is None else error.seconds)
                state.last_error = str(error)
                continue
            except TimeoutError:
                self._failed(state, slow := self._slow(state))
                raise slow from None
            except BadAnswer as error:
                bad = BadAnswer(f"{state.endpoint.url}: {error}")
                self._failed(state, bad)
                raise bad from None
            except Unavailable as error:
                self._failed(state, error)
                raise
            finally:
                await self._release(state)
            state.failures, state.served, self._worked_at = 0, state.served + 1, now()
            self._durations.append(now() - began)
            return result, taken, state.endpoint

    def _slow(self, state: _State) -> Unavailable:
        return Unavailable(f"{state.endpoint.url}: answers take {_SLOW:g} times the usual time")

    def _deadline(self) -> float | None:
        if len(self._durations) < _DURATIONS // 4 or sum(state.is_usable() for state in self._states) < 2:
            return None
        return max(_SLOW_AT_LEAST, _SLOW * median(self._durations))

    async def _acquire(self) -> _State:
        """A usable endpoint with a free place: the one with the fewest requests for its weight."""
        async with self._changed:
            while True:
                if self._fatal is not None:
                    raise self._fatal
                usable = [state for state in self._states if state.is_usable()]
                free = [state for state in usable if state.in_flight < state.endpoint.capacity]
                if free:
                    chosen = min(free, key=lambda state: (state.in_flight + 1) / state.endpoint.weight)
                    chosen.in_flight += 1
                    return chosen
                if not usable and now() - self._worked_at > self.settings.patience_seconds:
                    raise self._down()
                with contextlib.suppress(TimeoutError):  # a pause or the patience is over
                    await asyncio.wait_for(self._changed.wait(), self._next_change(bool(usable)))

    def _next_change(self, any_usable: bool) -> float | None:
        """Seconds until an endpoint may be usable without being told so; None: someone will tell."""
        pauses = [state.paused_until - now() for state in self._states if not state.closed and not state.is_usable()]
        if not any_usable:
            pauses.append(self._worked_at + self.settings.patience_seconds - now() + 0.01)
        return max(0.01, min(pauses)) if pauses else None

    async def _release(self, state: _State) -> None:
        async with self._changed:
            state.in_flight -= 1
            self._changed.notify_all()

    def _failed(self, state: _State, error: UnderstudyError) -> None:
        state.failures = state.failures + 1
        if state.failures >= _FAILURES and not state.closed:
            self._close(state, error)

    def _close(self, state: _State, error: UnderstudyError) -> None:
        state.closed, state.last_error = True, str(error)
        self.progress.warn(f"{error}; asked again later, {self.working} of {len(self._states)} endpoints left")
        task = asyncio.create_task(self._reopen(state))
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)

    async def _reopen(self, state: _State) -> None:
        seconds = _REOPEN_SECONDS
        while state.closed and self._fatal is None:
            await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
            seconds = min(2 * seconds, _LONGEST_REOPEN)
            try:
                await self.readmit(state.endpoint)
            except Overloaded as error:
                await asyncio.sleep(_PAUSE_SECONDS if error.seconds is None else error.seconds)
            except _TRANSIENT as error:
                state.last_error = str(error)
            except UnderstudyError as error:
                self._fatal = error
            else:
                state.closed, state.failures, self._worked_at = False, 0, now()
                self.progress.line(f"{state.endpoint.url} answers again, with the same weights")
            async with self._changed:
                self._changed.notify_all()

    def _down(self) -> EndpointsDown:
        errors = "; ".join(state.last_error or state.endpoint.url for state in self._states[:3])
        every = "the endpoint is" if len(self._states) == 1 else f"all {len(self._states)} endpoints are"
        return EndpointsDown(
            f"generate.server: {every} down for {self.settings.patience_seconds:g} s ({errors}); start a server and run again"
        )


def _gave_up(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, UnderstudyError)
    raise UnderstudyError(f"{error}; tried {_ATTEMPTS} times") from error
