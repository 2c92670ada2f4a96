"""Rules for the number of tokens to draft: where they stop, when they change, and that no output depends on them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pipeline.errors import UsageError
from pipeline.speculation.batch import Request, Round
from pipeline.speculation.decoder import Decoding
from pipeline.speculation.draft_length import Certain, Confident, DraftLength, Fallback, Fixed, LengthSchedule
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import TableModel, decoder_of, greedy_along, greedy_text, ragged_requests, tiny_pair

VOCABULARY = 32


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return tiny_pair(11, 0.08)


def _logits(*rows: Sequence[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_confident_goes_on_from_its_threshold_upward() -> None:
    """The likeliest token's mass decides, whatever the temperature: at the threshold a row drafts on, just below it does
    not."""
    logits_BV = _logits([0.5, 0.3, 0.2], [0.49, 0.48, 0.03], [1.0, 0.0, 0.0], [0.1, 0.1, 0.8])

    assert [True, False, True, True] == Confident(4, least=0.5).go_on(logits_BV).tolist()
    assert Confident(4, least=0.5).go_on(torch.full((1, 2), math.nan)).tolist() == [False]


def test_certain_goes_on_up_to_its_entropy() -> None:
    """The square root of the entropy in nats decides; tokens without mass add none, and one sure token has none."""
    logits_BV = _logits([0.5, 0.5, 0.0], [0.6, 0.4, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3])

    assert [True, True, True, False] == Certain(4, limit=math.sqrt(math.log(2)) + 1e-6).go_on(logits_BV).tolist()
    assert [False, True, True, False] == Certain(4, limit=math.sqrt(math.log(2)) - 1e-6).go_on(logits_BV).tolist()
    assert [False, False, True, False] == Certain(4, limit=0.0).go_on(logits_BV).tolist()


@pytest.mark.parametrize("rule", [Confident(4, least=0.7), Certain(4, limit=0.78)], ids=["confident", "certain"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
def test_a_block_ends_with_the_first_token_that_was_not_sure(rule: DraftLength, sampling: Sampling) -> None:
    """Each row drafts up to and with the token that came from unsure logits, never past its room, whatever the rows beside
    it do: certainty that comes back later counts for nothing."""
    # By position: sure of token 1 (mass 0.9) or not (0.6).
    sure = [True, True, False, True, True, True, False, False, True, True, True, True]
    table_PVW = torch.stack([_logits([0.1, 0.9] if is_sure else [0.4, 0.6]).expand(2, 2) for is_sure in sure])
    requests = [Request([1] * length, 9, length) for length in range(1, 7)] + [Request([1] * 9, 2, 0)]
    decoder = decoder_of(TableModel(table_PVW), TableModel(table_PVW), rule, sampling, vocabulary=2)
    round_ = next(iter(Decoding(decoder, requests)))

    # The prompt of length n is followed by what position n - 1 says.
    assert [3, 2, 1, 4, 3, 2, 1] == round_.drafted


RULES: dict[str, Callable[[], DraftLength]] = {
    "confident": lambda: Confident(4, least=0.14),
    "certain": lambda: Certain(4, limit=1.73),
    "schedule": lambda: LengthSchedule(((1, 1, 4), (2, 3, 2), (4, 6, 0))),
    "fallback": lambda: Fallback(Fixed(4), break_even=0.95, window=6, patience=2),
    "fallback, confident": lambda: Fallback(Confident(4, least=0.14), 0.6, window=5, margin=0.0, patience=2),
}


@pytest.mark.parametrize(
    ("rule", "batch", "llama_forward"),
    [*((rule, 5, True) for rule in RULES), *((rule, 1, True) for rule in RULES), ("fallback, confident", 5, False)],
)
def test_no_rule_changes_the_output(pair: tuple[Any, Any], rule: str, batch: int, llama_forward: bool) -> None:
    """In fp64, ragged rows: the text is the target's; what was drafted is within the rule's most and the row's room."""
    requests = [Request(r.prompt, 12 + r.limit, r.seed) for r in ragged_requests(batch)]
    decoder = decoder_of(pair[0], pair[1], RULES[rule](), llama_forward=llama_forward)
    drafted: set[int] = set()
    for request, completion in zip(requests, decoder.decode(requests), strict=True):
        tokens = completion.tokens
        assert greedy_text(pair[0], request.prompt, request.limit, VOCABULARY, guess=tokens) == tokens
        left = request.limit
        for count, accepted in zip(completion.drafted, completion.accepted, strict=True):
            assert accepted <= count <= min(4, left - 1)
            left -= accepted + 1
        drafted |= set(completion.drafted)

    assert len(drafted) > 2 or batch == 1 < len(drafted)


