"""One row of a table of measurements: how many tokens a step gave, how long it took, how many requests were in the batch. Pure.

Tables say these in many ways. Which columns are believed, and what their user is told about it, is decided here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.errors import UsageError
from pipeline.latency.costs.columns import UNCLEAR, is_median, listed, missing_concurrency

_MAX_PLAIN_TOKENS = 1.05  # tokens per step that still count as plain decoding (rounding)
_AGREES = 1.5  # ratio up to which two columns tell of the same time, one as a median and one as a mean
_LENGTH_AGREES = 0.05  # relative difference of two acceptance columns
_FULL = 0.7  # decoding requests / concurrency below which the others waited
_MOSTLY = 0.8  # mean requests / concurrency: below it a rate is in another unit, or the batch was rarely full


@dataclass(frozen=True)
class Row:
    """One row: quantities, the columns from which they were read, and what there was."""

    where: str
    values: Mapping[str, float]
    columns: Mapping[str, str]
    given: Mapping[str, Any]


def throughput_in_tokens(rows: Sequence[Row]) -> bool:
    """Whether the throughput is in tokens per second: the column says so, or by Little's law all requests decode at some load.
    A column `throughput` may as well be in requests per second."""
    return any(
        row.columns.get("throughput") not in UNCLEAR
        or (
            "tpot" in row.values
            and _decoding(row.values, row.values["tpot"]) >= _FULL * row.values.get("concurrency", math.inf)
        )
        for row in rows
    )


def tokens_per_step(row: Row, gamma: int) -> tuple[float, list[str]]:
    """Tokens per step of each request, the target's own included. UsageError if the acceptance is unknown or impossible."""
    values, where, notes = row.values, row.where, list[str]()
    length = values.get("acceptance_length")
    if gamma == 0:
        if length is not None and length > _MAX_PLAIN_TOKENS:
            said = (
                "the draft length is 0"
                if "gamma" in values
                else "the draft length is unknown; name its column with --column gamma=NAME"
            )
            raise UsageError(f"{where}: {length:g} tokens per step, but {said}")
        return 1.0, notes
    rate, column = values.get("draft_acceptance_rate"), row.columns.get("draft_acceptance_rate")
    if length is not None:
        if rate is not None and _apart(length, 1 + gamma * rate) > _LENGTH_AGREES:
            if _apart(length + 1, 1 + gamma * rate) <= _LENGTH_AGREES:
                length += 1
                notes.append(
                    "the acceptance length counts accepted draft tokens only, so 1 was added for the target's own"
                )
            elif _apart(length, iid_tokens_per_call(rate, gamma)) <= _LENGTH_AGREES:
                notes.append(f"{column} is an acceptance rate per token, by the acceptance length")
            else:
                notes.append(f"{column} and the acceptance length disagree; the length was taken")
    elif "acceptance_rate" in values:
        length = iid_tokens_per_call(values["acceptance_rate"], gamma)
    elif rate is not None:
        length = 1 + gamma * rate
        if column == "acceptance_rate":
            notes.append(
                "acceptance_rate was read as accepted / drafted tokens, as engines count it; if it is per token, give "
                "--column acceptance_rate=acceptance_rate"
            )
    else:
        raise UsageError(
            f"{where}: draft length {gamma}, but the acceptance is unknown; name its column with "
            "--column acceptance_length=NAME (or draft_acceptance_rate, acceptance_rate)"
        )
    if not 1 <= length <= gamma + 1:
        raise UsageError(f"{where}: {length:g} tokens per step at draft length {gamma}; possible are 1 to {gamma + 1}")
    return length, notes


