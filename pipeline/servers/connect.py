"""Opens the endpoints of a target and makes sure that all serve what the run expects. Torch-free."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from pipeline.config.pair import NumberFormat
from pipeline.config.server import ServerConfig
from pipeline.errors import UnderstudyError, UsageError
from pipeline.progress import Progress
from pipeline.servers.abilities import Abilities, find_abilities
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.engines import asking_of
from pipeline.servers.identity import (
    Identity,
    difference,
    first_answers,
    is_rounding,
    mean_difference,
    new_identity,
    require_same,
)
from pipeline.servers.pool import Pool
from pipeline.servers.retries import TIMING, TRANSIENT, Timing, retried
from pipeline.servers.target import Asking, ServedModel, ServedTarget, read_model

_ANY_TOKEN = 2**31  # before the pair is known


@asynccontextmanager
async def _opened(settings: ServerConfig) -> AsyncIterator[list[Endpoint]]:
    async with AsyncExitStack() as stack:
        endpoints = [Endpoint(url, settings) for url in settings.endpoints]
        for endpoint in endpoints:
            await endpoint.open()
            stack.push_async_callback(endpoint.close)
        yield endpoints


async def served_model_of(settings: ServerConfig, progress: Progress) -> ServedModel:
    """What the first endpoint that answers reports of its model. Raises as `identify`."""
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
                raise UsageError(
                    f"generate.server.endpoints: {first.url} and {endpoint.url} differ: {differs}; leave one of them out"
                )
        asking = asking_of(settings.api, models[first].name, _ANY_TOKEN).waiting(TIMING)
        declared = [identity for identity in known if (identity.revision, identity.dtype) == (revision, dtype)]
        identity, by, errors = None, first, list[str]()
        for endpoint, model in models.items():
            try:
                if identity is None:
                    known_or_new = await retried(partial(_known, endpoint, asking, model, declared))
                    if known_or_new is None:
                        golden = await retried(partial(first_answers, endpoint, asking))
                        known_or_new = new_identity(model, golden, revision, dtype)
                        _warn_of_equal(known_or_new, known, progress)
                    identity, by = known_or_new, endpoint
                    continue
                differs_by = await retried(partial(mean_difference, endpoint, asking, identity.golden))
            except TRANSIENT as error:
                errors.append(str(error))
                continue
            if not is_rounding(differs_by, dtype):
                raise UsageError(
                    f"generate.server.endpoints: {by.url} and {endpoint.url} serve different weights: log p of fixed tokens "
                    f"differs by {differs_by:.2g} on average; leave one of them out"
                )
        _warn(errors, identity is not None, progress)
        assert identity is not None  # else `_warn` raised
        return identity


async def _models(endpoints: Sequence[Endpoint], name: str | None, progress: Progress) -> dict[Endpoint, ServedModel]:
    answers = await asyncio.gather(
        *(retried(partial(read_model, endpoint, name)) for endpoint in endpoints), return_exceptions=True
    )
    models, errors = dict[Endpoint, ServedModel](), list[str]()
    for endpoint, model in zip(endpoints, answers, strict=True):
        if isinstance(model, ServedModel):
            models[endpoint] = model
        elif isinstance(model, TRANSIENT):
            errors.append(str(model))
        else:
            raise model
    _warn(errors, bool(models), progress)
    return models


def _warn_of_equal(new: Identity, known: Sequence[Identity], progress: Progress) -> None:
    """Warn where the same weights are known under another name: one of the two declarations is wrong."""
    others = [other for other in known if (other.revision, other.dtype) != (new.revision, new.dtype)]
    for other in others:
        if other.golden.sequences == new.golden.sequences and is_rounding(
            difference(other.golden, new.golden), "float32"
        ):
            progress.warn(
                "pair.target: the servers answer as the target of an earlier run did, which was declared with revision "
                f"{other.revision} and dtype {other.dtype}, and now with revision {new.revision} and dtype {new.dtype}; check "
                "which is right"
            )
            return


def _warn(errors: Sequence[str], any_answers: bool, progress: Progress) -> None:
    """Warn about endpoints that do not answer; UnderstudyError if none does."""
    if not any_answers:
        raise UnderstudyError(
            f"generate.server: no endpoint answers: {'; '.join(errors[:3])}; start a server, or correct the URL, and run again"
        )
    for text in errors:
        progress.warn(f"{text}; continuing without this endpoint until it answers")


def _differs(one: ServedModel, other: ServedModel) -> str:
    """How two endpoints differ in what they report of their models. Paths may differ between machines."""
    for name in ("name", "version", "context"):
        if getattr(one, name) != getattr(other, name):
            return f"{name} {getattr(one, name)} and {getattr(other, name)}"
    return ""


async def _known(endpoint: Endpoint, asking: Asking, model: ServedModel, known: Sequence[Identity]) -> Identity | None:
    for identity in known:
        if _differs(identity.model, model):
            continue
        if is_rounding(await mean_difference(endpoint, asking, identity.golden), identity.dtype):
            return identity
    return None


@asynccontextmanager
async def connect(
    settings: ServerConfig,
    identity: Identity,
    vocabulary: int,
    progress: Progress,
    timing: Timing = TIMING,
) -> AsyncIterator[tuple[ServedTarget, Abilities]]:
    """A pool of the endpoints, each of which serves the weights of `identity`, and what their log-probabilities mean.

    An endpoint that does not answer is asked again later. OtherWeights for other weights; UsageError for endpoints that were
    started with different flags.
    """
    asking = asking_of(settings.api, identity.model.name, vocabulary)
    checking, known = asking.waiting(timing), list[Abilities]()

    async def readmit(endpoint: Endpoint) -> None:
        await require_same(endpoint, checking, identity)
        abilities = await find_abilities(endpoint, checking, settings.logprobs, identity.dtype)
        if known and abilities != known[0]:
            raise UsageError(
                f"{endpoint.url}: its log-probabilities are {abilities.text}; those of the other endpoints are {known[0].text}; "
                "start all servers with the same flags"
            )
        known.append(abilities)

    endpoints = [Endpoint(url, settings) for url in settings.endpoints]
    async with Pool(endpoints, settings, readmit, progress, timing) as pool:
        yield ServedTarget(pool, asking), known[0]
