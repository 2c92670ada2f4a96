"""What an engine counted of speculation for one request, as a row of a log has it. Pure, and never an error.

Fields, read in vLLM 0.32.0, SGLang 0.5.23 and llama.cpp b11434 (docs/logs.md says how each is switched on):
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
_MOST = 10**9  # tokens of a request; larger numbers are damage


def request_counts(row: Any, answer_field: str = RESPONSE) -> Counts | None:
    """The counts of a row's request. None where it has none, or such as cannot be: more accepted tokens than proposed ones.

    They are looked for in the answer, in `answer_field` or `response`, also within a `body`, and in the row itself.
    """
    if not isinstance(row, Mapping):
        return None
    for answer in _answers(row, answer_field):
        for found in (_vllm(answer), _sglang(answer), _llama_cpp(answer), _openai(answer)):
            if found is not None:
                return found
    return None


def has_impossible_counts(row: Any, answer_field: str = RESPONSE) -> bool:
    """Whether a row states what its request drafted, and `request_counts` finds that it cannot be."""
    if not isinstance(row, Mapping) or request_counts(row, answer_field) is not None:
        return False
    return any(stated for answer in _answers(row, answer_field) for stated in _stated(answer))


def _stated(answer: Mapping[str, Any]) -> Iterator[Any]:
    """What an answer states of proposed or accepted tokens, as it is."""
    details = _part(_part(answer, "usage"), "completion_tokens_details")
    for found, names in (
        (_part(_part(answer, "metrics"), "speculative_decoding"), ("num_draft_tokens", "num_accepted_draft_tokens")),
        (
            _part(_part(answer, "sglext"), "spec_tokens_details"),
            ("spec_num_proposed_drafts", "spec_num_correct_drafts"),
        ),
        *((part, ("spec_num_proposed_drafts", "spec_num_correct_drafts")) for part in _with("meta_info", answer)),
        (_part(answer, "timings"), ("draft_n", "draft_n_accepted")),
        (details, ("accepted_prediction_tokens", "rejected_prediction_tokens")),
    ):
        yield from (found.get(name) for name in names)


def _answers(row: Mapping[str, Any], answer_field: str) -> Iterator[Mapping[str, Any]]:
    for found in (decoded(row.get(answer_field)), decoded(row.get(RESPONSE)), row):
        if isinstance(found, Mapping):
            yield found
            if isinstance(body := decoded(found.get("body")), Mapping):
                yield body


def _vllm(answer: Mapping[str, Any]) -> Counts | None:
    found = _part(_part(answer, "metrics"), "speculative_decoding")
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    return _counts(answer, found, names, found.get("acceptance_histogram"))


def _sglang(answer: Mapping[str, Any]) -> Counts | None:
    for found in (_part(_part(answer, "sglext"), "spec_tokens_details"), *_with("meta_info", answer)):
        names = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")
        counts = _counts(answer, found, names, found.get("spec_correct_drafts_histogram"))
        if counts is not None:
            return counts
    return None


def _llama_cpp(answer: Mapping[str, Any]) -> Counts | None:
    return _counts(answer, _part(answer, "timings"), ("", "draft_n", "draft_n_accepted"))


def _openai(answer: Mapping[str, Any]) -> Counts | None:
    details = _part(_part(answer, "usage"), "completion_tokens_details")
    accepted, rejected = (_count(details.get(f"{what}_prediction_tokens")) for what in ("accepted", "rejected"))
    if accepted is None or rejected is None:
        return None
    found = {"proposed": accepted + rejected, "accepted": accepted}
    return _counts(answer, found, ("", "proposed", "accepted"))


def _counts(
    answer: Mapping[str, Any], found: Mapping[str, Any], names: tuple[str, str, str], histogram: Any = None
) -> Counts | None:
    """`names` of the counts of drafts, proposed and accepted tokens in `found`. `histogram`: drafts by accepted tokens.

    A request for which nothing was drafted has no counts.
    """
    drafts, proposed, accepted = (_count(found.get(name)) for name in names)
    if not proposed or accepted is None or accepted > proposed:
        return None
    if drafts is not None and not 0 < drafts <= proposed:
        return None
    return Counts(
        drafts=drafts,
        draft_tokens=proposed,
        accepted=accepted,
        accepted_first=_accepted_first(histogram, drafts, accepted),
        tokens=_tokens(answer, found),
    )


def _accepted_first(histogram: Any, drafts: float | None, accepted: float) -> float | None:
    """The drafts with an accepted token; None where the histogram is not of these counts."""
    if not isinstance(histogram, Sequence) or isinstance(histogram, str) or not histogram:
        return None
    counted = [_count(one) for one in histogram]
    known = [one for one in counted if one is not None]
    if len(known) < len(counted) or sum(known) != drafts or sum(n * one for n, one in enumerate(known)) != accepted:
        return None
    return sum(known[1:])


def _tokens(answer: Mapping[str, Any], found: Mapping[str, Any]) -> float | None:
    """The tokens of the answer, as the engine counted them."""
    places = [_part(answer, "usage").get("completion_tokens"), _part(answer, "timings").get("predicted_n")]
    places += [found.get("completion_tokens")]
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
