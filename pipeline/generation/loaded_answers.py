"""Recorded answers as completions of a loaded target: one teacher-forced pass gives what `generate.py` stores of each token, and
whether the answers are samples of the target. The tokens past the end of an examination prompt are generated.

Shapes: N tokens of an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.evidence import of_answer
from pipeline.generation.generate import GenerationSettings, generate_past_end, seed_of
from pipeline.generation.logged import NEAR_TIE, LoggedCompletion
from pipeline.generation.sample_test import SampleEvidence, of_recorded
from pipeline.generation.scoring import score_rows
from pipeline.models.out_of_memory import batch_named
from pipeline.servers.answers import LikeliestTokens
from pipeline.speculation.settings import Sampling

LISTED = 64  # likeliest tokens that the test of samples looks at; the others count as the last of them


@dataclass(frozen=True)
class _Answer:
    """What is scored of a request with its recorded answer."""

    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    domain: str
    seed: int


def complete_recorded(
    model: Any,
    requests: Sequence[CompletionRequest],
    answers: Mapping[int, LoggedCompletion],
    settings: GenerationSettings,
    vocabulary: int,
    batch_tokens: int,
) -> tuple[dict[int, StoredCompletion], dict[int, SampleEvidence]]:
    """The completions that `answers` are, by the number of the request, and what each answer is evidence for. An answer with a
    token that the target (`model`) cannot choose is evidence alone. All requests have the same sampling settings.

    UnderstudyError for a model without finite logits, or where memory runs out.
    """
    numbers = sorted(answers)
    rows = [
        _Answer(
            np.array(requests[number].prompt.tokens, dtype=np.int32),
            answers[number].tokens_N,
            requests[number].prompt.domain,
            seed_of(settings, requests[number]),
        )
        for number in numbers
    ]
    columns_by_number, tested = dict[int, dict[str, NDArray[Any]]](), dict[int, SampleEvidence]()
    if not numbers:
        return {}, tested
    sampling = requests[numbers[0]].sampling
    kept, selection = settings.distribution_tokens, settings.distribution_selection
    scored = score_rows(model, rows, sampling, kept, selection, vocabulary, batch_tokens, min(LISTED, vocabulary))
    for row, columns in scored:
        number = numbers[row]
        margin_N, listed = columns.pop("margin"), _listed(columns)
        answer = answers[number]
        if not answer.is_answer or _is_possible(margin_N, sampling):
            if sampling.greedy:  # certain, also where rounding makes another token the likeliest
                columns["log_p"] = np.zeros_like(columns["log_p"])
            if answer.is_answer:
                tested[number] = of_recorded(
                    answer.tokens_N, columns["log_p"], None if sampling.greedy else listed, answer.exact
                )
            columns_by_number[number] = {"tokens": answer.tokens_N, **columns}
        else:
            by_rounding = not sampling.greedy and bool((margin_N >= -NEAR_TIE).all())
            tested[number] = (
                SampleEvidence() if by_rounding else SampleEvidence(recorded=of_answer(False, answer.exact))
            )
    past_end = _past_end(model, requests, columns_by_number, settings, vocabulary)
    completions = {}
    for number, columns in columns_by_number.items():
        answer, rest = answers[number], past_end.get(number, {})
        joined = {name: np.concatenate([column, rest[name]]) if rest else column for name, column in columns.items()}
        completions[number] = requests[number].stored(joined, len(answer.tokens_N), answer.stopped, vocabulary)
    return completions, tested


def _is_possible(margin_N: NDArray[np.float32], sampling: Sampling) -> bool:
    """Whether the target can have chosen these tokens."""
    return bool((margin_N >= (-NEAR_TIE if sampling.greedy else 0.0)).all())


def _listed(columns: dict[str, NDArray[Any]]) -> LikeliestTokens:
    """Taken out of the columns: it is not stored."""
    return LikeliestTokens(columns.pop("listed_ids"), columns.pop("listed_log_p"))


def _past_end(
    model: Any,
    requests: Sequence[CompletionRequest],
    columns_by_number: Mapping[int, Mapping[str, NDArray[Any]]],
    settings: GenerationSettings,
    vocabulary: int,
) -> dict[int, dict[str, NDArray[Any]]]:
    """The columns of the tokens past the end, of the examination prompts."""
    wanted = [
        number for number in columns_by_number if requests[number].prompt.split == "examination" and settings.lookahead
    ]
    whole = {
        number: [*requests[number].prompt.tokens, *columns_by_number[number]["tokens"].tolist()] for number in wanted
    }
    go_on = partial(generate_past_end, model, settings=settings, vocabulary=vocabulary)

    def attempt(count: int) -> None:
        longest = sorted(wanted, key=lambda number: len(whole[number]))[-count:]
        go_on([requests[number] for number in longest], [whole[number] for number in longest])

    with batch_named("generate.batch", settings.batch, attempt):
        columns = go_on([requests[number] for number in wanted], [whole[number] for number in wanted])
    return dict(zip(wanted, columns, strict=True))
