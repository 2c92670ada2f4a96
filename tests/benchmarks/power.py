"""Power of the regression check, from real per-prompt traces: drafts of the benchmarks' pair, trained with other seeds.

Prompts are drawn with replacement within domains, so a draw of N prompts has the correlation and the spread of the real ones.
Two drafts are centred to equal acceptance, or to a stated loss, by moving every prompt by the same share of its tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipeline.acceptance.intervals import Interval, ratio_gain
from pipeline.acceptance.profile import PromptCounts
from pipeline.judgement.power import has_power, pass_probability, power_of
from tests.benchmarks.drafts import acceptance_rate
from tests.benchmarks.figures import write
from tests.benchmarks.refpair import find_pair
from tests.benchmarks.retrained import examination_counts, load_drafts

_PAIRS = (
    *(("seed 0", f"seed {seed}") for seed in (1, 2, 3, 4)),
    ("seed 1", "seed 2"),
    *(("one half", "other half"), ("seed 0", "one half")),
    ("seed 0", "base draft"),
)
_DRAWS = 10_000
_MARGIN, _CONFIDENCE = 0.01, 0.95
_PROMPTS = (40, 100, 140, 400)
_BEYOND = (0.015, 0.02)

Floats = NDArray[np.float64]


class Traces(NamedTuple):
    """Two drafts over N prompts: accepted tokens of each, examined tokens, domain by number."""

    ours_N: Floats
    theirs_N: Floats
    examined_N: Floats
    domains_N: NDArray[np.int64]

    def moved(self, gain: float) -> "Traces":
        """With the first draft's counts moved so that its gain is `gain`."""
        shift = gain - float((self.ours_N - self.theirs_N).sum() / self.examined_N.sum())
        return self._replace(ours_N=self.ours_N + shift * self.examined_N)

    def drawn(self, prompts: int, rng: np.random.Generator) -> "Traces":
        """`prompts` prompts, drawn with replacement, with the shares of the domains."""
        parts = [np.flatnonzero(self.domains_N == domain) for domain in np.unique(self.domains_N)]
        share = prompts / len(self.examined_N)
        rows = np.concatenate([rng.choice(part, round(share * len(part))) for part in parts])
        return Traces(*(column[rows] for column in self))

    @property
    def gain(self) -> Interval:
        return ratio_gain(
            self.ours_N, self.examined_N, self.theirs_N, self.examined_N, self.domains_N.tolist(), _CONFIDENCE
        )


def main() -> None:
    """Train, examine, draw and write."""
    pair = find_pair()
    drafts = {name: examination_counts(pair, model) for name, model in load_drafts(pair).items()}
    figure = {
        "margin": _MARGIN,
        "draws": _DRAWS,
        "prompts": len(drafts["seed 0"]),
        "rates": {name: acceptance_rate(counts) for name, counts in drafts.items()},
        "pairs": [_measure(f"{one} and {other}", _traces(drafts[one], drafts[other])) for one, other in _PAIRS],
    }
    write("power", "python -m tests.benchmarks power", figure)


def _traces(ours: Sequence[PromptCounts], theirs: Sequence[PromptCounts]) -> Traces:
    assert [item.id for item in ours] == [item.id for item in theirs]
    names = sorted({item.domain for item in ours})
    return Traces(
        np.array([item.accepted for item in ours]),
        np.array([item.accepted for item in theirs]),
        np.array([item.examined for item in ours]),
        np.array([names.index(item.domain) for item in ours]),
    )


def _measure(name: str, traces: Traces) -> dict[str, Any]:
    rng = np.random.default_rng(20261123)
    equal = traces.moved(0.0)
    power = power_of(equal.gain, -_MARGIN, _CONFIDENCE)
    assert power is not None
    needed = power.prompts_needed["0.95"]
    assert needed is not None
    return {
        "drafts": name,
        "gain": asdict(traces.gain.figure),
        "error_of_one_prompt": equal.gain.error * len(traces.examined_N) ** 0.5,
        "needed": needed,
        "needed_80": power.prompts_needed["0.8"],
        "at_needed": _passing(equal, needed, rng),
        "agreement": [{"prompts": count, **_passing(equal, count, rng)} for count in _PROMPTS],
        "losses": [
            {"loss": loss, "prompts": count, **_passing(traces.moved(-loss), count, rng)}
            for loss in (_MARGIN, *_BEYOND)
            for count in _PROMPTS
            if loss == _MARGIN or count >= len(traces.examined_N)
        ],
    }


