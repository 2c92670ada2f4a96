"""Opens the endpoints of a target and makes sure that all serve what the run expects. Torch-free."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from pipeline.config.pair import NumberFormat
from pipeline.config.server import ServerConfig
from pipeline.errors import UnderstudyError, UsageError
from pipeline.progress import Progress
from pipeline.servers.abilities import Abilities, find_abilities
from pipeline.servers.endpoint import Endpoint, Unavailable
from pipeline.servers.engines import APIS
from pipeline.servers.identity import (
    Identity,
    first_answers,
    is_rounding,
    mean_difference,
    new_identity,
    require_same,
)
from pipeline.servers.pool import Pool
from pipeline.servers.target import Asking, ServedModel, ServedTarget, read_model

_ANY_TOKEN = 2**31  # before the pair is known


@asynccontextmanager
async def _opened(settings: ServerConfig) -> AsyncIterator[list[Endpoint]]:
    async with AsyncExitStack() as stack:
        endpoints = [Endpoint(one, settings) for one in settings.endpoints]
        for endpoint in endpoints:
            await endpoint.open()
            stack.push_async_callback(endpoint.close)
        yield endpoints


async def served_model_of(settings: ServerConfig, progress: Progress) -> ServedModel:
    """What the first endpoint that answers says of its model. Raises as `identify`."""
    async with _opened(settings) as endpoints:
        return next(iter((await _models(endpoints, settings.model, progress)).values()))


async def identify(
    settings: ServerConfig, revision: str | None, dtype: NumberFormat, known: Sequence[Identity], progress: Progress
) -> Identity:
    """The identity of the served target: one of `known` if log p differs from it by no more than rounding, else a new one.

    Endpoints that do not answer are left out with a warning. UnderstudyError if none answers; UsageError if two endpoints serve
    different models, engine versions or weights.
    """
    async with _opened(settings) as endpoints:
        models = await _models(endpoints, settings.model, progress)
        first = next(iter(models))
        for endpoint, model in models.items():
            if differs := _differs(models[first], model):
                raise UsageError(f"generate.server.endpoints: {first.url} and {endpoint.url} differ: {differs}")
        asking = Asking(APIS[settings.api], models[first].name, _ANY_TOKEN)
        declared = [one for one in known if (one.revision, one.dtype) == (revision, dtype)]
        identity = await _known(first, asking, models[first], declared)
        if identity is None:
            identity = new_identity(models[first], await first_answers(first, asking), revision, dtype)
        for endpoint in list(models)[1:]:
            difference = await mean_difference(endpoint, asking, identity.golden)
            if not is_rounding(difference, dtype):
                raise UsageError(
                    f"generate.server.endpoints: {first.url} and {endpoint.url} serve different weights: log p of fixed tokens "
                    f"differs by {difference:.2g} on average; leave one of them out"
                )
        return identity


async def _models(endpoints: Sequence[Endpoint], name: str | None, progress: Progress) -> dict[Endpoint, ServedModel]:
    models, errors = dict[Endpoint, ServedModel](), list[str]()
    for endpoint in endpoints:
        try:
            models[endpoint] = await read_model(endpoint, name)
        except Unavailable as error:
            errors.append(str(error))
    if not models:
        raise UnderstudyError(
            f"generate.server: no endpoint answers: {'; '.join(errors[:3])}; start a server and run again"
        )
    for text in errors:
        progress.warn(f"{text}; continuing without this endpoint until it answers")
    return models


def _differs(one: ServedModel, other: ServedModel) -> str:
    """How two endpoints differ in what they say of their models. Paths may differ between machines."""
    for name in ("name", "version", "context"):
        if getattr(one, name) != getattr(other, name):
            return f"{name} {getattr(one, name)} and {getattr(other, name)}"
    return ""


async def _known(endpoint: Endpoint, asking: Asking, model: ServedModel, known: Sequence[Identity]) -> Identity | None:
    for identity in known:
        if not _differs(identity.model, model):
            difference = await mean_difference(endpoint, asking, identity.golden)
            if is_rounding(difference, identity.dtype):
                return identity
    return None


@asynccontextmanager
async def connect(
    settings: ServerConfig,
    identity: Identity,
    vocabulary: int,
    progress: Progress,
) -> AsyncIterator[tuple[ServedTarget, Abilities]]:
    """A pool of the endpoints, each of which serves the weights of `identity`, and what their log-probabilities mean.

    An endpoint that does not answer is asked again later. OtherWeights for other weights; UsageError for endpoints that were
    started with different flags.
    """
    asking = Asking(APIS[settings.api], identity.model.name, vocabulary)
    found: list[Abilities] = []

    async def readmit(endpoint: Endpoint) -> None:
        await require_same(endpoint, asking, identity)
        abilities = await find_abilities(endpoint, asking, settings.logprobs, identity.dtype)
        if found and abilities != found[0]:
            raise UsageError(
                f"{endpoint.url}: its log-probabilities mean something else than those of the other endpoints ({abilities}, "
                f"{found[0]}); start all servers with the same flags"
            )
        found.append(abilities)

    async with Pool([Endpoint(one, settings) for one in settings.endpoints], settings, readmit, progress) as pool:
        yield ServedTarget(pool, asking), found[0]
