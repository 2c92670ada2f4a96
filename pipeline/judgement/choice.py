"""Chooses the variant of the candidate that the rules are applied to: unquantized or quantized. Pure.

The choice is by predicted latency on dev prompts; the rules are then applied on examination prompts. A quantized variant whose
acceptance rate has collapsed is refused here, however fast it is: it is broken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.acceptance.schema import AcceptanceProfile
from pipeline.config.quantize import Variant
from pipeline.judgement.at_load import StatedLoad, mean_seconds
from pipeline.judgement.schema import Standing, StandingVerdict, VariantFigures
from pipeline.latency.load.workload import Workload

_LEAST_SHARE = 0.5  # of the acceptance rate before quantization; INT8 and INT4 cost a few hundredths


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A variant of the candidate. The first one is the unquantized draft."""

    name: Variant
    figures: VariantFigures | None  # of the examination; None where the variant could not be computed
    timed: bool  # whether its step times are known (gate.load, gate.profile)
    seconds: float | None = (
        None  # predicted mean request latency on dev at the stated load; None where it is not stable
    )

    @property
    def acceptance(self) -> float | None:
        """The acceptance rate in the examination."""
        return None if self.figures is None else self.figures.acceptance_rate.value


def contender(
    name: Variant, profile: AcceptanceProfile, load: StatedLoad | None, on_dev: Workload | None, gamma: int
) -> Contender:
    """A variant by its examination. `load`: that is stated, with its step costs. `on_dev`: its workload on dev prompts; None for
    a single contender, of which nothing is examined there."""
    headline, figures, seconds = profile.headline, None, None
    if headline is not None:
        figures = VariantFigures(
            bytes=profile.draft.bytes,
            acceptance_rate=headline.acceptance_rate,
            tokens_per_target_call=headline.tokens_per_target_call[gamma],
        )
        if load is not None and on_dev is not None:
            seconds = mean_seconds(load, on_dev)
    return Contender(name=name, figures=figures, timed=load is not None, seconds=seconds)


CHOSEN: StandingVerdict = "chosen"
SLOWER: StandingVerdict = "slower"
REFUSED: StandingVerdict = "refused"
NOT_COMPARED: StandingVerdict = "not compared"
NOT_MADE: StandingVerdict = "not made"


def not_made(name: Variant, reason: str) -> Standing:
    """The result for a variant that this draft cannot have."""
    return Standing(name=name, verdict=NOT_MADE, text=f"{name}: {reason}", figures=None, seconds=None)


def choose(contenders: Sequence[Contender]) -> list[Standing]:
    """One result per contender, in their order. Exactly one is chosen: the fastest variant that is not broken, or the first one
    where no step times are known."""
    first = contenders[0]
    timed = [contender for contender in contenders if contender.timed and _is_sound(contender, first)]
    best = (
        min(timed, key=lambda contender: float("inf") if contender.seconds is None else contender.seconds)
        if timed
        else first
    )
    only = sum(contender.timed for contender in contenders) == 1
    results = []
    for contender in contenders:
        verdict, text = _verdict(contender, best, first, only)
        results.append(
            Standing(
                name=contender.name, verdict=verdict, text=text, figures=contender.figures, seconds=contender.seconds
            )
        )
    return results


def chosen(standings: Sequence[Standing]) -> Variant:
    """The variant that `choose` chose."""
    return next(standing.name for standing in standings if standing.verdict == CHOSEN)


def _is_sound(contender: Contender, first: Contender) -> bool:
    if contender is first:
        return True
    return contender.acceptance is not None and contender.acceptance >= _LEAST_SHARE * (first.acceptance or 0.0)


def _verdict(contender: Contender, best: Contender, first: Contender, only: bool) -> tuple[StandingVerdict, str]:
    if not _is_sound(contender, first):
        figures = (
            "it cannot be computed" if contender.acceptance is None else f"acceptance rate {contender.acceptance:.3f}"
        )
        before = "" if first.acceptance is None else f" (unquantized: {first.acceptance:.3f})"
        return REFUSED, f"{contender.name} is broken: {figures}{before}"
    if not contender.timed:
        if contender is best:
            return CHOSEN, (
                f"{contender.name}: the default; without a load (gate.load) and step times of variants (gate.profile) no "
                "latency is predicted, and the fastest variant is unknown"
            )
        return (
            NOT_COMPARED,
            f"{contender.name}: no latency is predicted without its step times (gate.load, gate.profile.{contender.name})",
        )
    if contender.seconds is not None:
        figures = f"predicted mean request latency {contender.seconds:.3g} s on dev prompts"
    else:  # a single timed variant is not predicted on dev
        figures = "the only variant with step times (gate.profile)" if only else "the load exceeds its capacity"
    return (CHOSEN if contender is best else SLOWER), f"{contender.name}: {figures}"
