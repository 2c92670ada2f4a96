"""How llama-server is asked: a scoring is one request for each token, and a completion may take several. Torch-free."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from pipeline.servers.answer_bytes import most_bytes
from pipeline.servers.answers import Generated, LikeliestTokens, Scored
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.llama_cpp import Incomplete, LlamaCpp, TokenLogP
from pipeline.servers.target import Asking, naming

_EVERY_TOKEN = 2**31 - 1


@dataclass(frozen=True)
class AskingByToken(Asking):
    """How one endpoint is asked token by token. The server keeps what it has computed of a sequence, so each token costs one
    step."""

    api: LlamaCpp
    scores_prompts = False

    async def generate(
        self, endpoint: Endpoint, request: GenerateRequest, without: Collection[str] = ()
    ) -> tuple[Generated, int]:
        parts, paid = list[Generated](), 0
        while not parts or (request.ignore_eos and len(_tokens(parts)) < request.max_tokens):
            done = _tokens(parts)
            rest = replace(request, prompt=[*request.prompt, *done], max_tokens=request.max_tokens - len(done))
            part, taken = await self._part(endpoint, rest, without)
            parts, paid = [*parts, part], paid + taken
        return _joined(parts), paid

    async def _part(
        self, endpoint: Endpoint, request: GenerateRequest, without: Collection[str]
    ) -> tuple[Generated, int]:
        """Up to the first end of sequence, with what the server left out."""
        try:
            return await super().generate(endpoint, request, without)
        except Incomplete as incomplete:
            rows, paid = list(incomplete.rows), len(request.prompt) + len(incomplete.tokens)
            for place, row in enumerate(rows):
                if row is None:
                    ids = [*request.prompt, *incomplete.tokens[: place + 1]]
                    scored, taken = await self._listed(
                        endpoint, ScoreRequest(ids=ids, start=len(ids) - 1, kept=max(1, request.kept))
                    )
                    rows[place], paid = _row(scored), paid + taken
            with naming(endpoint):
                return self.api.completion(request, incomplete.tokens, rows, incomplete.stopped, self.vocabulary), paid

    async def score(self, endpoint: Endpoint, request: ScoreRequest) -> tuple[Scored, int]:
        parts, paid = list[Scored](), 0
        for place in range(request.start, len(request.ids)):
            part_request = ScoreRequest(ids=request.ids[: place + 1], start=place, kept=request.kept)
            try:
                scored, taken = await super().score(endpoint, part_request)
            except Incomplete:
                scored, taken = await self._listed(endpoint, part_request)
            parts, paid = [*parts, scored], paid + taken
        log_p_N = np.concatenate([part_request.log_p_N for part_request in parts])
        return Scored(
            log_p_N=log_p_N, likeliest=LikeliestTokens.joined([part_request.likeliest for part_request in parts])
        ), paid

    async def _listed(self, endpoint: Endpoint, request: ScoreRequest) -> tuple[Scored, int]:
        """The scoring of a token that comes without log-probabilities, from the list of the likeliest, or of all tokens."""
        path, body = self.api.list_instead(request, self.model)
        try:
            answer = await self._post(endpoint, path, body, most_bytes(request.tokens, request.kept))
            with naming(endpoint):
                return self.api.read_scored(request, answer, self.vocabulary), request.tokens
        except Incomplete:
            most = most_bytes(request.tokens + self.vocabulary, request.kept)
            answer = await self._post(endpoint, path, body | {"n_probs": _EVERY_TOKEN}, most)
            with naming(endpoint):
                return self.api.read_scored(request, answer, self.vocabulary), 2 * request.tokens


def _tokens(parts: Collection[Generated]) -> list[int]:
    return [token for part in parts for token in part.tokens_N.tolist()]


def _row(scored: Scored) -> TokenLogP:
    ids_K, log_p_K = scored.likeliest.ids_NK[0].tolist(), scored.likeliest.log_p_NK[0].tolist()
    return TokenLogP(float(scored.log_p_N[0]), dict(zip(ids_K, log_p_K, strict=True)))


def _joined(parts: list[Generated]) -> Generated:
    lists = [part.likeliest for part in parts if part.likeliest is not None]
    return Generated(
        tokens_N=np.concatenate([part.tokens_N for part in parts]),
        log_p_N=np.concatenate([part.log_p_N for part in parts]),
        likeliest=LikeliestTokens.joined(lists) if lists else None,
        stopped=parts[-1].stopped,
    )
