"""One row of a table of measurements: how many tokens a step gave, how long it took, how many requests were in the batch. Pure.

Tables say these in many ways. Which columns are believed, and what their user is told about it, is decided here.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.errors import UsageError
from pipeline.latency.costs.columns import UNCLEAR, ambiguous, is_median, listed, missing_concurrency

_MAX_PLAIN_TOKENS = 1.05  # tokens per step that still count as plain decoding (rounding)
_AGREES = 1.5  # ratio up to which two columns tell of the same time, one as a median and one as a mean
_LEAST_LENGTH = 0.97  # tokens per step below which a length does not count the target's own token
_OWN_ADDED = "the acceptance length counts accepted draft tokens only, so 1 was added for the target's own"
_LENGTH_AGREES = 0.05  # relative difference of two acceptance columns
_MAX_TPOT = 3.0  # seconds per token above which the unit is assumed to be wrong
_SEVERAL, _ONE = 4.0, 1.3  # concurrency with which a throughput of all requests tells of more than one decoding request
_LIGHT = 2.0  # concurrency at which no request waits for a place
_FULL = 0.7  # decoding requests / concurrency below which the others waited
_MOSTLY = 0.8  # mean requests / concurrency: below it a rate is in another unit, or the batch was rarely full


@dataclass(frozen=True)
class Row:
    """One row: quantities, the columns from which they were read, and what there was."""

    where: str
    values: Mapping[str, float]
    columns: Mapping[str, str]
    given: Mapping[str, Any]


def decoding_share(rows: Sequence[Row]) -> float:
    """The largest share of the concurrency that decodes at any load, by Little's law: throughput times TPOT. 0 if the throughput
    is not in tokens per second of all requests: a column `throughput` may be in requests per second, and any may be of one
    request, which decodes one at every load."""
    rows = [row for row in rows if "throughput" in row.values]
    clear = any(row.columns.get("throughput") not in UNCLEAR for row in rows)
    known = [
        (row.values["concurrency"], row.values["throughput"] * seconds)
        for row in rows
        if "concurrency" in row.values and (seconds := _derived_token_seconds(row.values)) is not None
    ]
    if not known:
        return float(clear)
    if clear and min(concurrency for concurrency, _ in known) > _LIGHT:
        return 1.0  # no load tells which share prefills take
    if max(concurrency for concurrency, _ in known) >= _SEVERAL and all(decoding < _ONE for _, decoding in known):
        return 0.0
    share = min(1.0, max(decoding / concurrency for concurrency, decoding in known))
    return share if clear or share >= _FULL else 0.0


def counts_own_token(rows: Sequence[Row]) -> bool:
    """Whether the acceptance lengths of a table count the target's own token, without which a step gives fewer than one."""
    return all(row.values.get("acceptance_length", 1.0) >= _LEAST_LENGTH for row in rows)


