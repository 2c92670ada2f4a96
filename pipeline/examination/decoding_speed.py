"""Measured tokens per second of a target alone and with drafts, one request at a time, in interleaved turns.

The sides take turns, so that what else the machine does affects all of them, and a speedup is a ratio within one turn. Which
drafts are compared, and what follows from the figures, is not known here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from statistics import median
from time import perf_counter
from typing import Any

from pipeline.acceptance.decoding_speed import DraftSpeed, Measured
from pipeline.acceptance.turns import of_turns, speed_of_turns
from pipeline.config.evaluate import SpeedConfig
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UnderstudyError
from pipeline.examination.completion_sets import CompletionSets
from pipeline.models.stored_pair import Pair
from pipeline.speculation.batch import Completion, Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.draft_length import Fixed
from pipeline.speculation.settings import Sampling
from pipeline.speculation.statistics import Statistics, count

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # that are tried
_TRIAL_PROMPTS = 2
_USUAL_TRIALS = 5  # lengths that are tried for a draft, mostly
_LEAST_TOKENS = 16  # of a completion: the first rounds of a decode are not those of a long one
EQUAL_PASS = 1.5  # the most by which the times per draft token of two drafts of equal size and length differ


@dataclass(frozen=True)
class TimedDraft:
    """A loaded draft. `tokens_per_round`: the examined mean acceptance length, by draft length."""

    model: Any
    parameters: int
    tokens_per_round: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Decodes:
    """What is decoded: the same requests on every side and in every turn."""

    requests: Sequence[Request]
    sampling: Sampling  # of the target
    draft_sampling: Sampling
    vocabulary: int
    stop_tokens: Sequence[int]
    turns: int
    confidence: float


def some_decodes(
    sets: CompletionSets, speed: SpeedConfig, draft_sampling: Sampling, confidence: float, pair: Pair
) -> Decodes:
    """The first examination prompts of the deployment's completions that leave room for `speed.tokens`."""
    deployed = sets.deployed
    room = pair.context - max(LENGTHS) - 1
    prompts = (one.prompt.tolist() for one in sets.read(deployed) if len(one.prompt) + speed.tokens <= room)
    requests = [Request(prompt, speed.tokens, seed) for seed, prompt in enumerate(islice(prompts, speed.prompts))]
    if not requests:
        raise UnderstudyError(
            f"no examination prompt leaves room for {speed.tokens} tokens in the context of {pair.context}; lower "
            "evaluate.speed.tokens, or set evaluate.speed.turns to 0"
        )
    return Decodes(
        requests=requests,
        sampling=deployed,
        draft_sampling=draft_sampling,
        vocabulary=pair.vocabulary,
        stop_tokens=pair.stop_tokens,
        turns=speed.turns,
        confidence=confidence,
    )


def within_seconds(target: Any, decodes: Decodes, drafts: int, most: float) -> Decodes:
    """`decodes` with fewer prompts, then with shorter completions, so that measuring `drafts` drafts takes about `most` seconds.
    The first request's plain decode measures the time of a token; one with a draft is taken to cost as much."""
    plain, first = _decoder(target, None, 0, decodes), decodes.requests[:1]
    _turn(plain, first)  # warm-up
    seconds, statistics = _turn(plain, first)
    times_decoded = decodes.turns * (drafts + 1) + drafts * _USUAL_TRIALS * _TRIAL_PROMPTS  # of a prompt
    affordable = most * statistics.tokens / seconds / times_decoded  # tokens of all prompts
    tokens = min(decodes.requests[0].limit, max(_LEAST_TOKENS, int(affordable)))
    requests = decodes.requests[: max(1, int(affordable / tokens))]
    return replace(decodes, requests=[replace(request, limit=tokens) for request in requests])


@dataclass
class _Side:
    """One decoder with its turns."""

    decoder: Decoder
    rates: list[float] = field(default_factory=list)  # tokens per second, by turn
    draft_seconds: list[float] = field(default_factory=list)  # per draft token, by turn


