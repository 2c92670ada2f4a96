"""SGLang's API, as 0.5.23 serves it: `/generate` with token ids in and out. Torch-free.

Every sampling parameter is stated, so that `--preferred-sampling-params` decides nothing; `/generate` does not apply
generation_config.json. Log-probabilities of a completion are at the request's temperature, before cut-offs; those of a prompt are
at temperature 1. With the environment variable SGLANG_RETURN_ORIGINAL_LOGPROB both are at temperature 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.servers.answers import BadAnswer, Candidates, Generated, Plain, Scored, generated, plain, scored
from pipeline.servers.api import Body, GenerateRequest, ScoreRequest
from pipeline.speculation.settings import GREEDY, Sampling

_PATH = "/generate"
# Parameters that a server's defaults could set; these values change nothing.
_NEUTRAL = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_new_tokens": 0,
    "n": 1,
    "stop": [],
    "logit_bias": {},
}
_OF_LOG_P = ("logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
_OUTPUT_ONLY = -1  # `logprob_start_len`: no log-probabilities of the prompt
_LOWEST = -9999.0  # the server gives the lowest float32 for a probability of 0


class Sglang:
    """SGLang."""

    name = "sglang"
    scores = True
    applies_in_order = False  # top_k and top_p are both applied to the whole distribution
    states_defaults = False  # a request without settings is sampled at temperature 1
    logprobs_flag = ""  # there is no limit
    processed_flag = "without SGLANG_RETURN_ORIGINAL_LOGPROB"

    def generate(self, request: GenerateRequest, model: str) -> tuple[str, Body]:
        sampling = _sampling(request.sampling, request.max_tokens, request.ignore_eos)
        sampling["stop_token_ids"] = [] if request.ignore_eos else list(request.stop_tokens)
        if request.seed is not None:  # has an effect with --enable-deterministic-inference only
            sampling["sampling_seed"] = request.seed
        return _PATH, _body(request.prompt, sampling, _OUTPUT_ONLY, request.kept)

    def read_generated(self, request: GenerateRequest, answer: Mapping[str, Any], vocabulary: int) -> Generated:
        meta = _meta(answer, len(request.prompt))
        stopped = _stopped(meta)
        try:
            rows = meta["output_token_logprobs"]
            tokens, log_p = [row[1] for row in rows], [_log_p(row[0]) for row in rows]
            candidates = [_by_id(row) for row in meta["output_top_logprobs"]] if request.kept else None
            repeated = answer.get("output_ids", tokens)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise BadAnswer(f"no completion with token ids and log-probabilities ({type(error).__name__})") from None
        if repeated != tokens:
            raise BadAnswer("the token ids of the completion and of its log-probabilities differ")
        return generated(
            tokens,
            log_p,
            candidates,
            kept=request.kept,
            stopped=stopped,
            may_stop=not request.ignore_eos,
            limit=request.max_tokens,
            vocabulary=vocabulary,
        )

    def plain(self, request: GenerateRequest, model: str) -> tuple[str, Body]:
        path, body = self.generate(request, model)
        return path, {key: value for key, value in body.items() if key not in _OF_LOG_P} | {"return_logprob": False}

    def read_plain(self, request: GenerateRequest, answer: Mapping[str, Any], vocabulary: int) -> Plain:
        stopped, tokens = _stopped(_meta(answer, len(request.prompt))), answer.get("output_ids")
        if not isinstance(tokens, list):
            raise BadAnswer("no token ids in the answer")
        may_stop = not request.ignore_eos
        return plain(tokens, stopped=stopped, may_stop=may_stop, limit=request.max_tokens, vocabulary=vocabulary)

    def score(self, request: ScoreRequest, model: str) -> tuple[str, Body]:
        # The first place has no log p, so the one before `start` is asked for too.
        return _PATH, _body(request.ids, _sampling(GREEDY, 1, ignore_eos=True), request.start - 1, request.kept)

    def read_scored(self, request: ScoreRequest, answer: Mapping[str, Any], vocabulary: int) -> Scored:
        meta, tokens = _meta(answer, len(request.ids)), request.ids[request.start :]
        try:
            rows = meta["input_token_logprobs"][1:]
            top = meta["input_top_logprobs"][1:] if request.kept else [[]] * len(tokens)
            ids, log_p = [row[1] for row in rows], [_log_p(row[0]) for row in rows]
            likeliest = [_by_id(row) for row in top]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BadAnswer(f"no log-probabilities of the prompt ({type(error).__name__})") from None
        if len(ids) != len(tokens) or len(likeliest) != len(tokens):
            raise BadAnswer(f"no log-probability for each of {len(tokens)} tokens of the prompt")
        # In the place of the vocabulary's last token the server writes 0.
        if any(repeated not in (token, 0) for repeated, token in zip(ids, tokens, strict=True)):
            raise BadAnswer("the answer is to another prompt")
        candidates = [listed | {token: own} for listed, token, own in zip(likeliest, tokens, log_p, strict=True)]
        return scored(tokens, candidates, kept=request.kept, vocabulary=vocabulary)

    def too_many_logprobs(self, message: str) -> bool:
        return False


def _sampling(sampling: Sampling, max_tokens: int, ignore_eos: bool) -> Body:
    return {
        "max_new_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or -1,  # -1: off
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        **_NEUTRAL,
        "ignore_eos": ignore_eos,
        "skip_special_tokens": False,
    }


def _body(ids: Sequence[int], sampling: Body, logprob_start: int, kept: int) -> Body:
    return {
        "input_ids": list(ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": logprob_start,
        "top_logprobs_num": kept,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def _stopped(meta: Mapping[str, Any]) -> bool:
    """Whether the completion ended at a stop token. BadAnswer for another end than that and the limit."""
    reason = meta.get("finish_reason")
    finish = reason if isinstance(reason, dict) else {}
    kind = finish.get("type")
    if kind not in ("stop", "length") or (kind == "stop" and type(finish.get("matched")) is not int):
        raise BadAnswer(f"no completion that ended: finish_reason is {str(reason)[:100]}")
    return bool(kind == "stop")


def _meta(answer: Mapping[str, Any], prompt: int) -> Mapping[str, Any]:
    """`meta_info` of an answer to a prompt of so many tokens."""
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
        raise BadAnswer("no meta_info in the answer")
    if meta.get("prompt_tokens") != prompt:
        raise BadAnswer("the answer is to another prompt")
    return meta


def _by_id(row: Sequence[Sequence[Any]]) -> Candidates:
    if not {type(entry[1]) for entry in row} <= {int}:
        raise TypeError("an invalid token id")
    return {entry[1]: _log_p(entry[0]) for entry in row}


def _log_p(value: float) -> float:
    return max(value, _LOWEST)
