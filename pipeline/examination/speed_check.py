"""Checks the speedup that step times and examined tokens per round give, by decoding with the draft that was timed.

Each request is decoded with the draft and without it up to a stop token, as it was examined: behind one, target and draft may
agree more, or less. What is counted are tokens and seconds: rounds of any outcome, on tokens of their own. No step time and no
examined figure is in the result. Handles one draft, and not which others share its step times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import exp, inf, log
from time import perf_counter

from scipy.special import stdtrit

from pipeline.acceptance.decoding_speed import LEAST_PROMPTS, LEAST_TOKENS, DraftSpeed, Measured, SpeedCheck
from pipeline.examination.step_timing import Turns
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder, Decoding
from pipeline.speculation.draft_length import Fixed


@dataclass(frozen=True)
class Decode:
    """Tokens after the prefill, and their seconds, with the draft and plain."""

    tokens: int
    seconds: float
    plain_tokens: int
    plain_seconds: float


def check_speed(
    decoder: Decoder, turns: Turns, computed: DraftSpeed, confidence: float, most: float = inf
) -> SpeedCheck | None:
    """Decodes the requests of the turns, and where their completions end early further ones, for about `most` seconds. None
    where no speedup was computed; a check without a decoded speedup where too little can be decoded."""
    if computed.speedup is None:
        return None
    decodes, began = list[Decode](), perf_counter()
    for number, request in enumerate(chain(turns.requests, turns.further)):
        if number >= len(turns.requests) and (_enough(decodes) or perf_counter() - began > most):
            break
        decodes.append(decode_both(decoder, turns, request, number, computed.gamma))
    decoded = decoded_speedup(decodes, confidence) if _enough(decodes) else None
    return SpeedCheck(
        gamma=computed.gamma,
        prompts=len(decodes),
        tokens=sum(decode.tokens for decode in decodes),
        computed=computed.speedup,
        decoded=decoded,
        agrees=decoded is None or overlap(computed.speedup, decoded),
    )


def _enough(decodes: Sequence[Decode]) -> bool:
    tokens = min(sum(decode.tokens for decode in decodes), sum(decode.plain_tokens for decode in decodes))
    return len(decodes) >= LEAST_PROMPTS and tokens >= LEAST_TOKENS


def decode_both(decoder: Decoder, turns: Turns, request: Request, number: int, gamma: int) -> Decode:
    """One request with the draft and without it, in an order that alternates by `number`."""
    by_length = dict[int, tuple[int, float]]()
    for length in (gamma, 0) if number % 2 else (0, gamma):
        by_length[length] = _decode(decoder, turns, request, length)
    return Decode(*by_length[gamma], *by_length[0])


def _decode(decoder: Decoder, turns: Turns, request: Request, length: int) -> tuple[int, float]:
    """Whole rounds up to a stop token, or until there are as many tokens as steps in a turn; those near the request's limit are
    shorter, and not counted."""
    decoder.length, decoder.stop_tokens = Fixed(length), turns.stop_tokens
    decoding = Decoding(decoder, [request])
    count, seconds = 0, 0.0
    for round_ in decoding:
        if round_.drafted[0] < length:
            break
        taken = decoding.completions[0].seconds
        count, seconds = count + round_.accepted[0] + 1, taken.total - taken.prefill
        if count >= turns.steps:
            break
    return count, seconds


def decoded_speedup(decodes: Sequence[Decode], confidence: float) -> Measured | None:
    """Tokens per second of all requests with the draft / without. The bounds are those of Student's t for the jackknife over
    requests of its logarithm; None for fewer than two requests, and where one had no whole round."""
    count = len(decodes)
    if count < 2 or any(min(decode.tokens, decode.plain_tokens) == 0 for decode in decodes):
        return None
    middle = _log_ratio(decodes)
    without = [_log_ratio([*decodes[:place], *decodes[place + 1 :]]) for place in range(count)]
    mean = sum(without) / count
    error = ((count - 1) / count * sum((value - mean) ** 2 for value in without)) ** 0.5
    half = float(stdtrit(count - 1, 0.5 + confidence / 2)) * error
    return Measured(exp(middle), exp(middle - half), exp(middle + half))


def _log_ratio(decodes: Sequence[Decode]) -> float:
    ours, plain = (sum(decode.tokens for decode in decodes), sum(decode.plain_tokens for decode in decodes))
    return log(ours / sum(decode.seconds for decode in decodes)) - log(
        plain / sum(decode.plain_seconds for decode in decodes)
    )


def overlap(measured: Measured, other: Measured) -> bool:
    """Whether two intervals do, as far as they have bounds: of equal errors and at 95%, those of one true value do not in 6 of
    1,000."""
    (low, high), (other_low, other_high) = (
        (-inf if each.low is None else each.low, inf if each.high is None else each.high) for each in (measured, other)
    )
    return low <= other_high and other_low <= high
