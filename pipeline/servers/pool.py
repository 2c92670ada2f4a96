"""Several endpoints of one target: spreads the requests, retries, and stops asking an endpoint that fails. Torch-free.

An endpoint is closed after some failures in a row. Before it is opened again it must show that it still serves the same weights
(`readmit`), because a server that was restarted may serve others.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from pipeline.config.server import ServerConfig
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.servers.answers import BadAnswer
from pipeline.servers.endpoint import AnswerLost, Endpoint, Overloaded, Unavailable, now
from pipeline.servers.limits import Budget, RateLimit
from pipeline.servers.retries import TIMING, TRANSIENT, Timing, retried

_DURATIONS = 64  # whose median is the usual time of a request
_CHECK_REQUESTS = 4  # of a check, one after another

T = TypeVar("T")
Readmit = Callable[[Endpoint], Coroutine[Any, Any, None]]


class EndpointsDown(UnderstudyError):
    """No endpoint has worked for `patience_seconds`."""


@dataclass
class _State:
    endpoint: Endpoint
    in_flight: int = 0
    failures: int = 0  # in a row
    pauses: int = 0  # in a row
    closed: bool = False
    admitted: bool = False  # once
    paused_until: float = 0.0
    one_check: asyncio.Lock = field(default_factory=asyncio.Lock)  # so that checks add one request to `concurrency`
    checked_at: float = 0.0  # when the last check that it passed began
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
    timing: Timing = TIMING
    budget: Budget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = Budget(self.settings.token_budget)
        self._rate = RateLimit(self.settings.tokens_per_second)
        self._states = [_State(endpoint) for endpoint in self.endpoints]
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._reopening: set[asyncio.Task[None]] = set()
        self._fatal: Exception | None = None
        self._failing_since: float | None = None  # nothing has worked since then
        self._running: dict[object, float] = {}  # when each request in flight began

    async def __aenter__(self) -> "Pool":
        self._changed, self._failing_since = asyncio.Condition(), now()
        try:
            for endpoint in self.endpoints:
                await endpoint.open()
            await self._admit_all()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _admit_all(self) -> None:
        """Admit the endpoints that answer, and wait until there is one. Those that take much longer than the first one are asked
        again later."""
        began, patience = now(), self.settings.patience_seconds
        asked = {asyncio.create_task(self.readmit(state.endpoint)): state for state in self._states}
        pending, until = set(asked), began + patience
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=max(0.0, until - now()), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    if (error := self._admitted(asked[task], task)) is not None:
                        raise error
                if any(state.admitted for state in self._states):
                    until = min(until, began + max(self.timing.slow_at_least, self.timing.slow * (now() - began)))
                if not done:
                    break
        finally:
            for task in pending:
                task.cancel()
        for task in pending:
            silent = Unavailable(f"{asked[task].endpoint.url}: no answer within {now() - began:.0f} s")
            self._close(asked[task], silent)
        async with self._changed:
            while not self.working:
                await self._wait(any_usable=False)

    def _admitted(self, state: _State, task: "asyncio.Task[None]") -> BaseException | None:
        """Admit or close the endpoint; the error of one that must not be used."""
        error = task.exception()
        if isinstance(error, TRANSIENT):
            self._close(state, error)
            return None
        state.admitted, self._failing_since = error is None, None
        return error

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

    async def check(self, url: str, work: Callable[[Endpoint], Awaitable[None]]) -> bool:
        """Do `work`, a few requests, on the endpoint at `url`, and close it if it does not answer. Work that another caller has
        begun in the meantime is not done again. Raises what `work` raises beside transient failures. False if the work could not
        be done: the endpoint is closed, or not of this pool."""
        state = next((state for state in self._states if state.endpoint.url == url), None)
        asked_at = now()
        if state is None:
            return False
        async with state.one_check:
            if state.closed:
                return False
            if state.checked_at > asked_at:
                return True
            began, deadline = now(), self._deadline()
            try:
                async with asyncio.timeout(deadline and _CHECK_REQUESTS * deadline):
                    await retried(partial(work, state.endpoint), self.timing)
            except (*TRANSIENT, TimeoutError) as error:
                if not state.closed:
                    self._close(state, error if isinstance(error, UnderstudyError) else self._slow(state))
                return False
            state.checked_at = began
            return True

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
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(TRANSIENT),
            stop=stop_after_attempt(self.timing.attempts),
            wait=wait_random_exponential(multiplier=self.timing.retry, max=self.timing.longest_retry),
            retry_error_callback=_gave_up,
        ):
            with attempt:
                return await self._paid(tokens, work)
        raise AssertionError  # `_gave_up` raises

    async def _paid(self, tokens: int, work: Callable[[Endpoint], Awaitable[tuple[T, int]]]) -> tuple[T, Endpoint]:
        """One attempt. An answer that was lost or is not used counts as paid: the server may have computed it."""
        self.budget.reserve(tokens)
        taken = 0
        try:
            await self._rate.wait(tokens)
            result, taken, endpoint = await self._try(work)
            return result, endpoint
        except (AnswerLost, BadAnswer):
            taken = tokens
            raise
        finally:
            self.budget.settle(tokens, taken)

    async def _try(self, work: Callable[[Endpoint], Awaitable[tuple[T, int]]]) -> tuple[T, int, Endpoint]:
        while True:
            state = await self._acquire()
            began, request = now(), object()
            self._running[request] = began
            try:
                async with asyncio.timeout(self._deadline()):
                    result, taken = await work(state.endpoint)
            except Overloaded as error:
                self._pause(state, error)
                self._running.pop(request)
                self._require_patience()
                continue
            except TimeoutError:
                self._failed(state, slow := self._slow(state))
                raise slow from None
            except TRANSIENT as error:
                self._failed(state, error)
                raise
            finally:
                self._running.pop(request, None)
                await self._release(state)
            state.failures, state.pauses, self._failing_since = 0, 0, None
            self._durations.append(now() - began)
            return result, taken, state.endpoint

    def _slow(self, state: _State) -> Unavailable:
        return AnswerLost(f"{state.endpoint.url}: answers take more than {self.timing.slow:g} times the usual time")

    def _pause(self, state: _State, error: Overloaded) -> None:
        state.paused_until = now() + self.timing.pause_of(error, state.pauses)
        state.pauses, state.last_error = state.pauses + 1, str(error)
        self._failing_since = self._failing_since or now()

    def _deadline(self) -> float | None:
        if len(self._durations) < _DURATIONS // 4 or sum(state.is_usable() for state in self._states) < 2:
            return None
        return max(self.timing.slow_at_least, self.timing.slow * median(self._durations))

    async def _acquire(self) -> _State:
        """A usable endpoint with a free place: the one with the fewest requests for its weight."""
        async with self._changed:
            while True:
                usable = [state for state in self._states if state.is_usable()]
                free = [state for state in usable if state.in_flight < state.endpoint.capacity]
                if free and self._fatal is None:
                    chosen = min(free, key=lambda state: (state.in_flight + 1) / state.endpoint.weight)
                    chosen.in_flight += 1
                    return chosen
                await self._wait(bool(usable))

    async def _wait(self, any_usable: bool) -> None:
        """Wait, with the lock, until an endpoint may be usable or free. EndpointsDown when the patience is over."""
        if self._fatal is not None:
            raise self._fatal
        if not any_usable:
            self._require_patience()
        with contextlib.suppress(TimeoutError):  # a pause or the patience is over
            await asyncio.wait_for(self._changed.wait(), self._next_change(any_usable))

    def _require_patience(self) -> None:
        """EndpointsDown if nothing has worked for `patience_seconds`. A request that has been running since before may still."""
        since = self._failing_since
        if since is None or now() - since <= self.settings.patience_seconds:
            return
        if not any(began < since for began in self._running.values()):
            raise self._down()

    def _next_change(self, any_usable: bool) -> float | None:
        """Seconds until an endpoint may be usable without being told so; None: someone will tell."""
        pauses = [state.paused_until - now() for state in self._states if not state.closed and not state.is_usable()]
        if not any_usable and self._failing_since is not None:
            pauses.append(self._failing_since + self.settings.patience_seconds - now() + 0.01)
        return max(0.01, min(pauses)) if pauses else None

    async def _release(self, state: _State) -> None:
        async with self._changed:
            state.in_flight -= 1
            self._changed.notify_all()

    def _failed(self, state: _State, error: UnderstudyError) -> None:
        state.failures += 1
        self._failing_since = self._failing_since or now()
        if state.failures >= self.timing.failures and not state.closed:
            self._close(state, error)

    def _close(self, state: _State, error: UnderstudyError) -> None:
        state.closed, state.last_error = True, str(error)
        self._failing_since = self._failing_since or now()
        self.progress.warn(f"{error}; asked again later, {self.working} of {len(self._states)} endpoints left")
        task = asyncio.create_task(self._reopen(state))
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)

    async def _reopen(self, state: _State) -> None:
        seconds = self.timing.reopen
        while state.closed and self._fatal is None:
            await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
            seconds = min(2 * seconds, self.timing.longest_reopen)
            try:
                await self.readmit(state.endpoint)
            except Overloaded as error:
                state.last_error = str(error)
                await asyncio.sleep(self.timing.pause_of(error, 0))
            except TRANSIENT as error:
                state.last_error = str(error)
            except Exception as error:  # for whoever waits for an endpoint
                self._fatal = error
            else:
                state.closed, state.failures, state.pauses, self._failing_since = False, 0, 0, None
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
    raise UnderstudyError(f"{error}; the request failed {state.attempt_number} times; run again to continue") from error
