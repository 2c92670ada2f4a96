"""How fast a job is, and how that is known: stated in the config, measured now, measured by an earlier run, or by its FLOPs."""

from dataclasses import dataclass, replace
from typing import Literal

from pipeline.config.root import Config
from pipeline.drafts.kinds import PLAIN, Kind
from pipeline.planning.earlier_runs import Measurements
from pipeline.planning.same_inputs import draft_kind
from pipeline.planning.trial_runs import TrialCosts
from pipeline.planning.work import FORWARD, Work, training_flops

Origin = Literal["stated", "measured", "earlier", "FLOPs", "shared", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The throughput of one worker; `per_second` is None where it is unknown."""

    per_second: float | None
    origin: Origin
    why: str  # where the figure comes from, or what would give it


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Parameters of the models where they are known, and what kind of draft it is."""

    draft: float | None
    target: float | None
    kind: Kind = PLAIN


def sizes_of(config: Config, known: Measurements) -> Sizes:
    """What runs have counted goes before what is stated."""
    return Sizes(
        draft=known.draft_parameters or config.plan.draft_parameters,
        target=known.target_parameters or config.plan.target_parameters,
        kind=draft_kind(config),
    )


def throughput(
    job: str, work: Work, config: Config, known: Measurements, measured: TrialCosts | None, sizes: Sizes
) -> Throughput:
    """What is stated goes before what was measured, and that before an estimate by FLOPs."""
    stated, key = _stated(work, config)
    if stated is not None:
        return Throughput(per_second=stated, origin="stated", why=key)
    if measured is not None and job in measured.jobs:
        return _of(work, measured.jobs[job].seconds, "measured", "two small runs on this machine")
    earlier = known.jobs.get(job)
    if earlier is not None and not earlier.resumed:
        device = f" on {earlier.device}" if earlier.device else ""
        return _of(_as_planned(earlier.work, work), earlier.seconds, "earlier", f"run {earlier.run}{device}")
    if config.plan.flops is not None and sizes.draft is not None and work.rate in ("train", "examine"):
        return _by_flops(work, config, config.plan.flops, sizes.draft, sizes)
    return Throughput(per_second=None, origin="unknown", why=_remedy(key, earlier is not None, measured is not None))


def _by_flops(work: Work, config: Config, flops: float, draft: float, sizes: Sizes) -> Throughput:
    """Passes of the draft, one for each place of a block that is computed after another; for a head also one of its target."""
    factor = training_flops(config) if work.rate == "train" else FORWARD
    per_token, why = factor * draft, f"{factor} N D FLOPs at plan.flops"
    if sizes.kind.reads_states:
        if sizes.target is None:
            why = "each step has a pass of the target, whose size is not known; state plan.target_parameters"
            return Throughput(per_second=None, origin="unknown", why=why)
        trained = config.distill.unrolled_steps or sizes.kind.unrolled
        places = (trained if work.rate == "train" else config.evaluate.max_gamma) if sizes.kind.unrolled else 1
        per_token = per_token * (places or 1) + FORWARD * sizes.target
        each = f" for each of {places} places" if sizes.kind.unrolled else ""
        why += f"{each}, and {FORWARD} N D of the target"
    return Throughput(per_second=flops / per_token, origin="FLOPs", why=why)


def _as_planned(earlier: Work, work: Work) -> Work:
    """A run that scored recorded answers is no measurement where more is generated than it did: its time is that of what it
    generated, at most."""
    if work.rate != "generate" or earlier.tokens_out * work.amount >= work.tokens_out * earlier.amount:
        return earlier
    return replace(earlier, amount=earlier.tokens_out * work.amount / work.tokens_out)


def _of(work: Work, seconds: float, origin: Origin, why: str) -> Throughput:
    if seconds <= 0 or work.amount <= 0:
        what = "took no time that could be measured" if work.amount > 0 else "generated nothing"
        return Throughput(per_second=None, origin="unknown", why=f"it {what}")
    return Throughput(per_second=work.of_one(work.workers) / seconds, origin=origin, why=why)


def _stated(work: Work, config: Config) -> tuple[float | None, str]:
    if work.rate in ("speed", "other"):
        return None, ""
    key = f"{work.rate}_tokens_per_second"
    return getattr(config.plan, key), f"plan.{key}"


def _remedy(key: str, resumed: bool, measuring: bool) -> str:
    if measuring:
        return f"not part of the small runs{f'; state {key}' if key else ''}"
    why = "never measured"
    if resumed:
        why = "only the last part was timed: tasks of a scheduler, or a run that was killed, had made the rest"
    return f"{why}; {f'state {key}, or ' if key else ''}measure it with --measure"
