"""Power of the regression check, from real per-prompt traces: drafts of the benchmarks' pair, trained with other seeds.

Prompts are drawn with replacement within domains, so a draw of N prompts has the correlation and the spread of the real ones.
Two drafts are centred to equal acceptance, or to a stated loss, by moving every prompt by the same share of its tokens.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from pipeline.acceptance.profile import PromptCounts, acceptance_gain, counts_from_json, counts_json
from pipeline.judgement.power import power_of
from tests.benchmarks.figures import write
from tests.benchmarks.refpair import find_pair

_SEEDS = (1, 2, 3)
_DRAWS = 2000
_MARGIN, _CONFIDENCE = 0.01, 0.95
_PROMPTS = (40, 100, 140, 400)
_LOSSES = (0.01, 0.015, 0.02)

Pair = tuple[Sequence[PromptCounts], Sequence[PromptCounts]]


def main() -> None:
    """Train, examine, draw and write."""
    drafts = _drafts()
    pairs = {f"{one} and {other}": (drafts[one], drafts[other]) for one, other in itertools.combinations(drafts, 2)}
    figure = {
        "margin": _MARGIN,
        "draws": _DRAWS,
        "prompts": len(drafts["0"]),
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
    """Counts of the pair's candidate (seed 0) and of drafts trained with other seeds on the same completions."""
    from pipeline.config.loading import parse_stored_config
    from pipeline.progress import Progress
    from pipeline.running.context import StageContext
    from pipeline.store.artifacts import Store
    from pipeline.store.files import read_json, write_json
    from pipeline.store.runs import find_built, require_run
    from stages import distill

    pair = find_pair()
    store = Store(pair.root)
    record = require_run(store, pair.run)
    config = parse_stored_config(record.config, record.id)
    examined = read_json(find_built(store, record, "evaluate/candidate").path / "acceptance.json")
    found = {"0": counts_from_json(examined["prompts"]["deployed"])}
    for seed in _SEEDS:
        out = pair.root / "seeds" / str(seed)
        if not (out / "counts.json").exists():
            out.mkdir(parents=True, exist_ok=True)
            distill.run(
                StageContext(
                    config=config.model_copy(update={"seed": seed}),
                    job_id=f"distill, seed {seed}",
                    task=None,
                    inputs={"draft": find_built(store, record, "pair").path, "completions": pair.completions},
                    digests={},
                    facts={},
                    out=out,
                    store=pair.root,
                    run_id=record.id,
                    progress=Progress(),
                )
            )
            write_json(out / "counts.json", counts_json(_examine(pair.completions, out / "draft", config)))
        found[str(seed)] = counts_from_json(read_json(out / "counts.json"))
    return found


def _examine(completions: Path, draft: Path, config: Any) -> list[PromptCounts]:
    from pipeline.examination.on_completions import Settings, examine_on, open_completions

    settings = Settings(evaluate=config.evaluate, dtype=config.pair.draft.dtype)
    return list(examine_on(open_completions(completions), str(draft), settings).counts)


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of BENCHMARKS.md."""
    pairs, draws = figure["pairs"], figure["draws"]
    needed = [row["needed"] for row in pairs]
    refused = max(row["refused_at_needed"] for row in pairs)
    apart = max(abs(cell["printed"] - cell["passed"]) for row in pairs for cell in row["agreement"])
    at_margin = [cell for row in pairs for cell in row["losses"] if cell["loss"] == figure["margin"]]
    worst = max(at_margin, key=lambda cell: cell["passed"])
    yield "## Power of the regression check\n"
    yield (
        f"{len(figure['rates'])} drafts of the benchmarks' pair, trained with other seeds, on {figure['prompts']} examination "
        f"prompts; {draws:,} draws of prompts a cell, exact binomial bounds. Margin {100 * figure['margin']:g} point. Drafts "
        f"centred to equal acceptance need **{min(needed)} to {max(needed)} prompts** to pass with 95% by the printed power; "
        f"there at most **{100 * refused:.1f} of 100** are refused. Printed and simulated power differ by at most "
        f"**{100 * apart:.1f} points**. A loss of exactly the margin passes in at most **{100 * worst['passed']:.1f} of 100** "
        f"[{100 * worst['low']:.1f}, {100 * worst['high']:.1f}].\n"
    )
    counts = [cell["prompts"] for cell in pairs[0]["agreement"]]
    heads = "".join(f" {count} prompts: simulated, printed |" for count in counts)
    yield f"| seeds | prompts for 80% | for 95% | refused there |{heads}"
    yield "|---|---|---|---|" + "---|" * len(counts)
    for row in pairs:
        cells = "".join(f" {cell['passed']:.3f}, {cell['printed']:.3f} |" for cell in row["agreement"])
        yield f"| {row['drafts']} | {row['needed_80']} | {row['needed']} | {row['refused_at_needed']:.3f} |{cells}"
    yield "\n| seeds | true loss (points) | prompts | passes | bounds |\n|---|---|---|---|---|"
    for row in pairs:
        for cell in row["losses"]:
            yield (
                f"| {row['drafts']} | {100 * cell['loss']:g} | {cell['prompts']} | {cell['passed']:.4f} "
                f"| [{cell['low']:.4f}, {cell['high']:.4f}] |"
            )
