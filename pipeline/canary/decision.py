"""What `champion verify` does about what it saw. Pure.

A draft is rolled back only for what it does itself: not where the engine serves other weights or contradicts itself, nor where
the target was changed.
"""

from dataclasses import dataclass
from typing import Literal

from pipeline.canary.production import State
from pipeline.canary.schema import Verdict

Action = Literal["verified", "wait", "reload", "roll_back", "alarm", "unverified"]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of all engines. `unasked`: some engine did not answer. `reloaded`: a reload was asked for because of this
    already. `waited`: engines had time to load the champion. `late`: the time to wait is over."""

    target: Verdict
    draft: Verdict
    unasked: bool
    production: State
    can_reload: bool  # promote.notice names who reloads
    reloaded: bool
    waited: bool
    late: bool
    may_roll_back: bool  # watch.rollback


@dataclass(frozen=True)
class VerifyDecision:
    action: Action
    why: str


def decide(seen: Seen) -> VerifyDecision:
    """The one thing to do now. `wait`: look again."""
    if seen.draft == "not_as_examined":
        return _not_as_exported(seen, "an engine does not serve the champion as it was exported")
    if seen.unasked:
        return _or_wait(seen, VerifyDecision("unverified", "an engine does not answer"))
    if seen.target == "contradictory":
        return VerifyDecision(
            "alarm",
            "an engine's log p and its text contradict each other: the engine is at fault, and a retraining "
            "does not help; compare its answers without the draft, and start it as the export does",
        )
    if seen.target == "changed":
        return VerifyDecision("alarm", "the target is not the one with which the draft was examined: retrain the draft")
    if seen.draft == "inconclusive" and not seen.waited:
        return VerifyDecision("wait", "the engines may still load the champion, and the canary is inconclusive")
    if seen.production == "otherwise":
        return _not_as_exported(seen, "the engines do not choose draft tokens as the champion was exported")
    open_questions = "inconclusive" in (seen.target, seen.draft)
    if seen.production == "short":
        return _falls_short(seen, open_questions)
    if open_questions and seen.production != "as_predicted":
        missing = VerifyDecision("unverified", "neither the canary nor production's counters are conclusive")
        return _or_wait(seen, missing) if seen.production == "too_few" else missing
    if seen.production == "too_few":
        return _or_wait(
            seen,
            VerifyDecision(
                "verified", "the engines serve what was examined; production has too few drafts to be compared yet"
            ),
        )
    return VerifyDecision("verified", "the engines serve what was examined")


def _not_as_exported(seen: Seen, what: str) -> VerifyDecision:
    """Reload once, for it may load the export then; never the draft's fault."""
    if not seen.can_reload:
        return VerifyDecision("alarm", f"{what}, and without promote.notice nothing reloads it")
    if not seen.reloaded:
        return VerifyDecision("reload" if seen.waited else "wait", what)
    return _or_wait(seen, VerifyDecision("alarm", f"{what}, after promote.notice asked it to reload again"))


def _falls_short(seen: Seen, open_questions: bool) -> VerifyDecision:
    if open_questions:
        return VerifyDecision(
            "alarm", "production's counters fall short, and it is not known whether the engines serve what was examined"
        )
    short = "the engines serve what was examined, and the draft falls short of its examination in production"
    return (
        VerifyDecision("roll_back", short)
        if seen.may_roll_back
        else VerifyDecision("alarm", f"{short} (watch.rollback is off)")
    )


def _or_wait(seen: Seen, otherwise: VerifyDecision) -> VerifyDecision:
    return otherwise if seen.late else VerifyDecision("wait", otherwise.why)
