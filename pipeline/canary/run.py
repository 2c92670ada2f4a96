"""`understudy canary`: asks every engine, judges the answers, and keeps the result in the store."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.canary.asking import Asked, Engine, ask
from pipeline.canary.choices import CanaryDraft
from pipeline.canary.diagnosis import CountersVerdict, about_draft, about_target, about_traffic, over_all
from pipeline.canary.drafted import draft_evidence
from pipeline.canary.examined import ExaminedRun, examined_slice
from pipeline.canary.lengths import ExpectedLengths, exported_lengths
from pipeline.canary.schema import (
    CANARY,
    LARGEST,
    CanaryResult,
    DraftEvidence,
    EndpointResult,
    TargetEvidence,
)
from pipeline.config.root import Config
from pipeline.config.server import Api, EndpointConfig, ServerConfig
from pipeline.errors import UnderstudyError, UsageError
from pipeline.export.schema import Expected
from pipeline.progress import Progress
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.named import version_draft
from pipeline.registry.registry import registry_for
from pipeline.servers.endpoint import Endpoint, RequestRefused
from pipeline.servers.engines import APIS, asking_of
from pipeline.servers.retries import TIMING, TRANSIENT, retried
from pipeline.servers.target import read_model
from pipeline.store.artifacts import Store
from pipeline.store.times import utc_now
from pipeline.watch.lines import clock
from pipeline.watch.own_requests import OwnRequests
from pipeline.watch.prediction import served
from pipeline.watch.scraping import Scraper
from pipeline.watch.state import all_states

_SECTION = "watch"  # of the config, that names the engines
_RECENT_SECONDS = 86_400.0  # in which the watch has counted, if its verdict is one of today
_ANSWER_SECONDS = 300.0  # the first request to an engine may take long


@dataclass(frozen=True, kw_only=True)
class Question:
    """The champion of a config, and what its engines are asked."""

    config: Config
    store: Store
    draft: RegisteredDraft
    examined: ExaminedRun
    api: Api
    expected: Expected | None  # of the champion's export; None where there is none

    @property
    def lengths(self) -> ExpectedLengths:
        """The draft lengths of the champion's export, else that of the examination."""
        canary = self.config.watch.canary
        at_once = canary.concurrency if canary.idle else None
        gamma = self.examined.draft.config.evaluate.gamma
        return exported_lengths(self.expected, self.draft.digest, gamma, at_once)


@dataclass(frozen=True)
class EngineAnswers:
    """What each engine answered, by URL, or why it could not be asked."""

    asked: Mapping[str, Asked]
    unasked: Mapping[str, str]


def question(config: Config, store: Store) -> Question:
    """UsageError where the config names no engine that can be asked, or where there is no champion."""
    api, expected = watched_engine(config)
    registry = registry_for(config, store)
    draft = registry.champion()
    if draft is None:
        raise UsageError(f"{registry.name} has no champion; promote a draft first (`understudy run CONFIG`)")
    settings = config.watch.canary
    examined = examined_slice(version_draft(store, registry, draft).fetched(), settings.prompts, settings.max_tokens)
    return Question(config=config, store=store, draft=draft, examined=examined, api=api, expected=expected)


def watched_engine(config: Config) -> tuple[Api, Expected | None]:
    """How the engines of the config's section `watch` are asked, and the expected figures of the export. UsageError where they
    cannot be asked."""
    if not config.watch.endpoints:
        raise UsageError("watch.endpoints: it names no engine; give every replica, as http://host:port")
    served_draft = served(config)
    if served_draft.engine not in APIS:
        raise UsageError(
            f"watch.engine is {served_draft.engine}, which the canary does not support: it needs token ids in and out "
            f"({', '.join(APIS)} have them)"
        )
    return served_draft.engine, served_draft.expected


def ask_engines(asked: Question, progress: Progress) -> EngineAnswers:
    """The answers of every engine, which no look at the counters takes for traffic. One that does not answer is named; UsageError
    where the config is wrong for it."""
    watch, own = asked.config.watch, OwnRequests(asked.store, asked.draft.name)

    def waiting(by: str) -> None:
        progress.line(f"canary: {by}, looks at the engines' counters or asks them; waiting")

    with own.asking(Scraper(watch, asked.api), asked.api, waiting) as growth:
        answers = asyncio.run(_ask_all(asked))
    if not watch.canary.idle:
        return answers
    return replace(
        answers, asked={url: replace(answer, counters=growth.by_url[url]) for url, answer in answers.asked.items()}
    )