def tokens_per_step(row: Row, gamma: int, own: bool) -> tuple[float, list[str]]:
    """Tokens per step of each request, the target's own included; `own`: whether the table's lengths count it. UsageError if the
    acceptance is unknown or impossible."""
    values, where, notes = row.values, row.where, list[str]()
    length = values.get("acceptance_length")
    if length is not None and not own:
        length += 1
        notes.append(_OWN_ADDED)
    if gamma == 0:
        _check_plain(row, length)
        return 1.0, notes
    rate, column = values.get("draft_acceptance_rate"), row.columns.get("draft_acceptance_rate")
    if length is not None:
        if rate is not None and _apart(length, 1 + gamma * rate) > _LENGTH_AGREES:
            per_token = _apart(length, iid_tokens_per_call(rate, gamma)) <= _LENGTH_AGREES
            without_own = _apart(length + 1, 1 + gamma * rate) <= _LENGTH_AGREES
            if per_token:
                notes.append(f"{column} is an acceptance rate per token, by the acceptance length")
            elif without_own:
                length += 1
                notes.append(_OWN_ADDED)
            else:
                notes.append(f"{column} and the acceptance length disagree; the length was used")
            if per_token and without_own:
                notes.append(
                    f"the acceptance length and {column} also agree if the length does not count the target's own token; if it "
                    "does not, add 1 to it"
                )
    elif "acceptance_rate" in values:
        length = iid_tokens_per_call(values["acceptance_rate"], gamma)
    elif rate is not None:
        length = 1 + gamma * rate
        if column is not None and "draft" not in column.lower():
            notes.append(
                f"{column} was read as accepted / drafted tokens, as engines count it; if it is per token, give "
                f"--column {shlex.quote(f'acceptance_rate={column}')}"
            )
    else:
        raise UsageError(
            f"{where}: draft length {gamma}, but the acceptance is unknown; name its column with --column acceptance_length=NAME "
            "(or draft_acceptance_rate=NAME if it is accepted / drafted, acceptance_rate=NAME if it is per token)"
        )
    if not 1 <= length <= gamma + 1:
        raise UsageError(
            f"{where}: {length:g} tokens per step at draft length {gamma}; possible are 1 to {gamma + 1}; correct the row"
        )
    return length, notes


def _check_plain(row: Row, length: float | None) -> None:
    """UsageError if a row without a draft length tells of drafts."""
    values, where = row.values, row.where
    stated = "gamma" in values
    unknown = (
        "the draft length is unknown; name its column with --column gamma=NAME, or append it to the file: FILE:gamma=3"
    )
    if length is not None and length > _MAX_PLAIN_TOKENS:
        raise UsageError(f"{where}: {length:g} tokens per step, but {'the draft length is 0' if stated else unknown}")
    rate = max(values.get("acceptance_rate", 0.0), values.get("draft_acceptance_rate", 0.0))
    if rate > 0 and not stated:
        raise UsageError(f"{where}: acceptance rate {rate:g}, but {unknown}")
    if not stated and "itl" in values and "tpot" in values and values["itl"] > _AGREES * values["tpot"]:
        ratio = values["itl"] / values["tpot"]
        raise UsageError(
            f"{where}: the time between chunks is {ratio:.2g} times the time per token, as with drafts, but {unknown} (0 if "
            "there are none)"
        )


def step_seconds(row: Row, length: float) -> tuple[float, list[str]]:
    """Seconds of a step with `length` tokens for each request. The mean time between two chunks of a stream is a step where an
    engine sends each step's tokens together, as vLLM does; some tables have the time per token under the same name."""
    values, notes = row.values, list[str]()
    if "step" in values:
        other = values.get("tpot", values["step"] / length) * length
        if _ratio(values["step"], other) <= _AGREES:
            return values["step"], []
        notes.append(
            f"{row.columns.get('step', 'step')} is not the time per token times tokens per step, so it was not used"
        )
    itl = values.get("itl")
    if itl is not None and not values.keys() & {"tpot", "latency", "throughput"}:
        return itl, [*notes, "the time between chunks was used as the time of a step, which it is in vLLM"]
    step = _token_seconds(row) * length
    if itl is not None and _ratio(itl, step) <= min(_AGREES, _ratio(itl, step / length)):
        return itl, notes
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
    """TPOT in seconds. UsageError if it is unknown or impossible."""
    found = _derived_token_seconds(row.values)
    if found is None:
        raise UsageError(
            f"{row.where}: TPOT is unknown; columns with a value are {listed(row.given)}; name its column with --column "
            "tpot=NAME (or step=NAME, itl=NAME, throughput=NAME, or latency=NAME with tokens=NAME)"
        )
    if not 0 < found <= _MAX_TPOT:
        raise UsageError(
            f"{row.where}: TPOT is {found:.3g} s; possible are times above 0 and up to {_MAX_TPOT:g} s. Times in milliseconds "
            "need ms in the column's name, such as tpot_ms; a throughput must be in tokens per second"
        )
    return found


