"""Limits on what is asked of the servers: tokens per second, and tokens in all. Torch-free."""

import asyncio

from pipeline.errors import UnderstudyError
from pipeline.servers.endpoint import now


class BudgetSpent(UnderstudyError):
    """The tokens that the stage may ask for are spent."""


class RateLimit:
    """Starts requests so that no more than `tokens_per_second` are asked for; None: no limit.

    A request starts when those before it have used up their share of time, so a burst cannot take what production needs.
    """

    def __init__(self, tokens_per_second: float | None) -> None:
        self._rate, self._free_at = tokens_per_second, 0.0

    async def wait(self, tokens: int) -> None:
        """Return when a request for `tokens` tokens may start."""
        if self._rate is None:
            return
        start = max(now(), self._free_at)
        self._free_at = start + tokens / self._rate
        await asyncio.sleep(max(0.0, start - now()))


class Budget:
    """Counts tokens; None: no limit. A request reserves the most tokens that it can take, and returns what it did not take, so
    the budget is never exceeded."""

    def __init__(self, tokens: int | None) -> None:
        self._limit, self._reserved, self.spent = tokens, 0, 0

    def reserve(self, tokens: int) -> None:
        """BudgetSpent if the tokens that are left may not suffice."""
        if self._limit is not None and self.spent + self._reserved + tokens > self._limit:
            raise BudgetSpent(
                f"generate.server.token_budget = {self._limit:,}: {self.spent:,} tokens are spent and the next request may take "
                f"{tokens:,}; run again to continue with a new budget"
            )
        self._reserved += tokens

    def settle(self, reserved: int, taken: int) -> None:
        """A request that reserved `reserved` tokens has ended and took `taken`."""
        self._reserved -= reserved
        self.spent += taken
