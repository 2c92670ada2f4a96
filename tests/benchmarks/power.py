"""Power of the regression check, from real per-prompt traces: drafts of the benchmarks' pair, trained with other seeds.

Prompts are drawn with replacement within domains, so a draw of N prompts has the correlation and the spread of the real ones.
Two drafts are centred to equal acceptance, or to a stated loss, by moving every prompt by the same share of its tokens.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from pipeline.acceptance.profile import PromptCounts, acceptance_gain, counts_from_json, counts_json
from pipeline.judgement.power import power_of
from tests.benchmarks.figures import write
from tests.benchmarks.refpair import ReferencePair, find_pair

_TRAININGS: dict[str, tuple[int, int | None]] = {  # seed, half of the completions
    "seed 1": (1, None),
    "seed 2": (2, None),
    "one half": (1, 0),
    "other half": (2, 1),
}
_PAIRS = (
    *(("seed 0", "seed 1"), ("seed 0", "seed 2"), ("seed 1", "seed 2")),
    *(("one half", "other half"), ("seed 0", "one half")),
    ("seed 0", "base draft"),
)
_DRAWS = 5000
_MARGIN, _CONFIDENCE = 0.01, 0.95
_PROMPTS = (40, 100, 140, 400)
_LOSSES = (0.01, 0.015, 0.02)

Pair = tuple[Sequence[PromptCounts], Sequence[PromptCounts]]


def main() -> None:
    """Train, examine, draw and write."""
    drafts = _drafts()
    pairs = {f"{one} and {other}": (drafts[one], drafts[other]) for one, other in _PAIRS}
    figure = {
        "margin": _MARGIN,
        "draws": _DRAWS,
        "prompts": len(drafts["seed 0"]),
        "rates": {name: _rate(counts) for name, counts in drafts.items()},
        "pairs": [_measure(name, pair) for name, pair in pairs.items()],
    }
    write("power", "python -m tests.benchmarks power", figure)


def _measure(name: str, pair: Pair) -> dict[str, Any]:
    rng = np.random.default_rng(20261123)
    equal = _moved(pair, 0.0)
    found = acceptance_gain(*equal, _CONFIDENCE)
    power = power_of(found, -_MARGIN, _CONFIDENCE)
    assert power is not None
    needed = power.prompts_needed["0.95"]
    assert needed is not None
    return {
        "drafts": name,
        "error_of_one_prompt": found.error * found.prompts**0.5,
        "needed": needed,
        "needed_80": power.prompts_needed["0.8"],
        "refused_at_needed": 1 - _passing(equal, needed, rng)["passed"],
        "agreement": [{"prompts": count, **_passing(equal, count, rng)} for count in _PROMPTS],
        "losses": [
            {"loss": loss, "prompts": count, **_passing(_moved(pair, -loss), count, rng)}
            for loss in _LOSSES
            for count in (140, 400)
        ],
    }


def _passing(pair: Pair, prompts: int, rng: np.random.Generator) -> dict[str, float]:
    """The share of draws that pass the margin, and the power that these draws print, on average."""
    candidate, baseline = pair
    domains: dict[str, list[int]] = {}
    for number, item in enumerate(candidate):
        domains.setdefault(item.domain, []).append(number)
    passed, printed = 0, []
    for _ in range(_DRAWS):
        rows = np.concatenate(
            [rng.choice(numbers, round(prompts * len(numbers) / len(candidate))) for numbers in domains.values()]
        )
        found = acceptance_gain([candidate[row] for row in rows], [baseline[row] for row in rows], _CONFIDENCE)
        passed += found.low > -_MARGIN
        power = power_of(found, -_MARGIN, _CONFIDENCE)
        if power is not None and power.equal_passes is not None:
            printed.append(power.equal_passes)
    low, high = stats.binomtest(passed, _DRAWS).proportion_ci(method="exact")
    return {"passed": passed / _DRAWS, "low": float(low), "high": float(high), "printed": float(np.mean(printed))}


def _moved(pair: Pair, gain: float) -> Pair:
    """The pair with the first draft's counts moved so that its gain is `gain`."""
    candidate, baseline = pair
    shift = gain - (_rate(candidate) - _rate(baseline))
    return [replace(item, accepted=item.accepted + shift * item.examined) for item in candidate], baseline


def _rate(counts: Sequence[PromptCounts]) -> float:
    return sum(item.accepted for item in counts) / sum(item.examined for item in counts)