def _derived_token_seconds(values: Mapping[str, float]) -> float | None:
    if "tpot" in values:
        return values["tpot"]
    if "latency" in values and values.get("tokens", 0) > 1:
        return (values["latency"] - values.get("ttft", 0.0)) / (values["tokens"] - 1)
    requests = values.get("running", values.get("concurrency"))
    if requests is None or not values.get("throughput", 0) > 0:
        return None
    each = requests / values["throughput"]
    # In a closed loop `concurrency` includes requests that wait for their first token, `running` does not.
    if "running" in values or not values.get("tokens", 0) > 1:
        return each
    return (each * values["tokens"] - values.get("ttft", 0.0)) / (values["tokens"] - 1)


@dataclass(frozen=True)
class Batch:
    """Requests that are served together, and what their user must know about this number."""

    requests: float  # of a closed loop: its concurrency
    in_batch: float | None = None  # the mean number in the batch, where it is known to be smaller
    notes: tuple[str, ...] = ()


def batch(row: Row, token_seconds: float, length: float, share: float) -> Batch:
    """`length`: tokens per step; `share`: the `decoding_share` of the table. By Little's law throughput times TPOT requests
    decode at a time; where that is a far smaller share of the concurrency than at another load, the others waited. For an open
    loop it is rate times latency, plus the request itself (a Poisson arrival sees the mean)."""
    values = row.values
    if "running" in values:
        return Batch(values["running"], notes=_other_batch(values))
    decoding, concurrency = values.get("throughput", 0.0) * token_seconds, values.get("concurrency")
    rate = values.get("served_rate", values.get("rate"))
    if rate is not None and "latency" in values and ("rate" in values or concurrency is None):
        return Batch(min(1 + rate * values["latency"], concurrency or math.inf))
    if concurrency is not None:
        if concurrency > 1 and 0 < decoding < _FULL * share * concurrency:
            said = "throughput times time per token is far below the concurrency, so the server was full and the other requests"
            return Batch(decoding, notes=(f"{said} waited; that number was used",))
        return Batch(concurrency, _mean_of_closed_loop(values, concurrency, length))
    if share and decoding > 0 and not ambiguous(row.given):
        return Batch(decoding, notes=("the number of requests in the batch is throughput times time per token",))
    raise missing_concurrency(row.given, row.where)


def _mean_of_closed_loop(values: Mapping[str, float], concurrency: float, length: float) -> float | None:
    """Mean number of requests in the batch; None if it is not known to differ from the concurrency. A test begins and ends with
    an empty batch: by Little's law completed requests per second times latency are present. A request that follows another one
    waits for the running step: 1 of the steps that it is present for, which are that one, the step with its prefill, and those of
    its further tokens."""
    if concurrency <= 1:
        return None
    present = values.get("served_rate", 0.0) * values.get("latency", 0.0)
    if not _MOSTLY * concurrency <= present < concurrency:
        present = concurrency
    if "tokens" in values:
        present = max(1.0, present * (1 - 1 / (max(0.0, values["tokens"] - 1) / length + 2)))
    return present if present < concurrency else None


def _other_batch(values: Mapping[str, float]) -> tuple[str, ...]:
    if _MOSTLY <= values["running"] / values.get("concurrency", values["running"]) <= 1:
        return ()
    return ("the number of running requests is far from the concurrency; the running ones were used",)


def requests_per_place(values: Mapping[str, float]) -> float | None:
    """Requests that each place of the batch served in a closed loop; None if unknown."""
    if "completed" not in values or "concurrency" not in values:
        return None
    return max(1.0, values["completed"] / values["concurrency"])


def _apart(one: float, other: float) -> float:
    """Relative difference."""
    return abs(one / other - 1) if other else math.inf


def _ratio(one: float, other: float) -> float:
    """The larger / the smaller."""
    return max(one / other, other / one)
