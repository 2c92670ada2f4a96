"""From step times and examinations to the tokens per second of a decision. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from pipeline.acceptance.decoding_speed import DecodingSpeed, DraftSpeed, TimedDraft
from pipeline.acceptance.profile_file import NotExamined, ProfileWithCounts
from pipeline.acceptance.step_times import StepTimes
from pipeline.acceptance.tokens_per_round import examined_speed
from pipeline.judgement.decision import unseen
from pipeline.judgement.schema import BASELINE, CANDIDATE, Side

_NAMES: dict[Side, TimedDraft] = {BASELINE: "baseline", CANDIDATE: "candidate"}


def measured_speed(
    times: Mapping[Side, StepTimes],
    examinations: Mapping[Side, ProfileWithCounts | NotExamined],
    seen: Collection[str],
    confidence: float,
) -> DecodingSpeed | None:
    """The speed of the sides that have `times` and were examined, over all prompts but those `seen`; None without the
    candidate."""
    digests = {side: examined_draft.profile.draft.digest for side, examined_draft in examinations.items()}
    speeds, examined = dict[Side, DraftSpeed](), (0, 0)
    for side, examination in examinations.items():
        if side not in times or isinstance(examination, NotExamined):
            continue
        counts = unseen(examination.counts, seen)
        speed = examined_speed(times[side], counts, confidence)
        speeds[side] = replace(speed, timed=timed_draft(times[side].draft, side, digests))
        if side == CANDIDATE:
            examined = len(counts), int(counts.columns["tokens"].sum())
    if CANDIDATE not in speeds:
        return None
    return times[CANDIDATE].decoding_speed(speeds[CANDIDATE], speeds.get(BASELINE), examined, confidence)


def timed_draft(digest: str | None, of: Side, digests: Mapping[Side, str | None]) -> TimedDraft:
    """Whose weights step times were measured with, seen from the draft `of`."""
    if digest is None:
        return "another"
    if digests.get(of) == digest:
        return "itself"
    return next((name for side, name in _NAMES.items() if digests.get(side) == digest), "another")
