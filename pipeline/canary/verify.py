"""`understudy champion verify`: after a reload, do the engines serve what was examined, and is it as good as predicted?"""

import time
from dataclasses import dataclass, field, replace

from pipeline.canary.choices import CanaryDraft
from pipeline.canary.decision import Seen, VerifyDecision, decide
from pipeline.canary.diagnosis import CountersVerdict, about_draft
from pipeline.canary.production import Production, compare
from pipeline.canary.run import EngineAnswers, Question, ask_engines, drafts_on, judge, question
from pipeline.canary.schema import CANARY, CanaryResult
from pipeline.canary.verified import VERIFICATION, EngineCheck
from pipeline.config.root import Config
from pipeline.engines.counts import Counts
from pipeline.errors import UnderstudyError, UsageError
from pipeline.handover.rollback import Rollback, roll_back
from pipeline.handover.settle import Handover, handover, tell_again
from pipeline.progress import Progress
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.named import version_draft
from pipeline.registry.registry import registry_for
from pipeline.store.artifacts import Store
from pipeline.store.times import utc_now
from pipeline.watch.own_requests import OwnRequests
from pipeline.watch.reading import EngineReader

_LOOKS = 20  # at production, and at engines that are starting, within the time to wait
_NOT_THE_WATCH = CountersVerdict(None, "the watch is not read: its counts may be of the previous draft")
_PATIENCE = 0.5  # share of that time after which an engine that serves other weights is asked to reload again


@dataclass
class _Verifying:
    """The state of a verification between two looks."""

    asked: Question
    draft: CanaryDraft
    seconds: float
    began: float = field(default_factory=time.monotonic)
    reloaded: bool = False
    reader: EngineReader | None = None
    counts: Counts | None = None
    canary: CanaryResult | None = None
    answers: EngineAnswers | None = None
    problems: tuple[str, ...] = ()  # of reading the counters
    printed: set[str] = field(default_factory=set)  # problems of asking the engines
    announced: bool = False  # that it is waited for

    @property
    def passed(self) -> float:
        return time.monotonic() - self.began

    @property
    def waited(self) -> bool:
        """Whether the engines had time to load the champion."""
        return self.passed >= _PATIENCE * self.seconds

    @property
    def is_settled(self) -> bool:
        """Whether the canary need not be asked again."""
        return self.canary is not None and not self.canary.unasked and self.canary.draft.verdict != "not_as_examined"


def verify(config: Config, store: Store, progress: Progress, seconds: float) -> EngineCheck:
    """Look, and do what is due, for at most `seconds`, and as long again after a reload; the result is written to the store.

    UsageError where the config names no engine that can be asked, or where there is no champion. UnderstudyError where another
    draft became champion meanwhile: nothing that was seen is of it.
    """
    asked = question(config, store)
    draft = CanaryDraft(asked.examined.draft, progress, store, asked.draft.name)
    state = _Verifying(asked=asked, draft=draft, seconds=seconds)
    while True:
        production = _look(state, progress)
        decision = _decide(state, production)
        if decision.action == "reload":
            progress.warn(f"verify: {decision.why}; asking it to reload again")
            with handover(config, store, progress) as scope:
                _require_champion(scope, asked.draft)
                tell_again(scope)
            state.reloaded, state.began, state.canary = True, time.monotonic(), None
        elif decision.action != "wait":
            break
        elif not state.announced:
            progress.line(f"verify: {decision.why}; waiting for at most {seconds:,.0f} s (--wait)")
            state.announced = True
        time.sleep(max(0.01, seconds / _LOOKS))
    assert state.canary is not None  # of the last look
    if decision.action in ("alarm", "roll_back"):
        with handover(config, store, progress) as scope:
            _require_champion(scope, asked.draft)
            decision = _rolled_back(scope, decision, production) if decision.action == "roll_back" else decision
    fits = _fits(state, progress) if state.canary.draft.verdict == "not_as_examined" else ""
    verification = EngineCheck(
        time=utc_now(),
        name=asked.draft.name,
        version=asked.draft.version,
        action=decision.action,
        why=decision.why + (f"; its counts are those of version {fits}" if fits else ""),
        reloaded=state.reloaded,
        fits=fits,
        canary=state.canary,
        production=production,
    )
    VERIFICATION.write(store, verification, verification.name)
    return verification