@pytest.mark.parametrize("rule", ["confident", "certain"])
def test_a_row_drafts_what_it_would_draft_alone(pair: tuple[Any, Any], rule: str) -> None:
    """Sampled, among rows that stop earlier or later: text, lengths and acceptances are those of the row by itself."""
    requests = ragged_requests(6)
    decoder = decoder_of(pair[0], pair[1], RULES[rule](), Sampling(), verification="block")

    assert [decoder.decode([request])[0] for request in requests] == decoder.decode(requests)


def test_a_schedule_reads_its_row() -> None:
    """By sequences running, both ends included; beyond the last row, and without any row, none."""
    schedule = LengthSchedule(((1, 4, 5), (5, 16, 2), (17, 64, 0)))

    assert [5, 5, 2, 2, 0, 0, 0] == [schedule.tokens(running) for running in (1, 4, 5, 16, 17, 64, 65)]
    assert (5, 0, 0) == (schedule.most, LengthSchedule(()).most, LengthSchedule(()).tokens(1))


@pytest.mark.parametrize(
    "rows", [((2, 4, 5),), ((1, 4, 5), (6, 8, 2)), ((1, 4, 5), (4, 8, 2)), ((1, 0, 5),), ((1, 4, -1),)], ids=str
)
def test_a_schedule_with_gaps_is_a_usage_error(rows: tuple[tuple[int, int, int], ...]) -> None:
    """A late start, a gap, an overlap, an empty row and a negative length are named."""
    with pytest.raises(UsageError, match="schedule row"):
        LengthSchedule(rows)


def test_a_schedule_follows_the_batch(pair: tuple[Any, Any]) -> None:
    """Nothing is drafted while many run; as rows leave, the draft sees their text for the first time and joins in."""
    requests = [Request([1 + n], 5 + 5 * n, n) for n in range(4)]
    decoder = decoder_of(pair[0], pair[1], LengthSchedule(((1, 2, 3),)))
    rounds: list[Round] = []
    completions = decoder.decode(requests, rounds.append)

    assert {0} == {most for round_ in rounds if len(round_.numbers) > 2 for most in round_.drafted}
    assert 3 == max(most for round_ in rounds if len(round_.numbers) <= 2 for most in round_.drafted)
    for request, completion in zip(requests, completions, strict=True):
        tokens = completion.tokens
        assert greedy_text(pair[0], request.prompt, request.limit, VOCABULARY, guess=tokens) == tokens


def _feed(fallback: Fallback, accepted: int, rejected: int, rounds: int = 1) -> None:
    """Rounds in which so many rows stood whole (one token) and so many fell."""
    for _ in range(rounds):
        fallback.learn([1] * (accepted + rejected), [1] * accepted + [0] * rejected)


def _play(fallback: Fallback, rounds: int, stood: int = 1) -> list[int]:
    """Rounds of one row; where it drafts, `stood` of 1 token is accepted. Returns what was drafted."""
    seen = []
    for _ in range(rounds):
        seen.append(fallback.tokens(1))
        fallback.learn([min(seen[-1], 1)], [min(seen[-1], stood)])
    return seen


