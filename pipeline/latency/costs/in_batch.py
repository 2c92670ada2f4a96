"""How many requests were in the batch of a row of measurements, and the mean time per token where the row has a median. Pure.

By Little's law throughput times time per token is the number of requests that decode, and the share of the concurrency that does
not is TTFT / latency.
"""

import math
import shlex
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.latency.costs.arrivals import BURST, left_at_end, mean_batch
from pipeline.latency.costs.columns import is_median, listed
from pipeline.latency.costs.row import AGREES, MeasuredRow, derived_token_seconds, ratio

_SEVERAL, _ONE = 4.0, 1.3  # concurrency with which a throughput of all requests means more than one decoding request
_LIGHT = 2.0  # concurrency at which no request waits for a place
_FULL = 0.7  # decoding requests / concurrency below which some requests of the concurrency did not run
_FALLEN = 0.25  # decoding requests / those of the lightest load that is possible, below which a unit is wrong
_NEARLY_FULL, _EXACT = 0.85, 0.05  # the same where TTFT / latency is the share of the others, to this difference
_MOSTLY = 0.8  # mean requests / concurrency: below it a rate is in another unit, or the batch was rarely full
_SKEWED = 1.5  # mean / median time per token up to which both can be of the same steps
_VERY_SKEWED = 2.0  # the same where TTFT shows that no request waited
_EXPLAINED = 0.5  # TTFT / latency, as a share of the requests that do not decode, from which they waited for a place
USUAL_TOKENS = 128.0  # output length for that comparison where it is unknown
_SOME_WAITED = (
    "throughput times time per token is below the concurrency and TTFT is as much longer, so the other requests waited for a "
    "place in the batch or for their prefill; that number was used"
)


def decoding_shares(rows: Sequence[MeasuredRow]) -> list[float]:
    """For each row the largest share of the concurrency that decodes at its load and lighter ones of its draft length: a draft
    makes decoding shorter and leaves prefills as they are. Without a light load of the draft length it is that of the table."""
    of_table = decoding_share(rows)
    by_gamma: dict[float, list[tuple[float, float]]] = {}
    for row in rows:
        if "throughput" in row.values:
            by_gamma.setdefault(row.values.get("gamma", 0.0), []).extend(_known([row]))
    largest = {}  # of each draft length, by concurrency
    for gamma, known in by_gamma.items():
        known.sort()
        shares = accumulate((min(1.0, decoding / concurrency) for concurrency, decoding in known), max)
        largest[gamma] = ([concurrency for concurrency, _ in known], list(shares))

    def share(row: MeasuredRow) -> float:
        loads, shares = largest.get(row.values.get("gamma", 0.0), ([], []))
        place = bisect_right(loads, row.values.get("concurrency", 0.0))
        return shares[place - 1] if of_table and place and loads[0] <= _LIGHT else of_table

    return [share(row) for row in rows]


def decoding_share(rows: Sequence[MeasuredRow]) -> float:
    """The largest share of the concurrency that decodes at any load, by Little's law: throughput times TPOT. 0 if the throughput
    is that of one request, which decodes one at every load."""
    rows = [row for row in rows if "throughput" in row.values]
    known = _known(rows)
    if not known:
        return float(bool(rows))
    if min(concurrency for concurrency, _ in known) > _LIGHT:
        return 1.0  # no load shows which share prefills take
    if max(concurrency for concurrency, _ in known) >= _SEVERAL and all(decoding < _ONE for _, decoding in known):
        return 0.0
    return min(1.0, max(decoding / concurrency for concurrency, decoding in known))


def _known(rows: Sequence[MeasuredRow]) -> list[tuple[float, float]]:
    """Concurrency and decoding requests of the rows that show both."""
    return [
        (row.values["concurrency"], row.values["throughput"] * seconds)
        for row in rows
        if "concurrency" in row.values and (seconds := derived_token_seconds(row.values)) is not None
    ]


def more_than_possible(rows: Sequence[MeasuredRow]) -> list[str]:
    """A throughput that more requests would need than there are, by the time per token. The first token of an answer needs
    none."""
    for row in rows:
        throughput, concurrency = row.values.get("throughput"), row.values.get("concurrency")
        seconds = derived_token_seconds({name: value for name, value in row.values.items() if name != "throughput"})
        if throughput is None or concurrency is None or seconds is None:
            continue
        tokens = max(2.0, row.values.get("tokens", USUAL_TOKENS))
        if throughput * seconds * (1 - 1 / tokens) > AGREES * concurrency:
            return [
                f"check {row.where}: {throughput:,.0f} tokens/s of {concurrency:g} requests, and {1e3 * seconds:.3g} ms a token: "
                "one of the two is something else, such as tokens of the prompts too, or another unit"
            ]
    return []


def mean_step(row: MeasuredRow, step: float, length: float, share: float) -> tuple[float, list[str]]:
    """Seconds of a step, where `step` is the median time per token times `length` tokens per step: requests / throughput is the
    mean time per token. `share`: the `decoding_share` of the table. The median stays where the throughput is of another kind,
    and where requests waited for an unknown part of their time."""
    values, median = row.values, "the time per token is a median"
    off = [f"{median}, so the steps with drafts may be off; a mean is better (mean_tpot_ms)"] if length > 1 else []
    requests = "running" if "running" in values else "concurrency"
    known = values.get(requests, 0) > 0 and values.get("throughput", 0) > 0
    if not known or (requests == "concurrency" and not share):
        return step, off
    closed = requests == "concurrency"
    decoding = values["throughput"] * step / length
    few = closed and decoding < _FULL * share * values["concurrency"]
    why = waited(row, step / length) if few else None
    if why and "tokens" not in values:
        return step, off
    each = derived_token_seconds({name: value for name, value in values.items() if name not in ("tpot", "latency")})
    if each is None or each <= 0 or ratio(each * length, step) > (_VERY_SKEWED if why is False else _SKEWED):
        return step, off
    return each * length, [f"the step was taken from {requests} and throughput, because {median}"]


