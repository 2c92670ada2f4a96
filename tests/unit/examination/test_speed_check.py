"""The check of a computed speedup by decoding directly."""

from math import inf
from random import Random

import pytest
import torch

from pipeline.acceptance.decoding_speed import DraftSpeed, Measured
from pipeline.drafts.plain import PlainDraft
from pipeline.examination.speed_check import Decode, check_speed, decode_both, decoded_speedup, overlap
from pipeline.examination.step_timing import RoundsInTurn, Turns, timed_decoder
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY
from tests.fakes import TableModel, table_model


def _decoder(turns: Turns) -> Decoder:
    model = table_model(8, 1)
    return timed_decoder(model, PlainDraft(model, 8), turns, GREEDY, GREEDY, 8)


def _turns(limit: int, steps: int, requests: int = 8) -> Turns:
    given = [Request([1, 2], limit, seed) for seed in range(requests)]
    return Turns(requests=given, lengths=(4,), steps=steps, count=6)


def test_whole_rounds_are_decoded_until_there_are_tokens_enough() -> None:
    """A draft that is always right gives 5 tokens a round of 4: 15 where 12 are asked for; near the limit none are counted."""
    turns, short = _turns(40, 12), _turns(7, 6)
    found = decode_both(_decoder(turns), turns, turns.requests[0], 0, 4)
    assert (15, 12) == (found.tokens, found.plain_tokens)
    assert min(found.seconds, found.plain_seconds) > 0
    assert 5 == decode_both(_decoder(short), short, short.requests[1], 1, 4).tokens


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


@pytest.mark.parametrize(("requests", "speedup", "checked"), [(8, 1.0, True), (8, None, False)])
def test_a_check_has_both_numbers(requests: int, speedup: float | None, checked: bool) -> None:
    """Nothing is checked where nothing was computed."""
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


def _stopping(further: int) -> tuple[Decoder, Turns]:
    """Completions that stop at token 30, 19 tokens on, with a draft that is right up to there and never behind."""
    following_VW = 50 * torch.eye(90, dtype=torch.float64).roll(1, 1)
    wrong_VW = torch.cat([following_VW[:30], following_VW[30:].roll(1, 1)])
    given = [Request([1, 11], 90, seed) for seed in range(8 + further)]
    turns = Turns(requests=given[:8], further=given[8:], lengths=(4,), steps=64, count=6, stop_tokens=frozenset([30]))
    draft = PlainDraft(TableModel(wrong_VW[None]), 90)
    return timed_decoder(TableModel(following_VW[None]), draft, turns, GREEDY, GREEDY, 90), turns


def test_a_check_ends_where_completions_do() -> None:
    """As the examination does; with more requests until there are tokens enough. Turns go on."""
    decoder, turns = _stopping(further=40)
    both = decode_both(decoder, turns, turns.requests[0], 0, 4)
    assert (20, 19) == (both.tokens, both.plain_tokens)  # four rounds that are all right
    assert 64 == RoundsInTurn(decoder, turns.requests[0], 4).seconds(0, 64)[1]
    found = check_speed(decoder, turns, COMPUTED, 0.95)
    assert found is not None
    assert found.decoded is not None
    assert (27, 540) == (found.prompts, found.tokens)


@pytest.mark.parametrize(("further", "seconds"), [(3, inf), (40, 0.0)])
def test_too_little_to_check_with_is_said(further: int, seconds: float) -> None:
    """Nothing is contradicted: too few examination prompts, or no time for more."""
    found = check_speed(*_stopping(further), COMPUTED, 0.95, seconds)
    assert found is not None
    prompts = 8 + (further if seconds else 0)
    assert (None, True, prompts, 20 * prompts) == (found.decoded, found.agrees, found.prompts, found.tokens)


COMPUTED = DraftSpeed(gamma=4, tokens_per_second=Measured(1.0, 1.0, 1.0), speedup=Measured(1.0, 0.0001, 1000.0))