def measure_speeds(
    target: Any, drafts: Mapping[str, TimedDraft], decodes: Decodes, turn_done: Callable[[], None] = lambda: None
) -> tuple[Measured, dict[str, DraftSpeed]]:
    """Tokens per second of plain decoding, and of decoding with each of `drafts`, each at its best examined draft length.

    A speedup is the median over turns, as in `speed_of_turns`. It is not measurable either where the times per draft token of
    drafts of equal size differ by more than EQUAL_PASS and than their lengths explain: then they say more about the machine.
    `turn_done` is called after each turn of all sides.
    """
    plain = _Side(_decoder(target, None, 0, decodes))
    sides = {name: _Side(_at_best_length(target, draft, decodes)) for name, draft in drafts.items()}
    order = [plain, *sides.values()]
    for side in order:  # warm-up
        _turn(side.decoder, decodes.requests[:1])
    for turn in range(decodes.turns):
        first = turn % len(order)  # no side always follows the same one
        for side in order[first:] + order[:first]:
            seconds, statistics = _turn(side.decoder, decodes.requests)
            side.rates.append(statistics.tokens / seconds)
            side.draft_seconds.append(statistics.seconds.draft / max(statistics.drafted, 1))
        turn_done()
    unequal = _unequal_passes(drafts, sides)
    found = {
        name: speed_of_turns(side.rates, plain.rates, side.decoder.length.most, decodes.confidence)
        for name, side in sides.items()
    }
    if unequal is not None:
        found = {name: replace(speed, speedup=None, not_measurable=unequal) for name, speed in found.items()}
    return of_turns(plain.rates, decodes.confidence), found


def _decoder(target: Any, draft: Any | None, gamma: int, decodes: Decodes) -> Decoder:
    return Decoder(
        target,
        None if draft is None else PlainDraft(draft, decodes.vocabulary),
        sampling=decodes.sampling,
        draft_sampling=decodes.draft_sampling,
        vocabulary=decodes.vocabulary,
        gamma=gamma,
        stop_tokens=decodes.stop_tokens,
    )


def _turn(decoder: Decoder, requests: Sequence[Request]) -> tuple[float, Statistics]:
    """Seconds of decoding the requests one after the other, and what was counted."""
    began, completions = perf_counter(), list[Completion]()
    for request in requests:
        completions += decoder.decode([request])
    return perf_counter() - began, count(completions)


def _at_best_length(target: Any, draft: TimedDraft, decodes: Decodes) -> Decoder:
    """A decoder at the draft length with the most tokens per second: examined tokens per round, which are exact, over measured
    seconds per round. Longer lengths are tried until two in a row are slower than the best."""
    lengths = [length for length in LENGTHS if length in draft.tokens_per_round]
    decoder = _decoder(target, draft.model, max(lengths), decodes)
    requests, rates = decodes.requests[:_TRIAL_PROMPTS], dict[int, float]()
    for length in lengths:
        decoder.length = Fixed(length)
        _turn(decoder, requests[:1])
        rates[length] = draft.tokens_per_round[length] / _round_seconds(_turn(decoder, requests)[1], length)
        if [rate < max(rates.values()) for rate in [*rates.values()][-2:]] == [True, True]:
            break
    decoder.length = Fixed(max(rates, key=lambda length: rates[length]))
    return decoder


def _round_seconds(statistics: Statistics, length: int) -> float:
    """Of a round that drafts all of `length` tokens: near the end of a completion rounds are shorter."""
    seconds = statistics.seconds
    return length * seconds.draft / statistics.drafted + (seconds.verify + seconds.rest) / statistics.rounds


def _unequal_passes(drafts: Mapping[str, TimedDraft], sides: Mapping[str, _Side]) -> str | None:
    """Why times cannot be compared, where drafts of equal size took unequal times."""
    for (one, a), (other, b) in pairwise(drafts.items()):
        first, second = (median(sides[name].draft_seconds) for name in (one, other))
        shorter, longer = sorted(sides[name].decoder.length.most for name in (one, other))
        # What a round takes once is shared by its draft tokens: at different lengths alone it makes up to this much.
        explained = EQUAL_PASS * longer / shorter
        if a.parameters == b.parameters and max(first, second) > explained * min(first, second):
            return (
                f"the drafts have the same size, but a draft token took {1000 * first:.2f} ms with the {one} draft and "
                f"{1000 * second:.2f} ms with the {other}"
            )
    return None