def waited(row: MeasuredRow, token_seconds: float) -> bool | None:
    """Whether TTFT is long enough for requests that waited for a place in the batch: at least half of what the requests that do
    not decode need. None if it is unknown."""
    values = row.values
    ttft, concurrency = values.get("ttft"), values.get("concurrency", 0.0)
    if ttft is None or not concurrency > 0:
        return None
    decoding = values.get("throughput", 0.0) * token_seconds
    latency = values.get("latency", ttft + token_seconds * max(0.0, values.get("tokens", USUAL_TOKENS) - 1))
    return ttft / latency >= _EXPLAINED * (1 - decoding / concurrency)


def _all_explained(row: MeasuredRow, token_seconds: float) -> bool:
    """Whether TTFT / latency is the share of the requests that do not decode. Only means with known output lengths show that."""
    values = row.values
    means = not any(is_median(row.columns.get(name, "")) for name in ("ttft", "tpot", "latency"))
    if not means or not {"ttft", "tokens"} <= values.keys():
        return False
    latency = values.get("latency", values["ttft"] + token_seconds * max(0.0, values["tokens"] - 1))
    share = 1 - values.get("throughput", 0.0) * token_seconds / values["concurrency"]
    return abs(values["ttft"] / latency - share) <= _EXACT


@dataclass(frozen=True)
class ServedTogether:
    """Requests that are served together, and what their user must know about this number."""

    requests: float  # of a closed loop: its concurrency
    in_batch: float | None = None  # the mean number in the batch, where it is known to be smaller
    notes: tuple[str, ...] = ()


def batch(row: MeasuredRow, token_seconds: float, length: float, share: float) -> ServedTogether:
    """`length`: tokens per step; `share`: the `decoding_share` of the table. By Little's law throughput times TPOT requests
    decode at a time; where that is a far smaller share of the concurrency than at another load, it is the batch. Requests that
    arrive at a rate are `arrivals.py`."""
    values = row.values
    if "running" in values:
        return ServedTogether(values["running"], notes=_other_batch(values))
    decoding, concurrency = values.get("throughput", 0.0) * token_seconds, values.get("concurrency")
    if concurrency is None and (mean := mean_batch(row, token_seconds)) is not None:
        burst = [BURST] if values.get("rate") == math.inf else []
        return ServedTogether(mean, notes=(*burst, *left_at_end(values, row.where)))
    if "limit" in values:
        column = row.columns.get("concurrency", "concurrency")
        raise UsageError(
            f"{row.where}: with a request rate, {printable(column)} may be a limit that was not reached, and how many requests "
            "ran is unknown; add their mean latency, or mean TPOT and the output tokens. If so many ran, give "
            f"--column {shlex.quote(f'running={column}')}"
        )
    if concurrency is not None:
        if 0 < decoding < _FALLEN * share:  # at a lighter load there was `share` of a request or more
            throughput = row.columns.get("throughput", "throughput")
            raise UsageError(
                f"{row.where}: '{printable(throughput)}' is {values['throughput']:g}, of which a time per token of "
                f"{1e3 * token_seconds:.3g} ms makes {decoding:.2g} decoding requests of {concurrency:g}, fewer than at a "
                "lighter load: one of them is in another unit, or a separator of thousands was read as a decimal point"
            )
        if concurrency > 1 and 0 < decoding < _FULL * share * concurrency:
            return ServedTogether(decoding, notes=(_few(waited(row, token_seconds)),))
        nearly = concurrency > _LIGHT and 0 < decoding < _NEARLY_FULL * share * concurrency
        if nearly and _all_explained(row, token_seconds):
            return ServedTogether(decoding, notes=(_SOME_WAITED,))
        return ServedTogether(concurrency, _mean_of_closed_loop(values, concurrency, length))
    if share and decoding > 0:
        return ServedTogether(
            decoding, notes=("the number of requests in the batch is throughput times time per token",)
        )
    raise UsageError(
        f"{row.where}: the number of concurrent requests is unknown; columns are {listed(row.given)}; name its column with "
        "--column concurrency=NAME (or rate=NAME and latency=NAME); if all rows ran one request at a time, append it to the "
        "file: FILE:concurrency=1"
    )


def _few(waited: bool | None) -> str:
    """Why the batch is smaller than the concurrency, as far as TTFT shows."""
    said = "throughput times time per token is far below the concurrency"
    if waited is None:
        return (
            f"{said}, so the server was full and the other requests waited, or too few requests were sent; that number was used "
            "(a column `ttft` shows which)"
        )
    if waited:
        return f"{said} and TTFT is long, so the server was full and the other requests waited; that number was used"
    return (
        f"{said}, and TTFT is too short for requests that waited: fewer requests ran than the concurrency, as with too few "
        "prompts; that number was used"
    )


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


def requests_per_place(values: Mapping[str, float], batch: float) -> float | None:
    """Requests that each place of the batch served in a closed loop or a burst, whose batch is given; None if unknown."""
    places = batch if values.get("rate") == math.inf else values.get("concurrency")
    return max(1.0, values["completed"] / places) if "completed" in values and places else None