def step_seconds(row: Row, length: float) -> tuple[float, list[str]]:
    """Seconds of a step with `length` tokens for each request. The mean time between two chunks of a stream is a step where an
    engine sends each step's tokens together, as vLLM does; some tables have the time per token under the same name."""
    values = row.values
    if "step" in values:
        return values["step"], []
    step, itl = _token_seconds(row) * length, values.get("itl")
    if itl is not None and _ratio(itl, step) <= min(_AGREES, _ratio(itl, step / length)):
        return itl, []
    notes = []
    if itl is not None and _ratio(itl, step / length) > _AGREES:
        notes.append(f"{row.columns.get('itl', 'itl')} is neither a step nor the time per token, so it was not used")
    if is_median(row.columns.get("tpot", "")) and values.get("running", 0) > 0 and values.get("throughput", 0) > 0:
        mean = values["running"] / values["throughput"] * length
        if _ratio(mean, step) <= _AGREES:
            return mean, [
                *notes,
                "the step was taken from running and throughput, because the time per token is a median",
            ]
    if is_median(row.columns.get("tpot", "")) and length > 1:
        notes.append(
            "the time per token is a median, so the steps with drafts may be off; a mean is better (mean_tpot_ms)"
        )
    return step, notes


def _token_seconds(row: Row) -> float:
    """TPOT in seconds."""
    values = row.values
    if "tpot" in values:
        found = values["tpot"]
    elif "latency" in values and values.get("tokens", 0) > 1:
        found = (values["latency"] - values.get("ttft", 0.0)) / (values["tokens"] - 1)
    elif values.get("throughput", 0) > 0 and (requests := values.get("running", values.get("concurrency"))):
        # In a closed loop `concurrency` includes requests that wait for their first token, `running` does not.
        several = "running" not in values and values.get("tokens", 0) > 1
        found = requests / values["throughput"] - (values.get("ttft", 0.0) / values["tokens"] if several else 0.0)
    else:
        raise UsageError(
            f"{row.where}: TPOT is unknown; columns are {listed(row.given)}; name its column with --column tpot=NAME (or latency "
            "with tokens, or throughput)"
        )
    if not found > 0:
        raise UsageError(f"{row.where}: TPOT is {found:g} s, but must be above 0")
    return found


def batch(row: Row, token_seconds: float, in_tokens: bool) -> tuple[float, list[str]]:
    """Requests in the batch. By Little's law throughput times TPOT requests decode at a time; where that is far below the
    concurrency, the others waited. For an open loop it is rate times latency, plus the request itself (a Poisson arrival sees
    the mean)."""
    values = row.values
    if "running" in values:
        return values["running"], []
    decoding = _decoding(values, token_seconds)
    rate = values.get("served_rate", values.get("rate"))
    if "concurrency" in values:
        if in_tokens and 0 < decoding < _FULL * values["concurrency"]:
            return decoding, [
                "the server was full: by throughput and time per token far fewer requests ran than the concurrency says, the "
                "others waited; the batch that ran was taken"
            ]
        present = values.get("served_rate", 0.0) * values.get("latency", 0.0)  # Little's law
        if mostly_full(present, values):
            return present, [
                "the batch fills at the start and empties at the end of a test: completed requests per second times latency, "
                "which is the mean number of requests, was taken instead of the concurrency"
            ]
        return values["concurrency"], []
    if rate is not None and "latency" in values:
        return 1 + rate * values["latency"], []
    if decoding > 0:
        return decoding, ["the number of requests in the batch is throughput times time per token"]
    raise missing_concurrency(row.given, row.where)


def mostly_full(requests: float, values: Mapping[str, float]) -> bool:
    """Whether a closed loop had nearly as many requests as its concurrency, but fewer: it began and ended empty."""
    concurrency = values.get("concurrency", 0.0)
    return _MOSTLY * concurrency <= requests < concurrency


def requests_per_place(values: Mapping[str, float]) -> float | None:
    """Requests that each place of the batch served in a closed loop; None if unknown."""
    if "completed" not in values or "concurrency" not in values:
        return None
    return max(1.0, values["completed"] / values["concurrency"])


def _decoding(values: Mapping[str, float], token_seconds: float) -> float:
    """Requests that decode at a time, by Little's law; 0 if the throughput is unknown."""
    return values.get("throughput", 0.0) * token_seconds


def _apart(one: float, other: float) -> float:
    """Relative difference."""
    return abs(one / other - 1) if other else math.inf


def _ratio(one: float, other: float) -> float:
    """The larger / the smaller."""
    return max(one / other, other / one)
