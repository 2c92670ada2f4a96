"""Measures the seconds of a step of plain decoding, and of a round at each draft length, one request at a time.

The sides take turns within one decoding of each request, so that what else the machine does affects all of them, and none is
timed with cold caches: on a CPU the first round behind a prefill took twice as long as later ones, and so did the first steps of
plain decoding behind rounds. What the draft is worth, and which length is best, is not known here: only how long a round takes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from time import perf_counter
from typing import Any

from pipeline.acceptance.decoding_speed import LEAST_PROMPTS, LEAST_TOKENS, least_turns, too_few
from pipeline.config.evaluate import SpeedConfig
from pipeline.errors import UnderstudyError
from pipeline.examination.completion_sets import CompletionSets
from pipeline.models.stored_pair import Pair
from pipeline.speculation.batch import Request, Round
from pipeline.speculation.decoder import Decoder, Decoding
from pipeline.speculation.draft_length import Fixed
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_PLAIN = 0  # the draft length of plain decoding
_STEPS_PER_ROUND = 16  # a turn has so many steps of plain decoding, which all lengths are compared with, for each round
_LEAST_ROUNDS = 2
# Rounds behind a prefill, and steps of plain decoding behind a round, that are not counted: measured on a CPU.
_SETTLING = 8
_CHANGING = 2  # rounds that are not counted where only the draft length is another
_LEAST_STEPS = 16
_MOST_CHECKED = 128  # requests of a check by decoding
_MARGIN = 1.25  # of the seconds that are asked for: the next measurement finds another cost


@dataclass(frozen=True, kw_only=True)
class Turns:
    """What is decoded in each turn: for each request `steps` steps of plain decoding, and rounds at each of `lengths`."""

    requests: Sequence[Request]
    lengths: Sequence[int]
    steps: int
    count: int
    further: Sequence[Request] = ()  # in no turn: for a check that needs more
    stop_tokens: frozenset[int] = (
        frozenset()
    )  # at which a completion ends, and no turn does: a step takes as long behind one

    @property
    def rounds(self) -> int:
        return rounds_beside(self.steps)

    @property
    def tokens(self) -> int:
        """Tokens of plain decoding in a turn."""
        return self.steps * len(self.requests)


def rounds_beside(steps: int) -> int:
    """Rounds at each draft length, for each request that has so many steps of plain decoding."""
    return max(_LEAST_ROUNDS, steps // _STEPS_PER_ROUND)


def turns_of(sets: CompletionSets, speed: SpeedConfig, max_gamma: int, pair: Pair) -> Turns:
    """Requests that begin in the middle of a stored completion, with all that is before it as context: the first examination
    prompts of the deployment's completions that leave room for the longest round."""
    lengths = sorted({*(length for length in _LENGTHS if length <= max_gamma), max_gamma})
    longest = max(lengths)
    least = max(longest, speed.tokens) + 1  # one round of each length is whole, and so is plain decoding
    rounds = [(_SETTLING + rounds_beside(speed.tokens)) * (length + 1) for length in lengths]
    wanted = _SETTLING + speed.tokens + sum(rounds) + longest + 1  # all sides, in any order
    contexts = (
        [*completion.prompt.tolist(), *completion.tokens[: completion.length // 2].tolist()]
        for completion in sets.read(sets.deployed)
    )
    rooms = ((context, pair.context - len(context) - longest - 1) for context in contexts)
    fitting = ((context, room) for context, room in rooms if room >= least)
    most = max(speed.prompts, _MOST_CHECKED)
    all_requests = [
        Request(context, min(room, wanted), seed) for seed, (context, room) in enumerate(islice(fitting, most))
    ]
    requests, further = all_requests[: speed.prompts], all_requests[speed.prompts :]
    if not requests:
        raise UnderstudyError(
            f"no examination prompt leaves room for {least} tokens in the context of {pair.context}; lower "
            "evaluate.speed.tokens, or set evaluate.speed.turns to 0"
        )
    return Turns(
        requests=requests,
        lengths=lengths,
        steps=speed.tokens,
        count=speed.turns,
        further=further,
        stop_tokens=frozenset(pair.stop_tokens),
    )


def timed_decoder(
    target: Any, draft: LoadedDraft, turns: Turns, sampling: Sampling, draft_sampling: Sampling, vocabulary: int
) -> Decoder:
    """The decoder of all sides."""
    return Decoder(
        target, draft, sampling=sampling, draft_sampling=draft_sampling, vocabulary=vocabulary, gamma=max(turns.lengths)
    )


@dataclass(frozen=True)
class _Cost:
    """Seconds of a request in a turn, from one that was decoded by every side."""

    beside: float  # prefills and the like
    step: float
    rounds: float  # one at each length

    def of(self, steps: int) -> float:
        return self.beside + steps * self.step + rounds_beside(steps) * self.rounds


def within_seconds(decoder: Decoder, turns: Turns, most: float, confidence: float) -> tuple[Turns, float | None]:
    """`turns` with fewer turns, as long as they give an interval, then with fewer requests, then with fewer steps, so that
    measuring takes about `most` seconds; and the seconds that a speedup needs, if these leave too little for one."""
    cost = _cost(decoder, replace(turns, requests=turns.requests[:1], steps=min(turns.steps, _LEAST_STEPS)))
    count, requests, steps = turns.count, len(turns.requests), turns.steps
    if count * requests * cost.of(steps) <= most:
        return turns, None
    count = min(count, max(least_turns(confidence), int(most / (requests * cost.of(steps)))))
    requests = max(min(requests, LEAST_PROMPTS), min(requests, int(most / (count * cost.of(steps)))))
    while steps > _LEAST_STEPS and count * requests * cost.of(steps) > most:
        steps -= 1
    requests = min(requests, max(1, int(most / (count * cost.of(steps)))))
    further = [*turns.requests[requests:], *turns.further]
    fewer = replace(turns, requests=turns.requests[:requests], further=further, steps=steps, count=count)
    lacking, lacked = (too_few(len(some.requests), some.tokens) is not None for some in (fewer, turns))
    if lacked or not lacking:  # more seconds would not help
        return fewer, None
    steps = min(turns.steps, LEAST_TOKENS // LEAST_PROMPTS)  # steps are what is reduced last, after requests
    return fewer, _MARGIN * min(turns.count, least_turns(confidence)) * ceil(LEAST_TOKENS / steps) * cost.of(steps)


def _cost(decoder: Decoder, turn: Turns) -> _Cost:
    _turn(decoder, turn, 0)  # warm-up
    began = perf_counter()
    seconds = _turn(decoder, turn, 0)
    whole = perf_counter() - began
    step = seconds.pop(_PLAIN)
    rounds = sum(seconds.values())
    return _Cost(max(0.0, whole - turn.steps * step - turn.rounds * rounds), step, rounds)


def measure_step_times(
    decoder: Decoder, turns: Turns, turn_done: Callable[[], None] = lambda: None
) -> dict[int, list[float]]:
    """Mean seconds of a round by draft length, 0 for plain decoding, in each turn. `turn_done` is called after each turn."""
    times: dict[int, list[float]] = {length: [] for length in (_PLAIN, *turns.lengths)}
    for number in range(turns.count):
        for length, seconds in _turn(decoder, turns, number).items():
            times[length].append(seconds)
        turn_done()
    return times


def _turn(decoder: Decoder, turns: Turns, number: int) -> dict[int, float]:
    """Each request by every side, one after the other; no side always follows the same one."""
    sides = [_PLAIN, *turns.lengths]
    seconds, rounds = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0)
    for place, request in enumerate(turns.requests):
        first, decoding = (number + place) % len(sides), RoundsInTurn(decoder, request, max(sides))
        for length in sides[first:] + sides[:first]:
            spent, whole = decoding.seconds(length, turns.rounds if length else turns.steps)
            seconds[length] += spent
            rounds[length] += whole
    return {length: seconds[length] / rounds[length] for length in sides}


@dataclass(frozen=True)
class _OneOf(Fixed):
    """gamma tokens, in a batch with room for other lengths too."""

    longest: int = 0

    @property
    def most(self) -> int:
        return self.longest


class RoundsInTurn:
    """Rounds of one request at one draft length after another, in one decoding; in a further one where its limit is reached."""

    def __init__(self, decoder: Decoder, request: Request, longest: int) -> None:
        self.decoder, self.request, self.longest = decoder, request, longest
        self._decoding: Decoding | None = None
        self._rounds: Iterator[Round] = iter(())

    def seconds(self, length: int, most: int) -> tuple[float, int]:
        """Seconds and number of up to `most` rounds that draft all of `length` tokens; near the limit they are shorter, and not
        counted. Fewer where the request has no room for one."""
        self.decoder.length, self.decoder.stop_tokens = _OneOf(length, self.longest), frozenset()
        spent, whole, room = 0.0, 0, True
        uncounted = _CHANGING if length else _SETTLING
        while whole < most:
            if self._decoding is None:
                if not room:
                    break
                self._rounds = iter(())  # which has the caches of the last decoding
                self._decoding = Decoding(self.decoder, [self.request])
                self._rounds, room = iter(self._decoding), False
                fitting = self.request.limit // (length + 1) - (most - whole)
                uncounted = max(0, min(_SETTLING, fitting))
            before = self._taken()
            round_ = next(self._rounds, None)
            if round_ is None or round_.drafted[0] < length:
                self._decoding = None
            elif uncounted:
                uncounted -= 1
            else:
                spent, whole, room = spent + self._taken() - before, whole + 1, True
        return spent, whole

    def _taken(self) -> float:
        assert self._decoding is not None
        taken = self._decoding.completions[0].seconds
        return taken.total - taken.prefill