def test_fallback_goes_down_step_by_step_and_comes_back_by_probing() -> None:
    """Full, half, off; off, every third round probes with half a block; good probes bring half, then the full length."""
    told: list[str] = []
    fallback = Fallback(Fixed(5), break_even=0.5, window=4, margin=0.1, patience=3, on_change=told.append)

    assert math.isnan(fallback.rate)
    assert [5, 5, 5, 5, 2, 2, 2, 2, 0, 0, 2, 0, 0, 2] == _play(fallback, 14, stood=0)
    assert (2, 0.0) == (fallback.level, fallback.rate)
    # Two bad probes are in the window still: with three good ones it is at 3 of 4.
    assert [0, 0, 2] * 3 + [2, 2, 2, 2] + [5] * 12 == _play(fallback, 25)
    assert (0, 1.0) == (fallback.level, fallback.rate)
    assert [line.split(":")[0] for line in told] == [
        "half the draft length",
        f"speculation off, with a probe round every {fallback.patience} rounds",
        "half the draft length",
        "full draft length",
    ]
    assert told[0].endswith(
        "the acceptance rate of the last 4 verified draft tokens was 0.00, below the threshold of 0.50"
    )


@pytest.mark.parametrize("level", [0, 1, 2])
def test_fallback_stays_where_it_is_between_break_even_and_margin(level: int) -> None:
    """At exactly break-even, and anywhere below the margin, nothing changes: no step down, no step up, no oscillation."""
    changes: list[str] = []
    for accepted in (2, 3):  # of 4: 0.5, and 0.75 just below the margin
        fallback = Fallback(Fixed(4), 0.5, window=4, margin=0.26, patience=2, on_change=changes.append, level=level)
        for _ in range(40):
            fallback.learn([1] * 4, [1] * accepted + [0] * (4 - accepted))
        assert (level, accepted / 4) == (fallback.level, fallback.rate)
    assert [] == changes


def test_one_draft_token_is_not_halved() -> None:
    """With gamma 1 the first step down switches speculation off, and the first step up switches it on."""
    changes: list[str] = []
    fallback = Fallback(Fixed(1), window=4, patience=2, on_change=changes.append)
    assert [1] * 4 + [0, 1, 0, 1] == _play(fallback, 8, stood=0)
    _play(fallback, 20)

    assert 0 == fallback.level
    assert 2 == len(changes)


def test_the_window_counts_examined_tokens() -> None:
    """Accepted ones and first rejections; what lay behind a rejection, and rows that drafted nothing, say nothing. Old
    rounds leave the window as soon as the rest fills it."""
    fallback = Fallback(Fixed(5), break_even=0.0, window=10)
    fallback.learn([5, 5, 0], [2, 5, 0])
    assert 7 / 8 == fallback.rate
    fallback.learn([0, 0, 0], [0, 0, 0])
    assert 7 / 8 == fallback.rate
    fallback.learn([5], [0])
    assert 7 / 9 == fallback.rate
    fallback.learn([4, 4, 4], [3, 3, 0])
    assert 6 / 10 == fallback.rate
    for _ in range(1000):
        fallback.learn([5], [1])
    assert 5 == len(fallback._rounds)  # of two examined tokens each: nothing grows


def test_asking_costs_no_probe() -> None:
    """`tokens` only says what the coming round may draft: asked twice, or before a round without room, it says the same."""
    fallback = Fallback(Fixed(4), patience=3, level=2)
    fallback.learn([0], [0])
    fallback.learn([0], [0])

    assert [2] * 5 == [fallback.tokens(1) for _ in range(5)]
    fallback.learn([0], [0])  # there was no room
    assert 2 == fallback.tokens(1)
    fallback.learn([2], [1])
    assert 0 == fallback.tokens(1)


def test_fallback_keeps_to_its_inner_rule() -> None:
    """Half of one token is one; where the inner rule drafts nothing there is nothing to halve or to probe."""
    schedule = LengthSchedule(((1, 1, 1), (2, 4, 0)))

    assert [1, 1, 1] == [Fallback(schedule, level=level, patience=1).tokens(1) for level in range(3)]
    assert [0, 0, 0] == [Fallback(schedule, level=level, patience=1).tokens(3) for level in range(3)]
    assert Fallback(Confident(3, 0.5)).go_on(_logits([0.4, 0.6])).tolist() == [True]


@pytest.mark.parametrize("settings", [{"window": 0}, {"patience": 0}, {"margin": -0.1}], ids=str)
def test_fallback_settings_are_checked(settings: dict[str, Any]) -> None:
    """An empty window, a probe that never comes or always, and a negative hysteresis are usage errors."""
    with pytest.raises(UsageError, match="fallback"):
        Fallback(Fixed(2), **settings)


