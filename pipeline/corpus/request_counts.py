"""What an engine counted of speculation for one request, as a row of a log has it. Pure, and never an error.

Fields, read in vLLM 0.32.0, SGLang 0.5.23 and llama.cpp b11434 (docs/logs.md states how each is switched on):
- vLLM: `metrics.speculative_decoding` of the answer;
- SGLang: `sglext.spec_tokens_details`, or `meta_info` of the choice or of an answer of `/generate`. Its proposed tokens are calls
  times draft length: what the end of an answer cuts off is in them;
- llama.cpp: `timings`, which has no number of drafts;
- OpenAI: `usage.completion_tokens_details`, which has none either.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.corpus.json_values import decoded
from pipeline.engines.counts import Counts

RESPONSE = "response"  # the column of the answer, as docs/examples/request_log.py writes it
COUNT_COLUMNS = (RESPONSE, "body", "choices", "metrics", "sglext", "meta_info", "timings", "usage")
"""Columns of a row that may hold the counts, or an answer that holds them."""
_Names = tuple[str, str, str, str]  # of drafts, proposed and accepted tokens, and of drafts by accepted tokens
_VLLM = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram")
_SGLANG = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_correct_drafts_histogram")
_LLAMA_CPP = ("", "draft_n", "draft_n_accepted", "")
_OPENAI = ("", "proposed", "accepted", "")
_MOST = 10**9  # tokens of a request; larger numbers are damage


def request_counts(row: Any, answer_field: str = RESPONSE) -> Counts | None:
    """The counts of a row's request. None where it has none, or such as cannot be: more accepted tokens than proposed ones.

    They are looked for in the answer, in `answer_field` or `response`, also within a `body`, and in the row itself.
    """
    return next((counts for report in _reports(row, answer_field) if (counts := _counts(*report)) is not None), None)


def has_impossible_counts(row: Any, answer_field: str = RESPONSE) -> bool:
    """Whether a row states what its request drafted, and `request_counts` finds that it cannot be."""
    if request_counts(row, answer_field) is not None:
        return False
    return any(part.get(name) for _, part, names in _reports(row, answer_field) for name in names[1:3])


def _reports(row: Any, answer_field: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], _Names]]:
    """Each answer of a row, a part of it that may hold counts, and their names there."""
    for answer in _answers(row, answer_field):
        yield answer, _part(_part(answer, "metrics"), "speculative_decoding"), _VLLM
        for part in (_part(_part(answer, "sglext"), "spec_tokens_details"), *_with("meta_info", answer)):
            yield answer, part, _SGLANG
        yield answer, _part(answer, "timings"), _LLAMA_CPP
        yield answer, _openai(answer), _OPENAI


def _answers(row: Any, answer_field: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(row, Mapping):
        return
    for answer in (decoded(row.get(answer_field)), decoded(row.get(RESPONSE)), row):
        if isinstance(answer, Mapping):
            yield answer
            if isinstance(body := decoded(answer.get("body")), Mapping):
                yield body


def _openai(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Proposed tokens are accepted and rejected ones; as it is stated where one of these is no number."""
    details = _part(_part(answer, "usage"), "completion_tokens_details")
    accepted, rejected = (details.get(f"{what}_prediction_tokens") for what in ("accepted", "rejected"))
    known, others = _count(accepted), _count(rejected)
    return {"accepted": accepted, "proposed": rejected if known is None or others is None else known + others}


def _counts(answer: Mapping[str, Any], part: Mapping[str, Any], names: _Names) -> Counts | None:
    """A request for which nothing was drafted has no counts."""
    drafts, proposed, accepted = (_count(part.get(name)) for name in names[:3])
    if not proposed or accepted is None or accepted > proposed:
        return None
    if drafts is not None and not 0 < drafts <= proposed:
        return None
    return Counts(
        drafts=drafts,
        draft_tokens=proposed,
        accepted=accepted,
        accepted_first=_accepted_first(part.get(names[3]), drafts, accepted),
        tokens=_tokens(answer, part),
    )


def _accepted_first(histogram: Any, drafts: float | None, accepted: float) -> float | None:
    """The drafts with an accepted token; None where the histogram is not of these counts."""
    if not isinstance(histogram, Sequence) or isinstance(histogram, str) or not histogram:
        return None
    counted = [_count(value) for value in histogram]
    known = [count for count in counted if count is not None]
    if len(known) < len(counted) or sum(known) != drafts or sum(n * count for n, count in enumerate(known)) != accepted:
        return None
    return sum(known[1:])


def _tokens(answer: Mapping[str, Any], part: Mapping[str, Any]) -> float | None:
    """The tokens of the answer, as the engine counted them."""
    places = [_part(answer, "usage").get("completion_tokens"), _part(answer, "timings").get("predicted_n")]
    places += [part.get("completion_tokens")]
    return next((count for place in places if (count := _count(place)) is not None), None)


def _with(name: str, answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts called `name` of the only choice and of the answer itself. Counts of several choices are not those of one."""
    choices = answer.get("choices")
    if isinstance(choices, list) and len(choices) == 1:
        yield _part(choices[0], name)
    yield _part(answer, name)


def _part(value: Any, name: str) -> Mapping[str, Any]:
    part = value.get(name) if isinstance(value, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _count(value: Any) -> float | None:
    """A number of tokens or drafts; None for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST or value != int(value):
        return None
    return float(value)