def _drafts() -> dict[str, list[PromptCounts]]:
    """Counts of drafts by name: the pair's candidate (seed 0) and base draft, and drafts trained on the same completions with
    other seeds, or on either half of them."""
    from pipeline.store.files import read_json, write_json

    pair = find_pair()
    found = {name: counts_from_json(rows) for name, rows in _examined(pair).items()}
    for name, (seed, half) in _TRAININGS.items():
        stored = pair.root / "power" / f"{name}.json"
        if not stored.exists():
            stored.parent.mkdir(exist_ok=True)
            write_json(stored, counts_json(_train(pair, seed, half)))
        found[name] = counts_from_json(read_json(stored))
    return found


def _examined(pair: ReferencePair) -> dict[str, Any]:
    """The rows of the pair's own examinations."""
    from pipeline.store.artifacts import Store
    from pipeline.store.files import read_json
    from pipeline.store.runs import find_built, require_run

    record = require_run(store := Store(pair.root), pair.run)
    parts = {"seed 0": "candidate", "base draft": "base"}
    return {
        name: read_json(find_built(store, record, f"evaluate/{part}").path / "acceptance.json")["prompts"]["deployed"]
        for name, part in parts.items()
    }


def _train(pair: ReferencePair, seed: int, half: int | None) -> list[PromptCounts]:
    """Train as `distill` does and examine the draft."""
    from pipeline.config.loading import parse_stored_config
    from pipeline.distillation.mixing import mix
    from pipeline.distillation.training import Training
    from pipeline.examination.examiner import Examiner
    from pipeline.generation.completion_store import read_completions
    from pipeline.models.stored_pair import read_pair
    from pipeline.progress import Progress
    from pipeline.speculation.sampling import Sampling
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import find_built, require_run

    record = require_run(store := Store(pair.root), pair.run)
    config = parse_stored_config(record.config, record.id).model_copy(update={"seed": seed})
    models = read_pair(find_built(store, record, "pair").path, config.pair)
    sampling = Sampling.from_config(config.sampling)
    train = [
        item
        for item in read_completions(pair.completions, {"train"})
        if half is None or int(item.id, 16) % 2 == half  # ids are digests
    ]
    training = Training(config, models, list(read_completions(pair.completions, {"dev"}, sampling)), Progress())
    with tempfile.TemporaryDirectory() as folder:
        model, _ = training.run(mix(train, config.distill.domain_shares, seed), Path(folder) / "checkpoints")
    stored = read_completions(pair.completions, {"examination"}, sampling)
    windows = Examiner(sampling, config.evaluate, pair.vocabulary).counts(model, stored)
    return [item for window in windows for item in window]


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of BENCHMARKS.md."""
    pairs, draws = figure["pairs"], figure["draws"]
    needed = [row["needed"] for row in pairs if "base" not in row["drafts"]]
    base = next(row["needed"] for row in pairs if "base" in row["drafts"])
    refused = max(row["refused_at_needed"] for row in pairs)
    apart = max(abs(cell["printed"] - cell["passed"]) for row in pairs for cell in row["agreement"])
    at_margin = [cell for row in pairs for cell in row["losses"] if cell["loss"] == figure["margin"]]
    worst = max(at_margin, key=lambda cell: cell["passed"])
    yield "## Power of the regression check\n"
    yield (
        f"Drafts of the benchmarks' pair, trained with other seeds or on other halves of the completions, and its base draft, on "
        f"{figure['prompts']} examination prompts; {draws:,} draws of prompts a cell, exact binomial bounds. Margin "
        f"{100 * figure['margin']:g} point. Drafts centred to equal acceptance need **{min(needed)} to {max(needed)} prompts** "
        f"to pass with 95% by the printed power ({base} for candidate and base draft, which differ much more by prompt); there "
        f"at most **{100 * refused:.1f} of 100** are refused. Printed and simulated power differ by at most "
        f"**{100 * apart:.1f} points**. A loss of exactly the margin passes in at most **{100 * worst['passed']:.1f} of 100** "
        f"[{100 * worst['low']:.1f}, {100 * worst['high']:.1f}].\n"
    )
    counts = [cell["prompts"] for cell in pairs[0]["agreement"]]
    heads = "".join(f" {count} prompts: simulated, printed |" for count in counts)
    yield f"| drafts | prompts for 80% | for 95% | refused there |{heads}"
    yield "|---|---|---|---|" + "---|" * len(counts)
    for row in pairs:
        cells = "".join(f" {cell['passed']:.3f}, {cell['printed']:.3f} |" for cell in row["agreement"])
        yield f"| {row['drafts']} | {row['needed_80']} | {row['needed']} | {row['refused_at_needed']:.3f} |{cells}"
    yield "\n| drafts | true loss (points) | prompts | passes | bounds |\n|---|---|---|---|---|"
    for row in pairs:
        for cell in row["losses"]:
            yield (
                f"| {row['drafts']} | {100 * cell['loss']:g} | {cell['prompts']} | {cell['passed']:.4f} "
                f"| [{cell['low']:.4f}, {cell['high']:.4f}] |"
            )
