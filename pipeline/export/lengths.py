"""The draft length that the engine is started with, or the schedule by batch size for the load that the run states."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.latency.load.measured_losses import said_of_losses
from pipeline.latency.load.prediction import draft_option
from pipeline.latency.load.schedule import Schedule, make_schedule
from pipeline.latency.load.workload import read_workload
from pipeline.registry.named import Draft

ZERO_WARNING = (
    "the schedule has batch sizes with 0 draft tokens, and an engine's 0 is not plain decoding: measure it under your load "
    "before you rely on it"
)


@dataclass(frozen=True)
class DraftLengths:
    """`by_batch`: entry n - 1 is the draft length at batch size n; empty for one length at every batch size."""

    gamma: int  # the longest
    by_batch: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def used(self) -> list[int]:
        """The draft lengths above 0 that occur, ascending."""
        return sorted({self.gamma, *self.by_batch} - {0})


def choose_lengths(draft: Draft, schedules: bool, given: int | None = None) -> DraftLengths:
    """The length that is `given`; else `evaluate.gamma` of the run, or with `gate.load` and step times of the variant the
    schedule, if the engine has `schedules`."""
    if given is not None:
        return DraftLengths(given)
    config = draft.config
    plain = config.evaluate.gamma
    profile = config.gate.profile.get(draft.variant)
    if config.gate.load is None or profile is None or draft.given:  # its steps have other times
        return DraftLengths(plain)
    if not Path(profile).is_file():
        raise UsageError(
            f"gate.profile.{draft.variant}: {profile}: not there, and the draft lengths for gate.load need it; restore it"
        )
    costs, workload = read_step_costs(Path(profile)), read_workload(draft.examination.path)
    if not costs.plain:
        return DraftLengths(plain, notes=(f"{profile} has no measurement of plain decoding, so there is no schedule",))
    cap = config.gate.load.max_batch
    workload = workload.up_to(min(costs.max_gamma, workload.max_gamma))
    schedule = make_schedule([draft_option(draft.variant, workload, costs, cap)])
    lengths = _from_schedule(schedule.lengths_N.tolist(), plain, schedules)
    losses = [said for option in schedule.drafts if option.losses for said in said_of_losses(option.losses.to_plain)]
    of_times = _said_of_times(schedule, f"gate.profile.{draft.variant}")
    return replace(lengths, notes=(*lengths.notes, *of_times, *(losses if lengths.by_batch else ())))


def _said_of_times(schedule: Schedule, where: str) -> list[str]:
    """How certain the draft lengths are, and which were not measured at such loads."""
    said, errors = [], list(dict.fromkeys(accuracy.said for accuracy in schedule.accuracy_N if accuracy.fitted))
    if errors:
        unknown = "; a speedup within that error is not certain" if schedule.uncertain_N.any() else ""
        said.append(f"draft lengths by {where}: {', '.join(errors)}{unknown}")
    guessed = [number for number, is_so in enumerate(schedule.measured_N, 1) if not is_so]
    if guessed:
        said.append(
            f"{where} has no times of the draft lengths at {len(guessed)} of {len(schedule.measured_N)} batch sizes (from "
            f"{guessed[0]} on): they are interpolated or extrapolated; measure them before you serve this"
        )
    return said


def _from_schedule(lengths_N: Sequence[int], plain: int, schedules: bool) -> DraftLengths:
    cap = len(lengths_N)
    if not any(lengths_N):
        return DraftLengths(
            plain,
            notes=(
                f"by gate.profile, speculation is not faster at any batch size up to {cap}; measure before you serve this",
            ),
        )
    if not schedules or len(set(lengths_N)) == 1:
        return DraftLengths(max(lengths_N))
    return DraftLengths(max(lengths_N), tuple(lengths_N), (ZERO_WARNING,) if 0 in lengths_N else ())
