"""The served target: completions and log-probabilities of its tokens, from whichever endpoint is free. Torch-free."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from pipeline.corpus.request_counts import request_counts
from pipeline.engines.counts import Counts
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.servers.answer_bytes import most_bytes
from pipeline.servers.answers import BadAnswer, Generated, Plain, Scored
from pipeline.servers.api import Api, GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint, RequestRefused, Unavailable
from pipeline.servers.pool import Pool
from pipeline.servers.retries import Timing, after_pauses
from pipeline.store.parsing import Count, Text, stored

_MOST_CHARACTERS = 1000  # of a name, path or version; paths on servers can be long
_MOST_CONTEXT = 1 << 31

SCORING_TOKENS = 2  # a scoring of a whole sequence generates one token, and the cross-check appends one


@stored(kw_only=False)
class ServedModel:
    """What an endpoint reports about the model it serves."""

    name: Text
    root: Text  # the path or hub id that it was started with
    context: Count | None  # most tokens of a sequence, where it reports it
    version: Text | None  # of the engine, where it reports it
    owner: Text | None = None  # the engine's name, unless a gateway states something else


async def read_model(endpoint: Endpoint, name: str | None, key: str = "generate.server.model") -> ServedModel:
    """The served model called `name`, or the only one. UsageError for another name, or where there are several to choose from;
    `key` of the config names it.

    Raises as `Endpoint.get` does.
    """
    answer = await endpoint.get("/v1/models")
    listed = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(listed, list) or not all(
        isinstance(model, dict) and _is_name(model.get("id")) for model in listed
    ):
        raise UsageError(
            f"{endpoint.url}/v1/models: no list of models; no server of the OpenAI API answers there; correct the URL"
        )
    names = [model["id"] for model in listed]
    if (name is None and len(names) != 1) or (name is not None and name not in names):
        wrong = f"set {key} to one of" if name is None else f"it does not serve {name}, but"
        raise UsageError(f"{endpoint.url}: {wrong} {', '.join(names) or 'nothing'}")
    entry: Mapping[str, Any] = listed[0] if name is None else listed[names.index(name)]
    parent: Mapping[str, Any] = next((model for model in listed if model["id"] == entry.get("parent")), {})
    props = await _at(endpoint, "/props") if entry.get("owned_by") == "llamacpp" else {}
    settings = props.get("default_generation_settings")
    slot = settings.get("n_ctx") if isinstance(settings, dict) else None
    context = slot or entry.get("max_model_len") or parent.get("max_model_len")  # vLLM states none for an adapter
    version = props.get("build_info") or await _version(endpoint)
    return ServedModel(
        name=entry["id"],
        root=_text(props.get("model_path")) or _text(entry.get("root")) or entry["id"],
        context=context if type(context) is int and 0 < context < _MOST_CONTEXT else None,
        version=_text(version),
        owner=_text(entry.get("owned_by")),
    )


def _is_name(value: Any) -> bool:
    """Whether requests can name a model so. The name is sent as it is, so no character of it is replaced."""
    return isinstance(value, str) and 0 < len(value) <= _MOST_CHARACTERS and printable(value) == value


def _text(value: Any) -> str | None:
    """The text as it can be stored and read again: half of a character has no UTF-8. None for something else than text."""
    return printable(value[:_MOST_CHARACTERS]) if isinstance(value, str) and value else None


async def _version(endpoint: Endpoint) -> Any:
    for path in ("/version", "/server_info"):  # of vLLM, of SGLang
        if version := (await _at(endpoint, path)).get("version"):
            return version
    return None


async def _at(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """What the server reports of itself; empty where it reports nothing there, or a gateway does not let it."""
    try:
        answer = await endpoint.get(path)
    except (UsageError, Unavailable):
        return {}
    return answer if isinstance(answer, dict) else {}


@contextmanager
def naming(endpoint: Endpoint) -> Iterator[None]:
    """A BadAnswer inside states which endpoint gave it."""
    try:
        yield
    except BadAnswer as error:
        error.args = (f"{endpoint.url}: {error}",)
        raise


@dataclass(frozen=True)
class Asking:
    """How one endpoint is asked: its engine's API, the model's name, and the number of tokens that a token id stays below."""

    api: Api
    model: str
    vocabulary: int
    waits: Timing | None = None  # where the endpoint asks for a pause; None: Overloaded, for the pool
    scores_prompts: ClassVar[bool] = True  # in one request

    def waiting(self, timing: Timing) -> Self:
        """The asking for a check of one endpoint, which takes many requests: it goes on after a pause that the endpoint asks
        for."""
        return replace(self, waits=timing)

    async def generate(
        self, endpoint: Endpoint, request: GenerateRequest, without: Collection[str] = ()
    ) -> tuple[Generated, int]:
        """The completion, and the tokens that it took. BadAnswer, or as `Endpoint.post`. `without`: keys of the body that are
        left out, so that the server's defaults apply."""
        path, body = self.api.generate(request, self.model)
        body = {key: value for key, value in body.items() if key not in without}
        answer = await self._post(endpoint, path, body, most_bytes(request.tokens, request.kept))
        with naming(endpoint):
            generated = self.api.read_generated(request, answer, self.vocabulary)
        return generated, len(request.prompt) + len(generated.tokens_N)

    async def plain(self, endpoint: Endpoint, request: GenerateRequest) -> tuple[Plain, Counts | None]:
        """The completion without log-probabilities, and what the server counted of speculation; None where it does not state it.
        Raises as `generate`."""
        path, body = self.api.plain(request, self.model)
        answer = await self._post(endpoint, path, body, most_bytes(request.tokens, 0))
        with naming(endpoint):
            return self.api.read_plain(request, answer, self.vocabulary), request_counts(answer)

    async def score(self, endpoint: Endpoint, request: ScoreRequest) -> tuple[Scored, int]:
        """The log-probabilities, and the tokens that they took. BadAnswer, or as `Endpoint.post`."""
        path, body = self.api.score(request, self.model)
        answer = await self._post(endpoint, path, body, most_bytes(request.tokens, request.kept))
        with naming(endpoint):
            return self.api.read_scored(request, answer, self.vocabulary), request.tokens

    async def _post(self, endpoint: Endpoint, path: str, body: dict[str, Any], most: int) -> Any:
        try:
            if self.waits is None:
                return await endpoint.post(path, body, most)
            return await after_pauses(lambda: endpoint.post(path, body, most), self.waits)
        except RequestRefused as error:
            if self.api.too_many_logprobs(str(error)):
                wanted = body.get("logprobs") or body.get("prompt_logprobs")
                raise UsageError(
                    f"{error}; start the server with {self.api.logprobs_flag} {wanted}, or lower generate.server.logprobs"
                ) from None
            raise


class ServedTarget:
    """A served target, asked through a pool of endpoints: each request goes to the endpoint that is free, and is retried."""

    def __init__(self, pool: Pool, asking: Asking) -> None:
        self.pool, self.asking = pool, asking

    async def generate(self, request: GenerateRequest) -> tuple[Generated, Endpoint]:
        """The completion, and the endpoint that made it. Raises as `Pool.ask`."""
        return await self.pool.ask(request.tokens, lambda endpoint: self.asking.generate(endpoint, request))

    async def score(self, request: ScoreRequest) -> tuple[Scored, Endpoint]:
        """The log-probabilities, and the endpoint that gave them. Raises as `Pool.ask`."""
        return await self.pool.ask(request.tokens, lambda endpoint: self.asking.score(endpoint, request))
