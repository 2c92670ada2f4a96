"""Recorded answers of the deployment as completions of the target: which are used, and the tokens of each. Torch-free."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answer_store import StoredAnswer, StoredAnswers
from pipeline.corpus.answers import differing
from pipeline.errors import UsageError
from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.completion_store import StoredCompletion, canonical
from pipeline.speculation.settings import Sampling

NEAR_TIE = 0.25  # nats; two batches in bfloat16 differ by less


@dataclass(frozen=True)
class LoggedCompletion:
    """A recorded answer: N tokens, up to a stop token or a length limit."""

    tokens_N: NDArray[np.int32]
    stopped: bool
    exact: bool  # the log has the token ids; else its text was tokenised again
    is_answer: bool = True  # of the target, which is tested; else a prompt's own tokens


class NotOfTarget(Exception):
    """A recorded answer has a token that the target cannot have chosen at these sampling settings. `by_rounding`: it nearly can,
    so that rounding may explain it."""

    def __init__(self, by_rounding: bool = False) -> None:
        super().__init__()
        self.by_rounding = by_rounding


class Recorded:
    """Completions whose tokens are known, so that the target only scores them."""

    def get(self, prompt: str, sampling: Sampling, number: int = 0) -> LoggedCompletion | None:
        """The completion `number` of a prompt (its id); None where the target has to be asked."""
        raise NotImplementedError

    def of_requests(self, requests: Sequence[CompletionRequest]) -> dict[int, LoggedCompletion]:
        """The completions by the number of the request; the target has to complete the others."""
        completions = (
            (number, self.get(request.prompt.id, request.sampling, request.number))
            for number, request in enumerate(requests)
        )
        return {number: answer for number, answer in completions if answer is not None}


class LoggedAnswers(Recorded):
    """The recorded answers by prompt, as completions of at most `max_new_tokens` tokens at the deployment's sampling."""

    def __init__(
        self,
        stored: StoredAnswers,
        sampling: Sampling,
        max_new_tokens: int,
        stop_tokens: Collection[int],
        vocabulary: int,
    ) -> None:
        self._stored, self.sampling = stored, canonical(sampling)
        self._limit, self._stops, self._vocabulary = max_new_tokens, np.array(sorted(stop_tokens)), vocabulary

    def get(self, prompt: str, sampling: Sampling, number: int = 0) -> LoggedCompletion | None:
        if canonical(sampling) != self.sampling or number:
            return None
        return self.completion(prompt)[0]

    def completion(self, prompt: str) -> tuple[LoggedCompletion | None, str]:
        """The answer to a prompt (its id) at the deployment's sampling, else why it cannot be used; None and "" where there is
        none."""
        answer = self._stored.get(prompt)
        return (None, "") if answer is None else self._as_completion(answer)

    def require_usable(self) -> None:
        """UsageError if no answer can be used: before the target answers all prompts again, which has its price."""
        reasons = Counter[str]()
        for answer in self._stored:
            completion, reason = self._as_completion(answer)
            if completion is not None:
                return
            reasons[reason] += 1
        raise UsageError(
            f"none of {reasons.total():,} recorded answers can be used:{_listed(reasons)}; set `sampling` to that of the log's "
            "requests, or corpus.sources.N.use_answers to false"
        )

    def _as_completion(self, answer: StoredAnswer) -> tuple[LoggedCompletion | None, str]:
        try:
            return self._completion(answer), ""
        except UnusableAnswer as reason:
            return None, str(reason)

    def _completion(self, answer: StoredAnswer) -> LoggedCompletion:
        """UnusableAnswer for other sampling settings, a token that the pair does not share, or an end that is neither a stop
        token nor a limit."""
        if differs := differing(answer.stated, self.sampling):
            raise UnusableAnswer(differs)
        tokens_N = np.array(answer.tokens, dtype=np.int32)
        stops = np.flatnonzero(np.isin(tokens_N, self._stops))
        if len(stops):
            tokens_N = tokens_N[: stops[0] + 1]
        stopped = len(stops) > 0 and len(tokens_N) <= self._limit
        if not stopped and not answer.cut and len(tokens_N) <= self._limit:
            raise UnusableAnswer("without a stop token at the end or finish_reason `length`")
        tokens_N = tokens_N[: self._limit]
        if tokens_N.min() < 0 or tokens_N.max() >= self._vocabulary:
            raise UnusableAnswer("with a token that the pair does not share")
        return LoggedCompletion(tokens_N, stopped, answer.exact)


@dataclass
class AnswerCounts:
    """Recorded answers to some prompts: those that are stored as completions, and those that are not, by reason."""

    used: int = 0
    unused: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """The reasons with their counts, for messages; empty without any."""
        return f"; not used:{_listed(self.unused)}" if self.unused else ""


def count_answers(
    logged: LoggedAnswers, prompts: Iterable[str], completions: Iterable[StoredCompletion]
) -> AnswerCounts:
    """`prompts`: ids. `completions`: those at the deployment's sampling, in stored order: of one prompt, one after another."""
    counts, last, asked = AnswerCounts(), "", Counter[bool]()
    for item in completions:
        if item.id == last:  # a further one of the same prompt
            continue
        last = item.id
        answer, _ = logged.completion(item.id)
        if answer is not None:
            asked[True] += 1
            if np.array_equal(answer.tokens_N, item.tokens[: item.length]):
                counts.used += 1
            else:
                counts.unused["with tokens that the target does not choose"] += 1
    for prompt in prompts:
        answer, reason = logged.completion(prompt)
        asked[False] += answer is not None
        if reason:
            counts.unused[reason] += 1
    if others := asked[False] - asked[True]:
        counts.unused["of a prompt that has other temperatures (generate.train_temperatures)"] += others
    return counts


def _listed(reasons: Counter[str]) -> str:
    return ",".join(f" {count:,} {reason}" for reason, count in reasons.most_common())