@pytest.mark.parametrize("llama_forward", [True, False], ids=["llama_forward", "own"])
def test_a_decode_that_falls_back_and_recovers(pair: tuple[Any, Any], llama_forward: bool) -> None:
    """A draft that is damaged for a while is switched off, probed, and switched on again; the text is the target's."""
    requests = [Request(r.prompt, 70, r.seed) for r in ragged_requests(4)]
    told: list[str] = []
    fallback = Fallback(Fixed(4), 0.1, window=12, margin=0.1, patience=3, on_change=told.append)
    decoder = decoder_of(pair[0], pair[1], fallback, llama_forward=llama_forward)
    side = decoder.draft.forward
    sound = side.forward
    decoding = Decoding(decoder, requests)
    levels, zeros = [], []
    for rounds, round_ in enumerate(decoding, start=1):
        if rounds == 1:
            side.forward = lambda *args: -sound(*args)
        if rounds == 14:
            side.forward = sound
        levels.append(fallback.level)
        zeros.append(max(round_.drafted) == 0)
    said = [completion.tokens for completion in decoding.completions]
    paired = zip(requests, said, strict=True)

    assert [greedy_text(pair[0], r.prompt, r.limit, VOCABULARY, guess=tokens) for r, tokens in paired] == said
    assert [0, 1, 2, 1, 0] == [level for at, level in enumerate(levels) if at == 0 or levels[at - 1] != level]
    assert any(zeros)
    assert 4 == len(told)


class _Scripted:
    """Drafts so many tokens in each round as it is told, over and over."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.round, self.most = script, 0, max(script)

    def tokens(self, running: int) -> int:
        return self.script[self.round % len(self.script)]

    def go_on(self, logits_BV: torch.Tensor) -> None:
        return None

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        self.round += 1


@pytest.mark.parametrize(
    ("script", "llama_forward"),
    [((0, 3), True), ((3, 0, 3, 0, 0, 2), True), ((0, 0, 0, 0, 1, 3), True), ((3, 0, 3, 0, 0, 2), False)],
    ids=str,
)
def test_a_draft_switched_off_knows_what_it_missed(
    pair: tuple[Any, Any], script: tuple[int, ...], llama_forward: bool
) -> None:
    """Off for one round or for many, rows ragged: in each round exactly those tokens stand that the draft would have said
    by full passes over the whole text, so its cache holds the text, all of it."""
    target, draft = pair
    requests = [Request(r.prompt, 26 + r.limit, r.seed) for r in ragged_requests(5)]
    decoder = decoder_of(pair[0], pair[1], _Scripted(script), llama_forward=llama_forward)
    for request, completion in zip(requests, decoder.decode(requests), strict=True):
        tokens = completion.tokens
        assert greedy_text(target, request.prompt, request.limit, VOCABULARY, guess=tokens) == tokens
        proposed = greedy_along(draft, request.prompt, tokens, VOCABULARY)  # up to the first that differs in a round
        at = 0
        for drafted, accepted in zip(completion.drafted, completion.accepted, strict=True):
            pairs = zip(proposed[at : at + drafted], tokens[at : at + drafted], strict=True)
            assert [*(one == other for one, other in pairs), False].index(False) == accepted
            at += accepted + 1


def test_a_fallback_comes_back_within_a_few_hundred_rounds() -> None:
    """While drafting is off, 32 examined tokens of probes decide, not the 200 of the full window."""
    fallback = Fallback(Fixed(5), level=2)
    rounds = 0
    while fallback.level == 2:
        count = fallback.tokens(1)
        fallback.learn([count], [count])
        rounds += 1

    assert 16 * 16 == rounds  # a probe of 2 tokens in 16 rounds


def test_a_high_threshold_can_be_reached() -> None:
    """The rate that brings a length back is at most 1, whatever threshold and margin add up to."""
    fallback = Fallback(Fixed(4), break_even=0.98, window=4, patience=1, level=1)
    _play(fallback, 8)

    assert 0 == fallback.level