async def _ask_all(asked: Question) -> EngineAnswers:
    watch = asked.config.watch
    settings = ServerConfig(
        api=asked.api,
        endpoints=watch.endpoints,
        concurrency=watch.canary.concurrency,
        timeout_seconds=_ANSWER_SECONDS,
        key_variable=watch.key_variable,
    )
    results = await asyncio.gather(
        *(_ask_one(asked, settings, endpoint) for endpoint in watch.endpoints), return_exceptions=True
    )
    answered, unasked = dict[str, Asked](), dict[str, str]()
    for endpoint, result in zip(watch.endpoints, results, strict=True):
        if isinstance(result, Asked):
            answered[endpoint.url] = result
        elif isinstance(result, (*TRANSIENT, RequestRefused)):
            unasked[endpoint.url] = str(result)
        else:
            raise result
    return EngineAnswers(answered, unasked)


async def _ask_one(asked: Question, settings: ServerConfig, place: EndpointConfig) -> Asked:
    endpoint = Endpoint(place, settings, _SECTION)
    await endpoint.open()
    try:
        pair = asked.examined.draft.pair
        model = await retried(lambda: read_model(endpoint, asked.config.watch.model, f"{_SECTION}.model"))
        asking = asking_of(asked.api, model.name, pair.vocabulary).waiting(TIMING)
        engine = Engine(endpoint, asking, settings.concurrency)
        return await ask(engine, model, asked.examined, pair.stop_tokens)
    finally:
        await endpoint.close()


def drafts_on(asked: Question, answers: EngineAnswers, draft: CanaryDraft) -> dict[str, DraftEvidence]:
    """What the draft does on what each engine emitted, beside the engine's counts, by URL."""
    return {
        url: draft_evidence(answer, asked.examined, draft, asked.api, asked.lengths)
        for url, answer in answers.asked.items()
    }


def judge(
    asked: Question, answers: EngineAnswers, drafts: Mapping[str, DraftEvidence], counters: CountersVerdict
) -> CanaryResult:
    """The three answers. `counters`: the verdict of the watch on production's."""
    endpoints = [_endpoint(asked, url, answer, drafts[url]) for url, answer in answers.asked.items()]
    target = over_all([(endpoint.url, endpoint.about_target) for endpoint in endpoints])
    draft = over_all([(endpoint.url, endpoint.about_draft) for endpoint in endpoints])
    return CanaryResult(
        time=utc_now(),
        name=asked.draft.name,
        version=asked.draft.version,
        digest=asked.draft.digest,
        engine=asked.api,
        prompts=len(asked.examined.completions),
        max_tokens=asked.examined.max_tokens,
        target=target,
        traffic=about_traffic(counters, target, draft),
        draft=draft,
        endpoints=endpoints,
        unasked=dict(answers.unasked),
    )


def _endpoint(asked: Question, url: str, answer: Asked, draft: DraftEvidence) -> EndpointResult:
    target = TargetEvidence(
        dtype=asked.examined.draft.config.pair.target.dtype,
        log_p_tokens=answer.scored,
        log_p_difference=answer.difference,
        problem=answer.problem,
        completions=len(answer.emitted),
        equal=len(answer.emitted) - len(answer.divergences),
        divergences=answer.divergences,
        log_p_largest=sorted(answer.off_N.tolist(), reverse=True)[:LARGEST],
        text_tokens=answer.text_tokens,
    )
    is_it = about_target(target)
    return EndpointResult(
        url=url,
        model=answer.model.name,
        version=answer.model.version,
        target=target,
        draft=draft,
        about_target=is_it,
        about_draft=about_draft(draft, is_it if asked.examined.draft.kind.reads_states else None),
    )


def watched_counters(store: Store, name: str) -> CountersVerdict:
    """The verdict of the watch on production's counters: only on those that it counted in the last day."""
    states, since = list(all_states(store, name).values()), time.time() - _RECENT_SECONDS
    recent = [state for state in states if (state.looked_at or 0.0) > since]
    if recent:
        return CountersVerdict(any(state.verdict == "low" for state in recent))
    looks = [state.reader.time for state in states if state.reader.time is not None]
    if not looks:
        return CountersVerdict(None, "the watch has not looked yet (`understudy watch`)")
    if max(looks) <= since:
        return CountersVerdict(None, f"the watch has not looked since {clock(max(looks))}")
    why = (
        "a first look has nothing to compare with" if max(state.looks for state in states) == 1 else "see its own lines"
    )
    return CountersVerdict(
        None, f"the watch looked at {clock(max(looks))}, and has counted no drafts of production in the last day: {why}"
    )


def run_canary(config: Config, store: Store, progress: Progress) -> CanaryResult:
    """Ask, judge, and write the result to the store. UnderstudyError where no engine could be asked."""
    asked = question(config, store)
    answers = ask_engines(asked, progress)
    for problem in answers.unasked.values():
        progress.warn(f"canary: {problem}")
    if not answers.asked:
        raise UnderstudyError(f"canary: no engine could be asked: {'; '.join(list(answers.unasked.values())[:3])}")
    drafts = drafts_on(asked, answers, CanaryDraft(asked.examined.draft, progress, store, asked.draft.name))
    result = judge(asked, answers, drafts, watched_counters(store, asked.draft.name))
    CANARY.write(store, result, result.name)
    return result
