"""llama.cpp's API, as llama-server b11434 serves it: `/completion` with token ids in and out. Torch-free.

Every sampling parameter is stated, so that the server's defaults decide nothing. Its log-probabilities are of the logits before
any sampler: at temperature 1 without cut-offs. It gives none of a prompt. A token is scored by a completion of one token: a bias
forces the server to take it, and the log-probabilities do not include the bias.

What its source shows (tools/server): A token that ends within a UTF-8 character comes without log-probabilities. `ignore_eos`
forbids the end of sequence; it does not go on after it. With a draft model, accepted tokens come without log-probabilities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UsageError
from pipeline.servers.answers import (
    BadAnswer,
    Candidates,
    Generated,
    Plain,
    Scored,
    generated,
    plain,
    scored,
    token_ids,
)
from pipeline.servers.api import Body, GenerateRequest, ScoreRequest
from pipeline.speculation.settings import GREEDY

_PATH = "/completion"
_PLAIN_FIELDS = ("tokens", "stop_type", "truncated", "timings")
_FIELDS = ("tokens", "stop_type", "truncated", "completion_probabilities", "timings/draft_n")
# The order in which we apply them. No other sampler runs; these settings change nothing in those that do.
_SAMPLERS = ("temperature", "top_k", "top_p", "min_p")
_NEUTRAL = {"min_keep": 0, "dynatemp_range": 0.0, "mirostat": 0, "backend_sampling": False, "stop": []}
_FORCE = 1e6  # added to a logit
_LETTER = "a"  # ends no character midway
_LOWEST = -104.0  # below the logarithm of float32's smallest number; the server gives -3.4e38 for a probability of 0


@dataclass(frozen=True)
class TokenLogP:
    """Log-probabilities at one token."""

    log_p: float  # of the token itself
    listed: Candidates


class Incomplete(BadAnswer):
    """A completion in which some tokens have no log-probabilities."""

    def __init__(self, tokens: Sequence[int], rows: Sequence[TokenLogP | None], stopped: bool) -> None:
        super().__init__(f"{sum(row is None for row in rows)} of {len(tokens)} tokens without log-probabilities")
        self.tokens, self.rows, self.stopped = tokens, rows, stopped


class LlamaCpp:
    """llama.cpp. To be asked by `by_token.AskingByToken`."""

    name = "llama.cpp"
    scores = True
    applies_in_order = True  # requests state the order
    states_defaults = True
    logprobs_flag = ""  # there is no limit
    processed_flag = ""  # it gives no log p of cut-offs that it could be compared with

    def generate(self, request: GenerateRequest, model: str) -> tuple[str, Body]:
        sampling = request.sampling
        return _PATH, {
            "model": model,
            "prompt": list(request.prompt),
            "n_predict": request.max_tokens,
            "samplers": list(_SAMPLERS),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            **_NEUTRAL,
            **({} if request.seed is None else {"seed": request.seed}),
            "logit_bias": [],
            "ignore_eos": False,
            "n_probs": max(1, request.kept),
            "post_sampling_probs": False,
            "return_tokens": True,
            "cache_prompt": True,
            "stream": False,
            "response_fields": list(_FIELDS),
        }

    def read_generated(self, request: GenerateRequest, answer: Mapping[str, Any], vocabulary: int) -> Generated:
        """May end at an end of sequence even with `ignore_eos`. Incomplete where log-probabilities are missing."""
        tokens, rows, stopped = _read(answer, request.max_tokens)
        if not request.ignore_eos:  # the server stops at the ends of sequence of its file only
            ends = [place for place, token in enumerate(tokens) if token in request.stop_tokens]
            if ends:
                tokens, rows, stopped = tokens[: ends[0] + 1], rows[: ends[0] + 1], True
        return self.completion(request, tokens, rows, stopped, vocabulary)

    def plain(self, request: GenerateRequest, model: str) -> tuple[str, Body]:
        path, body = self.generate(request, model)
        return path, body | {"n_probs": 0, "cache_prompt": False, "response_fields": list(_PLAIN_FIELDS)}

    def read_plain(self, request: GenerateRequest, answer: Mapping[str, Any], vocabulary: int) -> Plain:
        tokens, stopped = _ended(answer, request.max_tokens)
        return plain(tokens, stopped=stopped, may_stop=True, limit=request.max_tokens, vocabulary=vocabulary)

    def completion(
        self,
        request: GenerateRequest,
        tokens: Sequence[int],
        rows: Sequence[TokenLogP | None],
        stopped: bool,
        vocabulary: int,
    ) -> Generated:
        """The checked completion. Incomplete where a row is missing."""
        token_ids(tokens, vocabulary)  # what is missing is asked for with these ids
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            raise Incomplete(tokens, rows, stopped)
        return generated(
            tokens,
            [row.log_p for row in known],
            [row.listed for row in known] if request.kept else None,
            kept=request.kept,
            stopped=stopped,
            may_stop=True,
            limit=request.max_tokens,
            vocabulary=vocabulary,
        )

    def score(self, request: ScoreRequest, model: str) -> tuple[str, Body]:
        """The scoring of one token, the last of `request.ids`."""
        assert request.start == len(request.ids) - 1  # `AskingByToken` asks for one after another
        return self._forced(request, model, request.ids[-1])

    def list_instead(self, request: ScoreRequest, model: str) -> tuple[str, Body]:
        """As `score`, for a token that comes without log-probabilities: another token is put in its place."""
        return self._forced(request, model, _LETTER)

    def _forced(self, request: ScoreRequest, model: str, token: int | str) -> tuple[str, Body]:
        request_of_one = GenerateRequest(
            prompt=request.ids[:-1], sampling=GREEDY, max_tokens=1, stop_tokens=(), kept=request.kept
        )
        path, body = self.generate(request_of_one, model)
        return path, body | {"logit_bias": [[token, _FORCE]]}

    def read_scored(self, request: ScoreRequest, answer: Mapping[str, Any], vocabulary: int) -> Scored:
        """Incomplete where the log-probabilities are missing, or do not list the token."""
        tokens, rows, stopped = _read(answer, 1)
        (token, row), wanted = (tokens[0], rows[0]), request.ids[-1]
        if row is None or (token != wanted and wanted not in row.listed):
            raise Incomplete(tokens, [None], stopped)
        listed = row.listed | ({wanted: row.log_p} if token == wanted else {})
        return scored([wanted], [listed], kept=request.kept, vocabulary=vocabulary)

    def too_many_logprobs(self, message: str) -> bool:
        return False


def _read(answer: Mapping[str, Any], limit: int) -> tuple[list[int], list[TokenLogP | None], bool]:
    """Tokens, their log-probabilities, and whether an end of sequence was reached.

    UsageError where the server must be started otherwise."""
    tokens, stopped = _ended(answer, limit)
    try:
        entries = [(entry["id"], _row(entry)) for entry in answer.get("completion_probabilities", [])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswer(f"no completion with log-probabilities ({type(error).__name__})") from None
    if answer.get("draft_n"):
        raise UsageError(
            "generate.server: llama-server gives no log-probabilities while it speculates; give an endpoint without a draft model"
        )
    return tokens, _aligned(tokens, entries), stopped


def _ended(answer: Mapping[str, Any], limit: int) -> tuple[list[int], bool]:
    """The token ids, and whether an end of sequence was reached. Raises as `_read`."""
    try:
        tokens, reason, truncated = answer["tokens"], answer["stop_type"], answer["truncated"]
    except (KeyError, TypeError) as error:
        raise BadAnswer(f"no completion with token ids ({type(error).__name__})") from None
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise BadAnswer("no list of token ids")
    if len(tokens) > limit:  # each without log-probabilities would take a request
        raise BadAnswer(f"{len(tokens)} tokens where {limit} were asked for")
    if reason not in ("eos", "limit"):
        raise BadAnswer(f"stop_type is {reason!r}")
    if truncated and len(tokens) < limit and reason == "limit":
        raise UsageError(
            "generate.server: a completion does not fit the context of llama-server; start it with more --ctx-size"
        )
    return tokens, reason == "eos"


def _aligned(tokens: Sequence[int], entries: Sequence[tuple[int, TokenLogP]]) -> list[TokenLogP | None]:
    """The row of each token. The answer leaves out rows without saying which; a row that could be of two tokens is not used."""
    ids = [token for token, _ in entries]
    first = _places(tokens, ids)
    last = [len(tokens) - 1 - place for place in reversed(_places(tokens[::-1], ids[::-1]))]
    rows: list[TokenLogP | None] = [None] * len(tokens)
    for (_, row), place, last_place in zip(entries, first, last, strict=True):
        if place == last_place:
            rows[place] = row
    return rows


def _places(tokens: Sequence[int], ids: Sequence[int]) -> list[int]:
    """The first places at which `ids` stand in `tokens` in their order."""
    places, place = [], -1
    for token in ids:
        try:
            place = tokens.index(token, place + 1)
        except ValueError:
            raise BadAnswer("the token ids of the completion and of its log-probabilities differ") from None
        places.append(place)
    return places


def _row(entry: Mapping[str, Any]) -> TokenLogP:
    listed = {other["id"]: _log_p(other["logprob"]) for other in entry["top_logprobs"]}
    if not set(map(type, listed)) <= {int}:
        raise TypeError("an invalid token id")
    return TokenLogP(_log_p(entry["logprob"]), listed)


def _log_p(value: float) -> float:
    return _LOWEST if value < _LOWEST else value
