"""vLLM's API, as 0.32 serves it: `/v1/completions` with token ids in and out. Torch-free.

Every sampling parameter is stated, so that the server's defaults (generation_config.json) decide nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.servers.answers import BadAnswer, Candidates, Generated, Plain, Scored, generated, plain, scored
from pipeline.servers.api import Body, GenerateRequest, ScoreRequest

_PATH = "/v1/completions"
_TOKEN = "token_id:"  # how `return_tokens_as_token_ids` writes a token
_OF_LOG_P = ("logprobs", "return_tokens_as_token_ids")
# Parameters that a server's defaults could set; these values change nothing.
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}


class Vllm:
    """vLLM."""

    name = "vllm"
    scores = True
    applies_in_order = True
    states_defaults = True
    logprobs_flag = "--max-logprobs"
    processed_flag = "with --logprobs-mode processed_logprobs"

    def generate(self, request: GenerateRequest, model: str) -> tuple[str, Body]:
        sampling = request.sampling
        return _PATH, {
            "model": model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            **_NEUTRAL,
            **({} if request.seed is None else {"seed": request.seed}),
            "stop_token_ids": [] if request.ignore_eos else list(request.stop_tokens),
            "ignore_eos": request.ignore_eos,
            "logprobs": request.kept,  # 0: of the token itself only
            "add_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }

    def read_generated(self, request: GenerateRequest, answer: Mapping[str, Any], vocabulary: int) -> Generated:
        choice = _choice(answer, request.prompt)
        try:
            log_probs = choice["logprobs"]
            candidates = [_by_id(top) for top in log_probs["top_logprobs"]] if request.kept else None
            tokens, log_p, reason = choice["token_ids"], log_probs["token_logprobs"], choice["finish_reason"]
            repeated = [int(name.removeprefix(_TOKEN)) for name in log_probs["tokens"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadAnswer(f"no completion with token ids and log-probabilities ({type(error).__name__})") from None
        if reason not in ("stop", "length"):
            raise BadAnswer(f"finish_reason is {reason!r}")
        if repeated != tokens:
            raise BadAnswer("the token ids of the completion and of its log-probabilities differ")
        return generated(
            tokens,
            log_p,
            candidates,
            kept=request.kept,
            stopped=reason == "stop",
            may_stop=not request.ignore_eos,
            limit=request.max_tokens,
            vocabulary=vocabulary,
        )

    def plain(self, request: GenerateRequest, model: str) -> tuple[str, Body]:
        path, body = self.generate(request, model)
        return path, {key: value for key, value in body.items() if key not in _OF_LOG_P}

    def read_plain(self, request: GenerateRequest, answer: Mapping[str, Any], vocabulary: int) -> Plain:
        choice = _choice(answer, request.prompt)
        tokens, reason = choice.get("token_ids"), choice.get("finish_reason")
        if not isinstance(tokens, list) or reason not in ("stop", "length"):
            raise BadAnswer(f"no token ids, or finish_reason is {str(reason)[:100]!r}")
        stopped, may_stop = reason == "stop", not request.ignore_eos
        return plain(tokens, stopped=stopped, may_stop=may_stop, limit=request.max_tokens, vocabulary=vocabulary)

    def score(self, request: ScoreRequest, model: str) -> tuple[str, Body]:
        return _PATH, {
            "model": model,
            "prompt": list(request.ids),
            "max_tokens": 1,
            "temperature": 0.0,
            **_NEUTRAL,
            "prompt_logprobs": request.kept,
            "add_special_tokens": False,
            "return_token_ids": True,
        }

    def read_scored(self, request: ScoreRequest, answer: Mapping[str, Any], vocabulary: int) -> Scored:
        listed = _choice(answer, request.ids).get("prompt_logprobs")
        if not isinstance(listed, list) or len(listed) != len(request.ids):
            raise BadAnswer(f"no log-probability for each of the {len(request.ids)} tokens of the prompt")
        try:
            candidates = [
                {int(token): candidate["logprob"] for token, candidate in row.items()}
                for row in listed[request.start :]
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadAnswer(f"prompt_logprobs in an unknown form ({type(error).__name__})") from None
        return scored(request.ids[request.start :], candidates, kept=request.kept, vocabulary=vocabulary)

    def too_many_logprobs(self, message: str) -> bool:
        return "logprobs of" in message and "greater than max allowed" in message


def _choice(answer: Mapping[str, Any], prompt: Sequence[int]) -> Mapping[str, Any]:
    """The one completion of an answer. The prompt's ids come back with it: an answer to another request is no answer."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadAnswer("no completion in the answer")
    echoed = choices[0].get("prompt_token_ids")
    if echoed is None:
        raise BadAnswer(
            "no token ids in the answer; the server is older than vLLM 0.11, or is not vLLM (generate.server.api)"
        )
    if echoed != list(prompt):
        raise BadAnswer("the answer is to another prompt")
    return choices[0]


def _by_id(listed: Mapping[str, float]) -> Candidates:
    return {int(token.removeprefix(_TOKEN)): log_p for token, log_p in listed.items()}
