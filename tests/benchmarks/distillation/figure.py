"""`make bench-distill`: runs missing cells and renders their tables for docs/benchmarks/."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.benchmarks.answers import interval, points
from tests.benchmarks.distillation.cells import (
    ADAMW,
    LOSSES,
    PEERS,
    REGIMES,
    SIBLINGS,
    STOCK,
    all_cells,
    run_missing,
)
from tests.benchmarks.distillation.data import find_regime
from tests.benchmarks.distillation.generation import NEW_TOKENS, measure_generation
from tests.benchmarks.distillation.labels import AIMS, FINE_TUNED, REGIME_LABELS, by_seed, label
from tests.benchmarks.distillation.long import measure_long
from tests.benchmarks.distillation.pair import make_pair
from tests.benchmarks.distillation.speed import METHODS_TIMED, OURS, measure_speed
from tests.benchmarks.distillation.summary import summarise
from tests.benchmarks.figures import write

_SPEED_AIMS = {"trl_gkd": 2.5, "trl_sft": 2.0, "bare_loop": 0.8}
_GENERATION_AIM, _STORE_AIM = 2.0, 0.5

_HOW = """
Acceptance rate at temperature 1 on examination prompts of seven domains, after the steps that fit into {seconds:.0f} s of
training on 2 cores at the speeds below. Means of three seeds (two for the tables of losses and stores, one for drafts of
another shape); 95% intervals with the source document as the unit; paired differences. All methods: the
same prompts, three completions each, 16 rows per step (one completion per row in TRL, up to two in ours: 7% more), betas 0.9
and 0.95, weight decay 0.1, 5% warm-up, then linear decay to 0, gradient clipping at 1, bfloat16 autocast on fp32 weights, loss
on completions only, no activation checkpointing. TRL's trainers use AdamW, their default; "Muon" is our `optimizer: muon`,
because this draft was pre-trained with Muon. Ours keeps the best of three drafts on dev prompts, and this time is included.
Original target: the base draft with the target it was made for. Fine-tuned target: the same draft after the target was fine-tuned
on chat and json.
"""
_RATES = """
Learning rates, for every optimizer and trainer: an initial value, doubled and halved until dev acceptance (after 45 s) gets
worse. Other losses use the rate of their trainer and optimizer.
"""

_MISSED = """
With the original target, the gain over SFT is below its aim. SFT's acceptance peaks early and then falls; ours keeps rising
(on dev prompts, with one completion per prompt: 0.654 after 690 steps, 0.662 after 1,400, 0.667 after 2,800, about the
maximum for this 1.3 M draft), so the gain depends on steps per second, which vary by half between hours on this machine. What
helped: the loss in C and few tensor shapes (221 to 140 ms per step), batched Muon, a linear schedule, three completions per
prompt. What did not help: other rates for the embedding, less momentum, half the batch, `torch.compile` (it compiles for
longer than it saves). Also training on the prompts' distributions gained 0.6 points at equal steps for 10% more time; it is
not implemented.
"""

_DEFAULT = """
The default is `lk_hybrid`. With the original target, total variation and -log acceptance are half a point better; with the
fine-tuned target they are one to four points worse, because their gradients vanish where draft and target hardly overlap.
Muon replaces AdamW for drafts that were pre-trained with it, such as this one and the quickstart's.
"""

_LONG_AIMS = """
Targets: the fine-tuned domains, chat and json, at 0.75 or more, json at 0.85 (met); no other domain loses more than a point
(met: all gain, because fine-tuning changed the target in all domains). Code, on which the target was not fine-tuned, ends at
0.79. The differences between domains are smaller than reported elsewhere (0.8 to 0.9 on JSON and code, 0.4 to 0.5 on plays):
json is highest and the others are close together, as expected for an 8.7 M target.
"""

_GENERATION_MISSED = """
Below target in float32, and in bfloat16 with 128 prompts: there both spend most of the time in the same matmuls. With 32 and 64
prompts in bfloat16, where call overhead and memory dominate, the target is met.
"""

_STORES = {
    "online": "the target's pass in every step, whole vocabulary",
    "forward_kl": "stored: {kept} tokens drawn, {bytes} bytes",
    "forward_kl_coarse": "stored as with 152,000 tokens, {bytes} bytes",
    "online_top": "the likeliest {kept} and the rest's mass, as floats",
}


def main() -> None:
    make_pair()
    speed = measure_speed()
    run_missing(all_cells())
    figure = {
        **summarise(),
        "long": measure_long(),
        "speed": speed,
        "generation": measure_generation(),
        "stored_tokens": find_regime("near").config.generate.stored_tokens,
    }
    write("distillation", "python -m tests.benchmarks distillation", figure)


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Distillation\n"
    yield _line(_HOW).format(seconds=figure["seconds"]) + "\n"
    yield _line(_RATES) + "\n"
    yield from _rates(figure["rates"])
    for regime in REGIMES:
        yield f"### At equal time, {REGIME_LABELS[regime]}\n"
        yield from _equal_time(regime, figure["regimes"][regime]["equal_time"])
    yield _line(_MISSED) + "\n"
    yield f"### Which loss: the steps that fit into {figure['loss_seconds']:.0f} s\n"
    yield from _losses(figure["regimes"])
    yield _line(_DEFAULT) + "\n"
    yield "### Stored distributions against the online target: forward KL, at equal steps\n"
    yield from _stores(figure["regimes"], figure.get("stored_tokens", 16))
    yield from _siblings(figure["regimes"])
    yield from _long(figure["long"])
    yield from _speed(figure["speed"])
    yield from _generation(figure["generation"])


def _rates(rates: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield "| | rate: dev acceptance |"
    yield "|---|---|"
    for name, tried in rates.items():
        yield f"| {label(name)} | {', '.join(f'{rate}: {value:.3f}' for rate, value in tried.items())} |"
    yield ""


def _equal_time(regime: str, rows: Mapping[str, Any]) -> Iterator[str]:
    domains = list(rows[STOCK]["domains"])
    yield f"| | steps | peak MiB | acceptance | by seed | {label(OURS)} ahead, points (aim) | {' | '.join(domains)} |"
    yield "|---|---|---|---|---|---|" + "---|" * len(domains)
    for method in (STOCK, OURS, ADAMW, *PEERS):
        row, aim = rows[method], AIMS.get((method, regime))
        ahead = "" if method == OURS else points(row["over"], -1) + (f" ({aim:g})" if aim else "")
        yield (
            f"| {label(method)} | {row.get('steps', 0):.0f} | {row['peak_mib']:,.0f} | {interval(row['acceptance'])} | "
            f"{by_seed(row)} | {ahead} | " + " | ".join(f"{row['domains'][name]:.3f}" for name in domains) + " |"
        )
    yield ""


def _losses(regimes: Mapping[str, Any]) -> Iterator[str]:
    """Both targets side by side."""
    yield (
        "| loss | " + " | ".join(f"{REGIME_LABELS[regime]}: acceptance | over forward KL" for regime in REGIMES) + " |"
    )
    yield "|---|" + "---|---|" * len(REGIMES)
    for method in LOSSES:
        rows = (regimes[regime]["losses"][method] for regime in REGIMES)
        cells = (f"{interval(row['acceptance'])} | {points(row['over'])}" for row in rows)
        yield f"| {label(method)} | {' | '.join(cells)} |"
    yield ""


def _stores(regimes: Mapping[str, Any], kept: int) -> Iterator[str]:
    """`kept`: stored tokens of a distribution."""
    over = f"over the first (within {_STORE_AIM:g})"
    columns = [f"{REGIME_LABELS[regime]}: steps | acceptance | {over}" for regime in REGIMES]
    yield f"| | {' | '.join(columns)} |"
    yield "|---|" + "---|---|---|" * len(REGIMES)
    for method, name in _STORES.items():
        rows = (regimes[regime]["stores"][method] for regime in REGIMES)
        cells = (
            f"{row['steps']:.0f} | {interval(row['acceptance'])} ({by_seed(row)}) | {points(row['over'])}"
            for row in rows
        )
        yield f"| {name.format(kept=kept, bytes=11 + 3 * kept)} | {' | '.join(cells)} |"
    yield ""


def _siblings(regimes: Mapping[str, Any]) -> Iterator[str]:
    for regime, found in regimes.items():
        if found["siblings"]:
            yield f"### A draft of the target's layers against one trained alone, of equal size, {REGIME_LABELS[regime]}\n"
            yield "| | steps | acceptance | by seed | over the other, points |"
            yield "|---|---|---|---|---|"
            for method in SIBLINGS:
                row = found["siblings"][method]
                shown = f"{interval(row['acceptance'])} | {by_seed(row)} | {points(row['over'])}"
                yield f"| {label(method)} | {row['steps']:.0f} | {shown} |"
            yield ""


def _long(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"### Long training: {found['completions']:,} completions, {found['steps']:,} steps, "
        f"{found['minutes']:.0f} minutes of training\n"
    )
    yield f"| {FINE_TUNED} | {' | '.join(found['stale'])} |"
    yield "|---|" + "---|" * len(found["stale"])
    for name, row in (("base draft", found["stale"]), ("after training", found["brought_back"])):
        yield f"| {name} | {' | '.join(f'{value:.3f}' for value in row.values())} |"
    gains = (100 * (found["brought_back"][name] - value) for name, value in found["stale"].items())
    yield f"| gained, points | {' | '.join(f'{gain:+.1f}' for gain in gains)} |"
    yield ""
    yield _line(_LONG_AIMS) + "\n"


def _speed(speed: Mapping[str, Any]) -> Iterator[str]:
    yield "### Training throughput, alternating within one run\n"
    yield f"| | tokens/s | / bare torch loop (target {_SPEED_AIMS['bare_loop']:g}) | {label(OURS)} / this (target) |"
    yield "|---|---|---|---|"
    for name in METHODS_TIMED:
        if (row := speed.get(name)) is None:
            continue
        aim = f" ({_SPEED_AIMS[name]:g})" if name in _SPEED_AIMS else ""
        yield (
            f"| {label(name)} | {row['tokens_per_second']:,.0f} | {row['of_the_bare_loop']:.2f} "
            f"| {row['ours_over_it']:.2f}{aim} |"
        )
    yield ""


def _generation(generation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### Generation of {NEW_TOKENS} tokens per prompt at temperature 1; ours also stores distributions\n"
    yield f"| | ours, tokens/s | model.generate | ratio (target {_GENERATION_AIM:g}) |"
    yield "|---|---|---|---|"
    for name, row in sorted(generation.items(), key=lambda item: (item[0].split(",")[0], int(item[0].split()[-1]))):
        yield f"| {name} | {row['ours']:,.0f} | {row['model_generate']:,.0f} | {row['ratio']:.2f} |"
    yield ""
    if any(row["ratio"] < _GENERATION_AIM for row in generation.values()):
        yield _line(_GENERATION_MISSED) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())
