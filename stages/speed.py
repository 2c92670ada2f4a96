"""speed: measures the seconds of decoding steps with a draft of some shape, plain and at each draft length, in turns, and
checks the speedup that follows from them by decoding: all of it twice where the two do not agree, or turns differ too much."""

from collections.abc import Callable
from dataclasses import replace

from pipeline.acceptance.decoding_speed import too_few
from pipeline.acceptance.profile_file import NotExamined, read_examination
from pipeline.acceptance.step_times import StepTimes, differ_too_much, write_step_times
from pipeline.acceptance.tokens_per_round import examined_speed
from pipeline.drafts.directory import find_draft
from pipeline.drafts.loading import load_draft
from pipeline.examination.completion_sets import completion_sets
from pipeline.examination.speed_check import check_speed
from pipeline.examination.step_timing import measure_step_times, timed_decoder, turns_of, within_seconds
from pipeline.models.devices import choose_device, timed_on
from pipeline.models.loading import load_model
from pipeline.models.out_of_memory import remedy_named
from pipeline.models.stored_pair import read_pair
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import SpeedSettings
from pipeline.running.speed_inputs import BROKEN
from pipeline.speculation.choice import passes_of, target_passes


def run(context: StageContext[SpeedSettings]) -> Outcome:
    """Decode from the middle of a few stored completions and write `step_times.json`, with a check by decoding directly.

    Inputs: the target and the draft, of which only shapes are in the key, completions, and the draft's examination. Nothing is
    written for a draft that cannot be computed: the gate refuses it.
    """
    if context.digests["examination"] == BROKEN:
        return Outcome()
    with remedy_named("step times", "set evaluate.speed.turns to 0 for no measurement"):
        _measure(context)
    return Outcome()


def _measure(context: StageContext[SpeedSettings]) -> None:
    settings, resources, inputs = context.settings, context.resources, context.inputs
    pair, device = read_pair(inputs["target"], resources.models), choose_device(resources.device)
    path, placed = find_draft(inputs["draft"], resources.models), resources.device_map("target")
    target = load_model(pair.path("target"), settings.target, device, resources.trust_remote_code, placed)
    draft = load_draft(pair, path, settings.dtype, device, resources.trust_remote_code, lambda: target)
    sets = completion_sets(inputs["completions"], "examination", settings.deployed)
    turns = turns_of(sets, settings.speed, min(settings.max_gamma, draft.longest or settings.max_gamma), pair)
    decoder = timed_decoder(target, draft, turns, settings.deployed, settings.drafting, pair.vocabulary)
    turns, needed = within_seconds(decoder, turns, settings.speed.seconds, settings.confidence)
    examination = read_examination(inputs["examination"])
    # A head is computed one operator at a time.
    passes = "eager" if draft.layers else passes_of([target, *draft.models], pair.vocabulary)

    def measure() -> StepTimes:
        with context.progress.track("decoding in turns", turns.count, "turns") as track:
            seconds = measure_step_times(decoder, turns, lambda: track.advance(1))
        times = StepTimes(
            device=timed_on(device, passes),
            prompts=len(turns.requests),
            tokens=turns.tokens,
            plain=seconds.pop(0),
            rounds=seconds,
            draft=examination.profile.draft.digest,
            needed_seconds=needed,
            target_passes=target_passes(target, pair.vocabulary, bool(draft.layers)),
        )
        if isinstance(examination, NotExamined):
            return times
        computed = examined_speed(times, examination.counts, settings.confidence)
        return replace(times, check=check_speed(decoder, turns, computed, settings.confidence, settings.speed.seconds))

    write_step_times(context.out, agreeing(measure, settings.confidence))


def agreeing(measure: Callable[[], StepTimes], confidence: float) -> StepTimes:
    """The second measurement where turns or check of the first contradict it: other work on the machine may have ended."""
    times = measure()
    contradicted = times.check is not None and not times.check.agrees
    enough = too_few(times.prompts, times.tokens) is None  # else there is no speedup in any case
    noisy = enough and differ_too_much(times.plain, times.rounds, confidence) is not None
    return measure() if contradicted or noisy else times
