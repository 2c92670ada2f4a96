"""Recorded answers of the deployment as completions of the target: which are used, and the tokens of each. Torch-free."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.corpus.answer_store import StoredAnswers
from pipeline.errors import UnderstudyError
from pipeline.generation.completion_store import canonical
from pipeline.speculation.settings import Sampling

_FEWEST, _SHARE = 32, 0.2  # answers that are not the target's, before the log is refused


@dataclass(frozen=True)
class LoggedCompletion:
    """A recorded answer: N tokens, up to a stop token or a length limit."""

    tokens_N: NDArray[np.int32]
    stopped: bool


class NotOfTarget(Exception):
    """A recorded answer has a token that the target cannot have chosen at these sampling settings."""


class LoggedAnswers:
    """The recorded answers by prompt, as completions of at most `max_new_tokens` tokens at the deployment's sampling."""

    def __init__(
        self,
        stored: StoredAnswers,
        sampling: Sampling,
        max_new_tokens: int,
        stop_tokens: Collection[int],
        vocabulary: int,
    ) -> None:
        self._stored, self._sampling = stored, canonical(sampling)
        self._limit, self._stops, self._vocabulary = max_new_tokens, np.array(sorted(stop_tokens)), vocabulary

    def get(self, prompt: str, sampling: Sampling, number: int = 0) -> LoggedCompletion | None:
        """The completion `number` of a prompt (its id); None where the target has to be asked: there is none, other sampling
        settings, a token that the pair does not share, or an end that is neither a stop token nor a limit."""
        if canonical(sampling) != self._sampling or number:
            return None
        answer = self._stored.get(prompt)
        if answer is None or self._differs(answer.stated):
            return None
        tokens_N = np.array(answer.tokens, dtype=np.int32)
        stops = np.flatnonzero(np.isin(tokens_N, self._stops))
        if len(stops):
            tokens_N = tokens_N[: stops[0] + 1]
        stopped = len(stops) > 0 and len(tokens_N) <= self._limit
        if not stopped and not answer.cut and len(tokens_N) <= self._limit:
            return None
        tokens_N = tokens_N[: self._limit]
        if tokens_N.min() < 0 or tokens_N.max() >= self._vocabulary:
            return None
        return LoggedCompletion(tokens_N, stopped)

    def _differs(self, stated: Mapping[str, float]) -> bool:
        """Whether a request of the log was sampled with other settings. At temperature 0 the filters have no effect."""
        names = ("temperature",) if self._sampling.greedy else stated
        return any(stated.get(name, getattr(self._sampling, name)) != getattr(self._sampling, name) for name in names)


@dataclass
class LoggedCounts:
    """Recorded answers of a run: those that are stored, and those that are not the target's, whose prompts it answers again."""

    used: int = 0
    not_of_target: int = 0

    def check(self) -> None:
        """UnderstudyError if so many answers are not the target's that the log is of another one."""
        total = self.used + self.not_of_target
        if total >= _FEWEST and self.not_of_target > _SHARE * total:
            raise UnderstudyError(
                f"{self.not_of_target:,} of {total:,} recorded answers have tokens that the target does not choose at "
                "`sampling`; the log is of other weights, settings or another chat template: shorten the window "
                "(corpus.sources.N.since), or set use_answers to false"
            )
