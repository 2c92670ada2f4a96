"""Measured seconds of decoding steps, by turn, and the tokens per second that follow from them. Imports nothing heavy.

Step times belong to the shapes of two models and to a machine. Tokens per round belong to a draft, and are examined. A speedup
needs both, so drafts of equal shape differ by their acceptance alone.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import Field

from pipeline.acceptance.decoding_speed import DecodingSpeed, DraftSpeed
from pipeline.acceptance.turns import of_turns, speed_of_turns
from pipeline.store.files import write_json
from pipeline.store.parsing import Count, CountKey, Number, Text, format_of, stored

FILE = "step_times.json"
_Seconds = list[Annotated[Number, Field(gt=0)]]


@stored(
    name="measured step times",
    schema=1,
    remedy="measure them again (`understudy run` with the same config)",
)
class StepTimes:
    """Mean seconds of a step of plain decoding, and of a round at each draft length, in each turn; one request at a time."""

    device: Text
    prompts: Count
    tokens: Count  # steps of plain decoding in a turn, for all prompts
    plain: _Seconds
    rounds: dict[CountKey, _Seconds]

    @property
    def turns(self) -> int:
        return len(self.plain)


def _check(times: StepTimes) -> None:
    """ValueError for times without a turn or a length, or of unequal turns."""
    if not times.plain or not times.rounds:
        raise ValueError("no turns, or no draft lengths")
    if any(len(seconds) != times.turns for seconds in times.rounds.values()):
        raise ValueError("rounds: as many seconds as in `plain` are needed for each draft length")


def write_step_times(directory: Path, times: StepTimes) -> None:
    write_json(directory / FILE, asdict(times))


def find_step_times(directory: Path) -> StepTimes | None:
    """None where there is no such file. UnderstudyError naming the file if it is damaged."""
    return format_of(StepTimes, _check).find(directory / FILE)


def draft_speed(times: StepTimes, tokens_per_round: Mapping[int, float], confidence: float) -> DraftSpeed:
    """Decoding with a draft of this shape, at the draft length with the most tokens per second. `tokens_per_round`: its examined
    mean acceptance length, of every length that was timed."""
    rates = {length: [tokens_per_round[length] / one for one in seconds] for length, seconds in times.rounds.items()}
    best = max(rates, key=lambda length: median(rates[length]))
    return speed_of_turns(rates[best], [1 / one for one in times.plain], best, confidence)


def decoding_speed(
    times: StepTimes, candidate: DraftSpeed, baseline: DraftSpeed | None, confidence: float
) -> DecodingSpeed:
    """What people see. `times`: those with the candidate."""
    return DecodingSpeed(
        device=times.device,
        prompts=times.prompts,
        tokens=times.tokens,
        turns=times.turns,
        confidence=confidence,
        plain=of_turns([1 / one for one in times.plain], confidence),
        baseline=baseline,
        candidate=candidate,
    )