def _look(state: _Verifying, progress: Progress) -> Production:
    """Ask the engines, unless they were found right; then read what production has counted since."""
    asked, watch = state.asked, state.asked.config.watch
    if not state.is_settled:
        state.answers = ask_engines(asked, progress)
        for problem in sorted(set(state.answers.unasked.values()) - state.printed):
            progress.warn(f"canary: {problem}")  # once: an engine that starts is asked many times
        state.printed |= set(state.answers.unasked.values())
        state.canary = judge(asked, state.answers, drafts_on(asked, state.answers, state.draft), _NOT_THE_WATCH)
        CANARY.write(asked.store, state.canary, state.canary.name)
        own = OwnRequests(asked.store, asked.draft.name)
        state.reader, state.counts = EngineReader(watch.model_copy(update={"log": None}), asked.api, own), None
        state.reader.read(time.time())  # the canary's own requests are before it
    elif state.reader is not None:
        seen, _ = state.reader.read(time.time())
        is_known = state.canary is not None and (state.canary.draft.verdict == "as_examined" or state.waited)
        # Else the counts may be of the draft before.
        state.counts = _sum(state.counts, seen.counts) if is_known else None
        state.problems = seen.problems
    if state.counts is None and state.problems and state.passed >= state.seconds:
        return Production(
            state="not_known", why=f"production's counters could not be read: {'; '.join(state.problems[:3])}"
        )
    return compare(state.counts or Counts(drafts=0.0, accepted=0.0), asked.expected, asked.draft.digest, watch.margin)


def _sum(counts: Counts | None, other: Counts | None) -> Counts | None:
    return counts if other is None else other if counts is None else counts + other


def _decide(state: _Verifying, production: Production) -> VerifyDecision:
    canary, config = state.canary, state.asked.config
    assert canary is not None  # `_look` was called
    return decide(
        Seen(
            target=canary.target.verdict,
            draft=canary.draft.verdict,
            unasked=bool(canary.unasked),
            production=production.state,
            can_reload=config.promote.notice is not None,
            reloaded=state.reloaded,
            waited=state.waited,
            late=state.passed >= state.seconds,
            may_roll_back=config.watch.rollback,
        )
    )


def _require_champion(scope: Handover, draft: RegisteredDraft) -> None:
    champion = scope.registry.entry().champion
    if champion != draft.version:
        now = f"version {champion} is" if champion else "there is no"
        raise UnderstudyError(
            f"{draft.name}: version {draft.version} was verified, and meanwhile {now} champion; nothing was done; call "
            "`understudy champion verify CONFIG` again"
        )


def _rolled_back(scope: Handover, decision: VerifyDecision, production: Production) -> VerifyDecision:
    """The champion before is made champion again, and its notice reloads the engines; an alarm where there is none."""
    try:
        roll_back(scope, Rollback(reason=f"verify: {production.why}"))
    except UsageError as error:
        return VerifyDecision("alarm", f"{decision.why}; it was not rolled back: {error}")
    return decision


def _fits(state: _Verifying, progress: Progress) -> str:
    """The version that was champion before, if the counts of an engine that is wrong are those of its draft; else empty."""
    asked, answers, canary = state.asked, state.answers, state.canary
    assert answers is not None and canary is not None  # noqa: PT018  # asked
    registry = registry_for(asked.config, asked.store)
    version = registry.entry().previous
    if not version:
        return ""
    wrong = {endpoint.url for endpoint in canary.endpoints if endpoint.about_draft.verdict == "not_as_examined"}
    some = EngineAnswers({url: answer for url, answer in answers.asked.items() if url in wrong}, {})
    try:
        draft = version_draft(asked.store, registry, registry.champion_at(version))
        # Its export may have had another draft length.
        other = replace(asked, examined=replace(asked.examined, draft=draft), expected=None)
        drafts = drafts_on(other, some, CanaryDraft(draft, progress))
    except UnderstudyError:  # its run is gone, or it is of another pair
        return ""
    return version if all(about_draft(evidence).verdict == "as_examined" for evidence in drafts.values()) else ""
