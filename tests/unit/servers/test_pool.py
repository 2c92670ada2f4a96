"""Several endpoints: who is asked, what is retried, when an endpoint is closed and opened, and when the run ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipeline.config.server import ServerConfig
from pipeline.errors import UnderstudyError, UsageError
from pipeline.servers.answers import BadAnswer
from pipeline.servers.endpoint import AnswerLost, Endpoint, Overloaded, RequestRefused, Unavailable
from pipeline.servers.limits import BudgetSpent
from pipeline.servers.pool import EndpointsDown, Pool
from pipeline.servers.retries import Timing, retried
from tests.fakes import quiet

QUICK = Timing(retry=0.001, longest_retry=0.01, reopen=0.005, longest_reopen=0.02, pause=0.02, least_pause=0.002)


async def _fine(endpoint: Endpoint) -> None:
    """An endpoint may always be used."""


async def _answer(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.url, 7


def _pool(
    urls: str = "ab", readmit: Callable[[Endpoint], Any] = _fine, timing: Timing = QUICK, **settings: Any
) -> Pool:
    known = {"concurrency": 2, "patience_seconds": 5.0, "endpoints": [f"http://{one}" for one in urls]}
    config = ServerConfig.model_validate(known | settings)
    return Pool([Endpoint(one, config) for one in config.endpoints], config, readmit, quiet(), timing)


def _run(pool: Pool, work: Callable[[Pool], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with pool:
            return await asyncio.wait_for(work(pool), 20)

    return asyncio.run(run())


def _fails(error: Exception, times: int = 10**9, url: str = "http://a") -> Callable[[Endpoint], Any]:
    """Work that fails so many times at `url`, and is then done."""
    left = [times]

    async def work(endpoint: Endpoint) -> tuple[str, int]:
        if endpoint.url == url and left[0] > 0:
            left[0] -= 1
            raise error
        return endpoint.url, 7

    return work


@pytest.mark.parametrize("error", [Unavailable("http://a: HTTP 500: x"), BadAnswer("0 tokens"), AnswerLost("cut")])
def test_a_transient_failure_is_retried(error: Exception) -> None:
    """Also where there is only one endpoint."""
    found, endpoint = _run(_pool("a"), lambda pool: pool.ask(10, _fails(error, 2)))
    assert ("http://a", "http://a") == (found, endpoint.url)


@pytest.mark.parametrize("error", [RequestRefused("too long"), UsageError("no token")])
def test_a_refusal_is_not_retried(error: UnderstudyError) -> None:
    """It would be refused again."""
    asked = []

    async def work(endpoint: Endpoint) -> tuple[str, int]:
        asked.append(endpoint.url)
        raise error

    with pytest.raises(type(error)):
        _run(_pool("ab"), lambda pool: pool.ask(10, work))
    assert 1 == len(asked)


def test_a_request_that_fails_everywhere_says_so() -> None:
    """With the last endpoint, and how often it was tried."""
    timing = Timing(retry=0.001, longest_retry=0.002, attempts=3, failures=100)
    with pytest.raises(UnderstudyError, match="http://a: 0 tokens; the request failed 3 times; run again to continue"):
        _run(_pool("a", timing=timing), lambda pool: pool.ask(10, _fails(BadAnswer("http://a: 0 tokens"))))


def test_three_failures_close_an_endpoint_until_it_is_readmitted() -> None:
    """In between the other one gets everything."""
    open_again, admitted = [False], [0]

    async def readmit(endpoint: Endpoint) -> None:
        admitted[0] += 1
        if admitted[0] > 2 and not open_again[0]:
            raise Unavailable("still down")

    async def work(pool: Pool) -> Any:
        failing = _fails(Unavailable("http://a: down"), 3)
        while pool.working == 2:
            await pool.ask(1, failing)
        urls = {(await pool.ask(1, _answer))[0] for _ in range(5)}
        open_again[0] = True
        while pool.working < 2:
            await asyncio.sleep(0.005)
        (first, _), (second, _) = await asyncio.gather(pool.ask(1, _hold), pool.ask(1, _hold))
        return urls, {first, second}

    async def _hold(endpoint: Endpoint) -> tuple[str, int]:
        await asyncio.sleep(0.01)
        return endpoint.url, 1

    assert ({"http://b"}, {"http://a", "http://b"}) == _run(_pool("ab", readmit), work)


def test_every_endpoint_down_ends_the_run() -> None:
    """In one line with the reasons, after `patience_seconds`; it is a failure, exit 1."""
    said = r"all 2 endpoints are down for 0.1 s \(http://a: gone; http://b: gone\); start a server and run again"

    async def readmit(endpoint: Endpoint) -> None:
        raise Unavailable(f"{endpoint.url}: gone")

    with pytest.raises(EndpointsDown, match=said) as error:
        _run(_pool("ab", readmit, patience_seconds=0.1), lambda pool: pool.ask(1, _answer))
    assert 1 == error.value.exit_code


def test_patience_begins_when_nothing_works() -> None:
    """Requests may take longer than `patience_seconds`: a server that fails after a long one is waited for."""
    began: list[float] = []

    async def long(endpoint: Endpoint) -> tuple[str, int]:
        began.append(asyncio.get_running_loop().time())
        if len(began) <= 3:
            await asyncio.sleep(0.3 if len(began) == 1 else 0)
            raise Unavailable("http://a: gone")
        return "done", 1

    assert "done" == _run(_pool("a", patience_seconds=0.2), lambda pool: pool.ask(1, long))[0]


def test_a_server_that_asks_for_no_pause_is_not_asked_without_end() -> None:
    """429 with Retry-After 0, again and again: the pauses grow, and the patience ends."""
    asked = []

    async def busy(endpoint: Endpoint) -> tuple[str, int]:
        asked.append(1)
        raise Overloaded("http://a: HTTP 429: busy", 0.0)

    with pytest.raises(EndpointsDown, match="HTTP 429: busy"):
        _run(_pool("a", patience_seconds=0.2), lambda pool: pool.ask(1, busy))
    assert 5 < len(asked) < 30


def test_a_paused_endpoint_leaves_its_requests_to_others() -> None:
    """A pause is not a failure of the request."""

    async def busy(endpoint: Endpoint) -> tuple[str, int]:
        if endpoint.url == "http://a":
            raise Overloaded("busy", 60.0)
        return endpoint.url, 1

    async def work(pool: Pool) -> Any:
        return {(await pool.ask(1, busy))[0] for _ in range(20)}, pool.working

    assert ({"http://b"}, 2) == _run(_pool("ab"), work)


def test_another_error_of_a_closed_endpoint_ends_the_run() -> None:
    """Whoever waits gets it, also if it is a bug; nobody waits for ever."""
    admitted = [0]

    async def readmit(endpoint: Endpoint) -> None:
        admitted[0] += 1
        if admitted[0] > 1:
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        _run(_pool("a", readmit), lambda pool: pool.ask(1, _fails(Unavailable("gone"))))


def test_an_endpoint_that_is_silent_at_the_start_does_not_hold_up_the_others() -> None:
    """It is closed, and asked again later."""

    async def readmit(endpoint: Endpoint) -> None:
        if endpoint.url == "http://a":
            await asyncio.sleep(60)

    async def work(pool: Pool) -> Any:
        return pool.working, (await pool.ask(1, _answer))[0]

    timing = Timing(slow_at_least=0.05)
    assert (1, "http://b") == _run(_pool("ab", readmit, timing), work)


def test_an_endpoint_that_must_not_be_used_ends_the_start() -> None:
    """Another error than a transient one, such as other weights."""

    async def readmit(endpoint: Endpoint) -> None:
        if endpoint.url == "http://b":
            raise UsageError("http://b: other flags")

    with pytest.raises(UsageError, match="other flags"):
        _run(_pool("ab", readmit), lambda pool: pool.ask(1, _answer))


def test_requests_at_a_time_are_bounded() -> None:
    """By `concurrency` times the weight of each endpoint."""
    now, most = dict.fromkeys(("http://a", "http://b"), 0), dict.fromkeys(("http://a", "http://b"), 0)

    async def work(endpoint: Endpoint) -> tuple[str, int]:
        now[endpoint.url] += 1
        most[endpoint.url] = max(most[endpoint.url], now[endpoint.url])
        await asyncio.sleep(0.002)
        now[endpoint.url] -= 1
        return "", 1

    endpoints = [{"url": "http://a"}, {"url": "http://b", "weight": 3}]
    _run(_pool(endpoints=endpoints), lambda pool: asyncio.gather(*(pool.ask(1, work) for _ in range(60))))
    assert {"http://a": 2, "http://b": 6} == most


def test_a_check_is_done_once_for_all_that_wait() -> None:
    """And not at all on a closed endpoint, or one of another pool."""
    done = []

    async def work(endpoint: Endpoint) -> None:
        done.append(endpoint.url)
        await asyncio.sleep(0.01)

    async def checks(pool: Pool) -> Any:
        found = await asyncio.gather(*(pool.check("http://a", work) for _ in range(9)))
        return found, await pool.check("http://elsewhere", work)

    assert ([True] * 9, False) == _run(_pool("ab"), checks)
    assert 2 == len(done)  # the first one, and one for all that came while it was under way


def test_a_check_that_fails_closes_the_endpoint() -> None:
    """After some attempts; other errors are raised."""

    async def gone(endpoint: Endpoint) -> None:
        raise Unavailable("gone")

    async def other(endpoint: Endpoint) -> None:
        raise UsageError("other flags")

    async def readmit(endpoint: Endpoint) -> None:
        if admitted:
            await asyncio.sleep(60)
        admitted.append(1)

    async def checks(pool: Pool) -> Any:
        with pytest.raises(UsageError, match="other flags"):
            await pool.check("http://a", other)
        return await pool.check("http://a", gone), pool.working

    admitted: list[int] = []
    assert (False, 0) == _run(_pool("a", readmit), checks)


def test_a_lost_answer_counts_as_paid() -> None:
    """The server may have computed it; what was never sent is not counted."""

    async def spend(pool: Pool) -> Any:
        await pool.ask(10, _fails(AnswerLost("cut"), 1))
        await pool.ask(10, _fails(Unavailable("connection refused"), 1))
        with pytest.raises(BudgetSpent, match="34 tokens are spent and the next request may take 10"):
            await pool.ask(10, _fails(BadAnswer("0 tokens"), 1))
        return pool.budget.spent

    assert 34 == _run(_pool("a", token_budget=40), spend)


@pytest.mark.parametrize(("seconds", "waits"), [(0.01, True), (60.0, False)])
def test_what_only_one_endpoint_can_answer_is_retried_there(seconds: float, waits: bool) -> None:
    """A short pause is obeyed; one that would take too long is the end."""
    left = [Overloaded("busy", seconds), BadAnswer("0 tokens"), Unavailable("gone")]

    async def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    if waits:
        assert "done" == asyncio.run(retried(work, QUICK))
    else:
        with pytest.raises(Overloaded):
            asyncio.run(retried(work, QUICK))


def test_failures_with_successes_in_between_do_not_close() -> None:
    """They are counted in a row: each of these requests fails once and then succeeds."""
    admitted = []

    async def readmit(endpoint: Endpoint) -> None:
        admitted.append(endpoint.url)

    async def work(pool: Pool) -> None:
        for _ in range(QUICK.failures + 1):
            await pool.ask(1, _fails(Unavailable("http://a: down"), 1))
        await asyncio.sleep(0.05)

    _run(_pool("a", readmit), work)
    assert ["http://a"] == admitted
