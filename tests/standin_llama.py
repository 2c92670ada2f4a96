"""A server that speaks llama-server's protocol, with the same pure function in the place of a model as `standin_server`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from aiohttp import web

from tests.standin_server import StandIn, log_p_of, sampled_from

LETTER = 97  # the token of "a"


def is_incomplete(token: int) -> bool:
    """Whether the token ends within a character: llama-server gives no log-probabilities for it."""
    return token % 8 == 5


@dataclass
class StandInLlama(StandIn):
    """Options of `StandIn` that apply: weights, defaults, context, model, eos, speculates."""

    version: str = "b11434-test"

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/props", self._props)
        app.router.add_post("/completion", self._completion)
        return app

    async def _list(self, request: web.Request) -> web.StreamResponse:
        entry = {"id": self.model, "owned_by": "llamacpp", "meta": {"n_ctx_train": 10**6}}
        return web.json_response({"object": "list", "data": [entry]})

    async def _props(self, request: web.Request) -> web.StreamResponse:
        settings = {"n_ctx": self.context}
        return web.json_response(
            {"default_generation_settings": settings, "build_info": self.version, "model_path": "/models/t.gguf"}
        )

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if len(body["prompt"]) >= self.context:
            return web.json_response(
                {"error": {"code": 400, "message": "exceeds the available context size"}}, status=400
            )
        answer = self.right_answer(body)
        self.served.append((body["prompt"], answer["tokens"]))
        self.served_by.append(self.weights)
        return web.json_response({name: value for name, value in answer.items() if name in _fields(body)})

    def right_answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """To the body of a request."""
        body = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05} | self.defaults | body
        rng = np.random.default_rng(body.get("seed"))
        ids, tokens, rows, stop, truncated = list(body["prompt"]), [], [], "limit", False
        while len(tokens) < body["n_predict"] and not truncated:
            plain = log_p_of(ids, self.weights)
            biased = plain.copy()
            for token, bias in body["logit_bias"]:
                biased[LETTER if token == "a" else token] += bias
            if body["temperature"] == 0:
                token = int(biased.argmax())
            else:
                token = int(rng.choice(len(plain), p=np.exp(sampled_from(biased, body))))
            tokens.append(token)
            ids.append(token)
            if not (is_incomplete(token) or (self.speculates and len(tokens) > 1)):
                best = np.argsort(-plain, kind="stable")[: body["n_probs"]].tolist()
                listed = [{"id": one, "logprob": float(plain[one])} for one in best]
                rows.append({"id": token, "logprob": float(plain[token]), "top_logprobs": listed})
            if token == self.eos:
                stop = "eos"
                break
            truncated = len(ids) >= self.context
        found = {"tokens": tokens, "stop_type": stop, "truncated": truncated, "draft_n": 5 if self.speculates else 0}
        return found | ({"completion_probabilities": rows} if rows else {})


def _fields(body: dict[str, Any]) -> list[str]:
    return [name.rpartition("/")[2] for name in body["response_fields"]]
