"""The check of a computed speedup by decoding directly."""

from random import Random

import pytest

from pipeline.acceptance.decoding_speed import DraftSpeed, Measured
from pipeline.drafts.plain import PlainDraft
from pipeline.examination.speed_check import Decode, check_speed, decode_both, decoded_speedup, overlap
from pipeline.examination.step_times import Turns, timed_decoder
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY
from tests.fakes import table_model


def _decoder(turns: Turns) -> Decoder:
    model = table_model(8, 1)
    return timed_decoder(model, PlainDraft(model, 8), turns, GREEDY, GREEDY, 8)


def _turns(limit: int, steps: int, requests: int = 8) -> Turns:
    given = [Request([1, 2], limit, seed) for seed in range(requests)]
    return Turns(requests=given, lengths=(4,), steps=steps, count=6)


def test_whole_rounds_are_decoded_until_there_are_tokens_enough() -> None:
    """A draft that is always right gives 5 tokens a round of 4: 15 where 12 are asked for; near the limit none are counted."""
    found = decode_both(_decoder(_turns(40, 12)), _turns(40, 12), 0, 4)
    assert (15, 12) == (found.tokens, found.plain_tokens)
    assert min(found.seconds, found.plain_seconds) > 0
    assert 5 == decode_both(_decoder(_turns(7, 6)), _turns(7, 6), 1, 4).tokens


def test_the_decoded_speedup_is_tokens_over_seconds() -> None:
    """Of all requests together; the bounds are wide where requests differ."""
    equal = [Decode(60, 30.0, 60, 60.0)] * 8
    assert Measured(2.0, pytest.approx(2.0), pytest.approx(2.0)) == _rounded(decoded_speedup(equal, 0.95))
    unequal = decoded_speedup([*equal[:4], *[Decode(60, 20.0, 60, 60.0)] * 4], 0.95)
    assert unequal is not None
    assert unequal.low is not None
    assert unequal.median == pytest.approx(2.4)
    assert unequal.low < 2.1
    assert decoded_speedup(equal[:1], 0.95) is None
    assert decoded_speedup([*equal, Decode(0, 0.0, 60, 60.0)], 0.95) is None


def _rounded(found: Measured | None) -> Measured:
    assert found is not None
    return Measured(round(found.median, 9), found.low, found.high)


def test_its_interval_holds_as_often_as_it_says() -> None:
    """8 requests with 10% of noise each: of 1,000 draws fewer than 92% hold the true value with a chance below 1 in 1,000."""
    draw, held = Random(1), 0
    for _ in range(1_000):
        found = decoded_speedup([Decode(64, 32 * draw.lognormvariate(0, 0.1), 64, 64.0) for _ in range(8)], 0.95)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 2.0 <= found.high
    assert held > 920


@pytest.mark.parametrize(
    ("decoded", "agrees"),
    [(Measured(1.2, 1.1, 1.31), True), (Measured(1.2, 1.1, 1.29), False), (Measured(1.2, None, None), True)],
)
def test_it_agrees_where_the_intervals_overlap(decoded: Measured, agrees: bool) -> None:
    assert agrees == overlap(Measured(1.4, 1.3, 1.5), decoded) == overlap(decoded, Measured(1.4, 1.3, 1.5))


@pytest.mark.parametrize(("requests", "speedup", "checked"), [(8, 1.0, True), (7, 1.0, False), (8, None, False)])
def test_a_check_has_both_numbers(requests: int, speedup: float | None, checked: bool) -> None:
    """Nothing is checked where nothing was computed, nor with too little to compare with."""
    turns = _turns(90, 64, requests)
    computed = None if speedup is None else Measured(speedup, 0.0001, 1000.0)
    given = DraftSpeed(gamma=4, tokens_per_second=Measured(1.0, 1.0, 1.0), speedup=computed)
    found = check_speed(_decoder(turns), turns, given, 0.95)
    assert checked == (found is not None)
    assert found is None or (computed, 8, 520, 4, True) == (
        found.computed,
        found.prompts,
        found.tokens,
        found.gamma,
        found.agrees,
    )