def _passing(traces: Traces, prompts: int, rng: np.random.Generator) -> dict[str, float]:
    """The share of draws that pass the margin, and the power of an equal draft that these draws print, on average."""
    passed, printed = 0, []
    for _ in range(_DRAWS):
        found = traces.drawn(prompts, rng).gain
        passed += found.low > -_MARGIN
        if has_power(found):
            printed.append(pass_probability(found, 0.0, -_MARGIN))
    low, high = stats.binomtest(passed, _DRAWS).proportion_ci(method="exact")
    return {"passed": passed / _DRAWS, "low": float(low), "high": float(high), "printed": float(np.mean(printed))}


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    pairs = figure["pairs"]
    needed = [row["needed"] for row in pairs if "base" not in row["drafts"]]
    base = next(row["needed"] for row in pairs if "base" in row["drafts"])
    fewest = min((row["at_needed"] for row in pairs), key=lambda cell: cell["passed"])
    apart = max(abs(cell["printed"] - cell["passed"]) for row in pairs for cell in row["agreement"])
    at_margin = [cell for row in pairs for cell in row["losses"] if cell["loss"] == figure["margin"]]
    worst = max(at_margin, key=lambda cell: cell["passed"])
    above = sum(cell["low"] > 0.025 for cell in at_margin)
    yield "## Power of the regression check\n"
    yield (
        f"Drafts of the benchmarks' pair, trained with other seeds or on other halves of the completions, and its base draft, on "
        f"{figure['prompts']} examination prompts; {figure['draws']:,} draws of prompts a cell, exact binomial bounds (95%). "
        f"Margin {100 * figure['margin']:g} point.\n"
    )
    yield (
        f"- Drafts centred to equal acceptance need **{min(needed)} to {max(needed)} prompts** to pass with 95% by the printed "
        f"power ({base} for candidate and base draft, which differ much more by prompt). There at most "
        f"**{100 * (1 - fewest['passed']):.1f} of 100** "
        f"[{100 * (1 - fewest['high']):.1f}, {100 * (1 - fewest['low']):.1f}] are refused."
    )
    yield f"- Printed and simulated power differ by at most **{100 * apart:.1f} points**."
    yield (
        f"- A loss of exactly the margin passes in at most **{100 * worst['passed']:.1f} of 100** [{100 * worst['low']:.1f}, "
        f"{100 * worst['high']:.1f}]; in {above} of {len(at_margin)} cells the lower bound is above 2.5.\n"
    )
    counts = [cell["prompts"] for cell in pairs[0]["agreement"]]
    heads = "".join(f" {count} prompts: simulated, printed |" for count in counts)
    yield f"| drafts | prompts for 80% | for 95% | refused there |{heads}"
    yield "|---|---|---|---|" + "---|" * len(counts)
    for row in pairs:
        cells = "".join(f" {cell['passed']:.3f}, {cell['printed']:.3f} |" for cell in row["agreement"])
        refused = 1 - row["at_needed"]["passed"]
        yield f"| {row['drafts']} | {row['needed_80']} | {row['needed']} | {refused:.3f} |{cells}"
    losses = [(cell["loss"], cell["prompts"]) for cell in pairs[0]["losses"]]
    yield "\nShare that passes, with the upper bound, by true loss in points and number of prompts:\n"
    yield "| drafts |" + "".join(f" {100 * loss:g}: {count} |" for loss, count in losses)
    yield "|---|" + "---|" * len(losses)
    for row in pairs:
        yield f"| {row['drafts']} |" + "".join(f" {cell['passed']:.4f}, {cell['high']:.4f} |" for cell in row["losses"])
