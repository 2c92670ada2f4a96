"""One row of a table of measurements: how many tokens a step gave, and the time per token. Pure.

Tables state these in many ways. Which columns are believed, and what their user is told about it, is decided here, in
`measurements.py` (how long a step took) and in `in_batch.py` (how many requests were in the batch).
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.errors import UsageError
from pipeline.latency.costs.columns import is_median, listed, unit
from pipeline.latency.costs.output_rounds import tokens_per_step as tokens_per_step_of

_MAX_PLAIN_TOKENS = 1.05  # tokens per step that still count as plain decoding (rounding)
AGREES = 1.5  # ratio up to which two columns are about the same time, one as a median and one as a mean
_LEAST_LENGTH = 0.97  # tokens per step below which a length does not count the target's own token
_OWN_ADDED = "the acceptance length counts accepted draft tokens only, so 1 was added for the target's own"
_ACCEPTANCE = {"acceptance_length", "acceptance_rate", "draft_acceptance_rate"}
_UNKNOWN = (
    "the acceptance is unknown, so drafts are compared by their time per token, which holds for the acceptance of these "
    "measurements only; there is no break-even. If a column has it: --column acceptance_length=NAME, or "
    "draft_acceptance_rate=NAME"
)
NO_DRAFT_LENGTH = (
    "the draft length is unknown; name its column with --column gamma=NAME, or append it to the file if all rows have it: "
    "FILE:gamma=3 (0 if there are no drafts; if only some rows have one, add a column `k`)"
)
_SEVERAL_TOKENS = 1.1  # time between chunks / time per token from which chunks have several
_LENGTH_AGREES = 0.05  # relative difference of two acceptance columns
MIN_TPOT, MAX_TPOT = 5e-5, 3.0  # seconds per token outside of which the unit is assumed to be wrong
_MAX_WITHOUT_UNIT = 0.5  # the same where the column's name has no unit: 2 may be 2 ms


@dataclass(frozen=True)
class MeasuredRow:
    """One row: quantities, the columns from which they were read, and what there was."""

    where: str
    values: Mapping[str, float]
    columns: Mapping[str, str]
    given: Mapping[str, Any]


def acceptance_known(rows: Sequence[MeasuredRow]) -> bool:
    """Whether the acceptance of any draft in a table is known. Without, the time per token of a row with a draft must be."""
    drafted = [row for row in rows if row.values.get("gamma", 0.0) > 0]
    if not drafted or any(row.values.keys() & _ACCEPTANCE or length_by_chunks(row) for row in drafted):
        return True
    return any(derived_token_seconds(row.values) is None for row in drafted)  # which is refused


def length_by_chunks(row: MeasuredRow) -> float | None:
    """Tokens per step as the time between chunks / the time per token: an engine sends the tokens of a step together. None if
    these are not of one statistic, or equal: some tables have the time per token under both names."""
    itl, tpot = (row.values.get(name) for name in ("itl", "tpot"))
    if itl is None or tpot is None or is_median(row.columns.get("itl", "")) != is_median(row.columns.get("tpot", "")):
        return None
    length, gamma = itl / tpot, int(row.values.get("gamma", 0.0))
    if not _SEVERAL_TOKENS < length <= (1 + gamma) * (1 + _LENGTH_AGREES):
        return None
    return tokens_per_step_of(min(length, 1.0 + gamma), gamma, row.values.get("tokens"))


def counts_own_token(rows: Sequence[MeasuredRow]) -> bool:
    """Whether the acceptance lengths of a table count the target's own token, without which a step gives fewer than one."""
    return all(row.values.get("acceptance_length", 1.0) >= _LEAST_LENGTH for row in rows)


def tokens_per_step(row: MeasuredRow, gamma: int, own: bool, known: bool) -> tuple[float, list[str]]:
    """Tokens per step of each request, the target's own included; `own`: whether the table's lengths count it; `known`: whether
    the table states the acceptance of any row. If it does not, a step is one in which all were accepted: only its time per token
    is used. UsageError if the acceptance of a row of another table is unknown, or impossible."""
    values, where, notes = row.values, row.where, list[str]()
    length = values.get("acceptance_length")
    stated = length is not None
    if length is not None and not own:
        length += 1
        notes.append(_OWN_ADDED)
    if gamma == 0:
        _check_plain(row, length)
        return 1.0, notes
    rate, column = values.get("draft_acceptance_rate"), row.columns.get("draft_acceptance_rate")
    if length is not None:
        if rate is not None and _apart(length, 1 + gamma * rate) > _LENGTH_AGREES:
            length, of_both = _beside_rate(length, rate, gamma, column)
            notes += of_both
    elif "acceptance_rate" in values:
        length = iid_tokens_per_call(values["acceptance_rate"], gamma)
    elif rate is not None:
        length = 1 + gamma * rate
        if column is not None and "draft" not in column.lower():
            notes.append(
                f"{column} was read as accepted / drafted tokens, as engines count it; if it is per token, give "
                f"--column {shlex.quote(f'acceptance_rate={column}')}"
            )
    elif (by_chunks := length_by_chunks(row)) is not None:
        length = by_chunks
        notes.append(
            "tokens per step are the time between chunks / the time per token, because the acceptance is not stated"
        )
    elif not known:
        return gamma + 1.0, [_UNKNOWN]
    else:
        raise UsageError(
            f"{where}: draft length {gamma}, but the acceptance is unknown; name its column with --column acceptance_length=NAME "
            "(or draft_acceptance_rate=NAME if it is accepted / drafted, acceptance_rate=NAME if it is per token)"
            + (f"; if '{itl}' is a time per token, --column tpot=NAME" if (itl := row.columns.get("itl")) else "")
        )
    if not 1 <= length <= gamma + 1:
        raise UsageError(
            f"{where}: {length:g} tokens per step at draft length {gamma}; possible are 1 to {gamma + 1}; correct the row or "
            "remove it"
        )
    if length == 1 and stated:
        raise UsageError(
            f"{where}: draft length {gamma}, and no draft token was accepted: if it is a row without a draft, give it draft "
            "length 0; else the draft or its counters are wrong, so remove it"
        )
    return length, notes


