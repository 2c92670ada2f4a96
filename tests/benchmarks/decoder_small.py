"""The decoder against transformers' assisted generation: the reference pair, batch 1, tokens per second."""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from tests.benchmarks.figures import write

PROMPTS, TOKENS, REPEATS, GAMMAS = 12, 96, 3, (3, 5)


def main() -> None:
    rows = [
        {"dtype": dtype, "temperature": int(sample), **_measure(dtype, sample)}
        for dtype in ("float32", "bfloat16")
        for sample in (False, True)
    ]
    write("decoder_small", "python -m tests.benchmarks decoder_small", {"rows": rows, "settings": _settings()})


def _settings() -> dict[str, Any]:
    from tests.benchmarks import assisted

    return {
        "prompts": PROMPTS,
        "tokens": TOKENS,
        "repeats": REPEATS,
        "assisted": {**assisted.SETTINGS, "num_assistant_tokens": "gamma", "eos_token_id": None},
    }


def _measure(dtype: str, sample: bool) -> dict[str, Any]:
    """Tokens per second of every way, taking turns; the median of the ratios of each turn."""
    from pipeline.latency.costs.forward_times import measure_times
    from pipeline.latency.costs.ideal_speedup import ideal_speedup
    from pipeline.speculation.batch import Request
    from pipeline.speculation.settings import GREEDY, Sampling
    from pipeline.speculation.statistics import count
    from tests.benchmarks import assisted
    from tests.benchmarks.drafts import decoder
    from tests.benchmarks.refpair import find_pair, windows
    from tests.benchmarks.timing import in_turns, median_ratio, seconds_of

    pair = find_pair()
    target, draft = pair.load(dtype)
    prompts = windows(pair, PROMPTS, 64, seed=1)
    sampling = Sampling() if sample else GREEDY
    decoders = {gamma: decoder(target, draft, pair.vocabulary, gamma, sampling) for gamma in (0, 1, *GAMMAS)}
    omegas = {}

    def decode(gamma: int) -> None:
        done = [decoders[gamma].decode([Request(p, TOKENS, n)])[0] for n, p in enumerate(prompts)]
        omegas[gamma] = count(done).tokens_per_target_call

    def theirs(gamma: int) -> None:
        for prompt in prompts:
            made = assisted.generate(target, draft if gamma else None, gamma, prompt, TOKENS, sample)
            assert len(made) == TOKENS

    ways: dict[str, Callable[[], None]] = {f"ours, gamma {g}": lambda g=g: decode(g) for g in decoders}  # type: ignore[misc]
    ways |= {f"transformers, gamma {g}": lambda g=g: theirs(g) for g in (0, *GAMMAS)}  # type: ignore[misc]
    seconds = in_turns({name: seconds_of(run) for name, run in ways.items()}, REPEATS)
    times = measure_times(target, draft, pair.vocabulary, [g + 1 for g in decoders], repeats=101)
    ours = {g: seconds[f"ours, gamma {g}"] for g in decoders}
    return {
        "tokens_per_second": {
            name: median(PROMPTS * TOKENS / one for one in values) for name, values in seconds.items()
        },
        "over_assisted": {g: median_ratio(seconds[f"transformers, gamma {g}"], ours[g]) for g in GAMMAS},
        "speedup": {g: median_ratio(ours[0], ours[g]) for g in (1, *GAMMAS)},
        "ideal": {g: ideal_speedup(omegas[g], g, times) for g in (1, *GAMMAS)},
        "omega": omegas,
        "milliseconds": {
            "draft": 1000 * times.draft,
            "target": {width: 1000 * value for width, value in times.target.items()},
        },
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    settings = figure["settings"]
    yield "## Decoder, small pair, against assisted generation\n"
    yield (
        f"The reference pair, batch 1, {settings['prompts']} prompts x {settings['tokens']} tokens, median of "
        f"{settings['repeats']} turns. Settings of assisted generation: `{settings['assisted']}`. "
        "Target: 2 times its tokens per second.\n"
    )
    yield (
        "| | | assisted, tokens/s | ours | ratio | plain, ours | plain, transformers | our speedup over our plain "
        "| ideal from forward times |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in figure["rows"]:
        speed = row["tokens_per_second"]
        for gamma in map(str, GAMMAS):
            yield (
                f"| {row['dtype']}, temperature {row['temperature']} | gamma {gamma} "
                f"| {speed[f'transformers, gamma {gamma}']:.0f} | {speed[f'ours, gamma {gamma}']:.0f} "
                f"| **{row['over_assisted'][gamma]:.2f}** | {speed['ours, gamma 0']:.0f} | {speed['transformers, gamma 0']:.0f} "
                f"| {row['speedup'][gamma]:.2f} | {row['ideal'][gamma]:.2f} |"
            )
