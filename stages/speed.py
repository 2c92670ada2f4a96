"""speed: measures tokens per second of plain decoding, with the base draft or champion, and with the candidate, in turns."""

from pipeline.acceptance.decoding_speed import DecodingSpeed, write_decoding_speed
from pipeline.acceptance.schema import read_profile
from pipeline.drafts.directory import find_draft
from pipeline.drafts.loading import load_plain
from pipeline.examination.completion_sets import completion_sets
from pipeline.examination.decoding_speed import TimedDraft, measure_speeds, some_decodes, within_seconds
from pipeline.models.loading import choose_device, hardware_class, load_model
from pipeline.models.out_of_memory import remedy_named
from pipeline.models.stored_pair import read_pair
from pipeline.running.context import Outcome, StageContext
from pipeline.running.settings import SpeedSettings


def run(context: StageContext[SpeedSettings]) -> Outcome:
    """Decode a few examination prompts and write `decoding_speed.json`."""
    with remedy_named("tokens per second", "set evaluate.speed.turns to 0 for no measurement"):
        return _measure(context)


def _measure(context: StageContext[SpeedSettings]) -> Outcome:
    """Without a file where the candidate cannot be computed: the gate refuses it."""
    settings, resources, inputs = context.settings, context.resources, context.inputs
    pair, device = read_pair(inputs["target"], resources.models), choose_device(resources.device)
    drafts = {}
    for name, role, examination in (
        ("other", "baseline", "examination_baseline"),
        ("candidate", "draft", "examination"),
    ):
        profile = read_profile(inputs[examination])
        if profile.headline is not None:
            path = find_draft(inputs[role], resources.models)
            model = load_plain(pair, path, settings.dtype, device, resources.trust_remote_code).model
            drafts[name] = TimedDraft(model, profile.draft.parameters, profile.headline.mean_acceptance_length)
    if "candidate" not in drafts:
        return Outcome({})
    placed = resources.device_map("target")
    target = load_model(pair.path("target"), pair.dtype("target"), device, resources.trust_remote_code, placed)
    sets = completion_sets(inputs["completions"], "examination", settings.deployed)
    decodes = some_decodes(sets, settings.speed, settings.drafting, settings.confidence, pair)
    decodes = within_seconds(target, decodes, len(drafts), settings.speed.seconds)
    with context.progress.track("decoding in turns", decodes.turns, "turns") as track:
        plain, speeds = measure_speeds(target, drafts, decodes, lambda: track.advance(1))
    speed = DecodingSpeed(
        device=hardware_class(device),
        prompts=len(decodes.requests),
        tokens=sum(request.limit for request in decodes.requests),
        turns=decodes.turns,
        confidence=decodes.confidence,
        plain=plain,
        baseline=speeds.get("other"),
        candidate=speeds["candidate"],
    )
    write_decoding_speed(context.out, speed)
    return Outcome({})
