"""Answers on BENCHMARKS.md to: what do more processes give, and how much memory does a large corpus take."""

from tests.benchmarks.answers import Answer, missed
from tests.benchmarks.stored import Results


def training(results: Results) -> Answer:
    figure = results.figure("training_processes")
    speed = figure["tokens_per_second"]
    found = (
        f"**{figure['ratio']:.2f} times** the tokens per second (aim 1.6): {speed['2']:,.0f} against {speed['1']:,.0f}, for a "
        f"draft of {figure['parameters'] / 1e6:.0f} M parameters. Both train the same draft: the curve agrees within 1e-5, with "
        "Muon 1e-4 (`tests/integration/test_training_processes.py`)."
    ) + missed("1.6 times was the aim.", figure["ratio"] < 1.6)
    return found, f"one process with one thread, in turns, median of {figure['turns']}."


def shards(results: Results) -> Answer:
    figure = results.figure("spread")
    found = (
        f"**{figure['times']:.2f} times** the completions per second with two workers (aim 1.5), and "
        f"{figure['milliseconds_a_shard']:.0f} ms for a shard beside its work (aim below 50)."
        + missed("1.5 times was the aim.", figure["times"] < 1.5)
        + missed("below 50 ms was the aim.", figure["milliseconds_a_shard"] >= 50)
    )
    return found, f"one Ray worker, one thread each, start-up apart, in turns, median of {figure['repeats']}."


def gate_memory(results: Results) -> Answer:
    rows = results.figure("gate_memory")
    few, many = min(rows, key=int), max(rows, key=int)
    peak = rows[many]["peak_mib"]
    found = (
        f"**{peak:,.0f} MiB** at the most with {int(many):,} examination prompts (aim 1 GiB); with {int(few):,}, "
        f"{rows[few]['peak_mib']:,.0f} MiB, of which libraries take {rows[few]['loaded_mib']:,.0f}."
        + missed("1 GiB was the aim.", peak >= 1024)
    )
    return found, "the libraries alone. Three drafts are examined, with three segments and 16 draft lengths."


def completions_memory(results: Results) -> Answer:
    ways = results.figure("completions_memory")
    counts = [int(count) for count in next(iter(ways.values()))]
    few, many = min(counts), max(counts)
    growth = {name: rows[str(many)]["anonymous_mib"] - rows[str(few)]["anonymous_mib"] for name, rows in ways.items()}
    most = max(growth, key=lambda name: growth[name])
    stages = " and ".join(f"{growth[name]:+.0f} MiB in `{name}`" for name in ("generate", "evaluate"))
    found = (
        f"From {few:,} to {many:,} completions: **{stages}**; at the most {growth[most]:+.0f} MiB, in `{most}`, of all ways that "
        "go through completions."
    )
    return found, f"the same at {few:,} completions. The process's own memory, without the system's file cache."
