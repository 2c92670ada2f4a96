"""A server that speaks SGLang's HTTP protocol, with the model and the faults of `standin_server.py`."""

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.standin_server import VOCABULARY, Computed, StandIn


@dataclass
class SglangStandIn(StandIn):
    """As SGLang 0.5.23. `scaled=False`: with SGLANG_RETURN_ORIGINAL_LOGPROB."""

    scaled: bool = True
    version: str = "0.5.23"
    owner: str = "sglang"

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/server_info", self.say_version)
        router.add_post("/generate", self.complete)

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling, start, kept = body["sampling_params"], -1, 0
        if body["return_logprob"]:
            start, kept = body["logprob_start_len"], body["top_logprobs_num"]
        scores = start >= 0
        assert sampling["top_k"] == -1 or sampling["top_k"] >= 1  # SGLang refuses others
        return {
            "model": self.model,
            "prompt": body["input_ids"],
            "max_tokens": sampling["max_new_tokens"],
            **{name: sampling[name] for name in ("temperature", "top_p", "min_p", "ignore_eos")},
            "top_k": 0 if sampling["top_k"] == -1 else sampling["top_k"],
            "stop_token_ids": sampling.get("stop_token_ids") or [],
            "logprobs": kept,
            "prompt_logprobs": kept if scores else None,
            "start": start,
        }

    def answer(self, body: dict[str, Any], found: Computed) -> dict[str, Any]:
        matched = {"matched": found.tokens[-1]} if found.reason == "stop" else {"length": len(found.tokens)}
        meta = {
            "prompt_tokens": len(body["prompt"]),
            "finish_reason": {"type": found.reason, **matched},
            "output_token_logprobs": [_row(*pair) for pair in zip(found.tokens, found.log_p, strict=True)],
        }
        if body["logprobs"]:
            meta["output_top_logprobs"] = [_rows(listed, body["logprobs"]) for listed in found.top]
        if found.of_prompt is not None:
            tokens, listed = body["prompt"][body["start"] :], found.of_prompt[body["start"] :]
            own = [[None, tokens[0], None]]
            own += [_row(token, one[token]) for token, one in zip(tokens[1:], listed, strict=True)]
            # SGLang writes 0 in the place of the vocabulary's last token.
            meta["input_token_logprobs"] = [[row[0], row[1] if row[1] < VOCABULARY - 1 else 0, None] for row in own]
            meta["input_top_logprobs"] = [None, *(_rows(one, body["logprobs"]) for one in listed)]
        if self.speculation is not None and body["temperature"] == 0:
            rounds = self.speculation.rounds(self.target, body["prompt"], found.tokens)
            meta |= {
                "spec_verify_ct": len(rounds),
                "spec_num_proposed_drafts": self.speculation.gamma * len(rounds),
                "spec_num_correct_drafts": sum(rounds),
            }
        return {"text": "", "output_ids": found.tokens, "meta_info": meta}


def _row(token: int, log_p: float) -> list[Any]:
    return [log_p, token, None]


def _rows(listed: dict[int, float], count: int) -> list[list[Any]]:
    """The likeliest ones; the token itself is not added."""
    return [_row(*pair) for pair in sorted(listed.items(), key=lambda pair: -pair[1])[:count]]