def _beside_rate(length: float, rate: float, gamma: int, column: str | None) -> tuple[float, list[str]]:
    """The acceptance length beside a rate, read as accepted / drafted, that states something else; and what it seems to be."""
    per_token = _apart(length, iid_tokens_per_call(rate, gamma)) <= _LENGTH_AGREES
    without_own = _apart(length + 1, 1 + gamma * rate) <= _LENGTH_AGREES
    if without_own and not per_token:
        return length + 1, [_OWN_ADDED]
    if not per_token:
        return length, [f"{column} and the acceptance length disagree; the length was used"]
    notes = [f"{column} is an acceptance rate per token, by the acceptance length"]
    if without_own:
        notes.append(
            f"the acceptance length and {column} also agree if the length does not count the target's own token; if it does not, "
            "add 1 to it"
        )
    return length, notes


def _check_plain(row: MeasuredRow, length: float | None) -> None:
    """UsageError if a row without a draft length indicates drafts."""
    values, where = row.values, row.where
    stated = "gamma" in values
    if length is not None and length > _MAX_PLAIN_TOKENS:
        raise UsageError(
            f"{where}: {length:g} tokens per step, but {'the draft length is 0' if stated else NO_DRAFT_LENGTH}"
        )
    rate = max(values.get("acceptance_rate", 0.0), values.get("draft_acceptance_rate", 0.0))
    if rate > 0 and not stated:
        raise UsageError(f"{where}: acceptance rate {rate:g}, but {NO_DRAFT_LENGTH}")
    if not stated and "itl" in values and "tpot" in values and values["itl"] > AGREES * values["tpot"]:
        ratio = values["itl"] / values["tpot"]
        raise UsageError(
            f"{where}: the time between chunks is {ratio:.2g} times the time per token, as with drafts, but "
            f"{NO_DRAFT_LENGTH}"
        )


def token_seconds(row: MeasuredRow) -> float:
    """TPOT in seconds. UsageError if it is unknown or impossible."""
    seconds = derived_token_seconds(row.values)
    if seconds is None:
        raise UsageError(
            f"{row.where}: TPOT is unknown; columns with a value are {listed(row.given)}; name its column with --column "
            "tpot=NAME (or step=NAME, itl=NAME, throughput=NAME with the number of requests, or latency=NAME with tokens=NAME)"
        )
    check_token_seconds(row, seconds)
    return seconds


def check_token_seconds(row: MeasuredRow, seconds: float) -> None:
    """UsageError for a TPOT that no server has."""
    if seconds <= 0 and "tpot" not in row.values and {"latency", "ttft"} <= row.values.keys():
        latency, ttft = row.values["latency"], row.values["ttft"]
        raise UsageError(
            f"{row.where}: TTFT of {ttft:.3g} s is longer than the latency of {latency:.3g} s; correct the row or a unit"
        )
    column = row.columns.get("tpot")
    unnamed = column is not None and unit(column) is None
    most = _MAX_WITHOUT_UNIT if unnamed else MAX_TPOT
    if not MIN_TPOT <= seconds <= most:
        slow = ", and slow ones in seconds tpot_s" if unnamed else ""
        raise UsageError(
            f"{row.where}: TPOT is {seconds:.3g} s; possible are {1e3 * MIN_TPOT:g} ms to {most:g} s. Times in milliseconds "
            f"need ms in the column's name, such as tpot_ms{slow}, or --column tpot=NAME*0.001; a throughput must be in tokens "
            "per second"
        )


def derived_token_seconds(values: Mapping[str, float]) -> float | None:
    if "tpot" in values:
        return values["tpot"]
    if "latency" in values and values.get("tokens", 0) > 1:
        return (values["latency"] - values.get("ttft", 0.0)) / (values["tokens"] - 1)
    if "each_throughput" in values:
        return 1 / values["each_throughput"]
    requests = values.get("running", values.get("concurrency"))
    if requests is None or not values.get("throughput", 0) > 0:
        return None
    each = requests / values["throughput"]
    # In a closed loop `concurrency` includes requests that wait for their first token, `running` does not.
    if "running" in values or not values.get("tokens", 0) > 1:
        return each
    return (each * values["tokens"] - values.get("ttft", 0.0)) / (values["tokens"] - 1)


def _apart(value: float, other: float) -> float:
    """Relative difference."""
    return abs(value / other - 1) if other else math.inf


def ratio(value: float, other: float) -> float:
    """The larger / the smaller."""
    return max(value / other, other / value)
