"""How fast a job is, and how that is known: stated in the config, measured now, measured by an earlier run, or by its FLOPs."""

from dataclasses import dataclass, replace
from typing import Literal

from pipeline.config.root import Config
from pipeline.planning.earlier_runs import Measurements
from pipeline.planning.trial_runs import Measured
from pipeline.planning.work import FORWARD, Work, training_flops

Origin = Literal["stated", "measured", "earlier", "FLOPs", "shared", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Of one worker; `per_second` is None where nothing says it."""

    per_second: float | None
    origin: Origin
    why: str  # where the figure comes from, or what would give it


def throughput(
    job: str, work: Work, config: Config, known: Measurements, measured: Measured | None, parameters: float | None
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
    if config.plan.flops is not None and parameters is not None and work.rate in ("train", "examine"):
        flops = training_flops(config) if work.rate == "train" else FORWARD
        why = f"{flops} N D FLOPs at plan.flops"
        return Throughput(per_second=config.plan.flops / (flops * parameters), origin="FLOPs", why=why)
    return Throughput(per_second=None, origin="unknown", why=_remedy(key, earlier is not None, measured is not None))


def _as_planned(earlier: Work, work: Work) -> Work:
    """A run that scored recorded answers says nothing of them where more is generated than it did: its time is that of what it
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
