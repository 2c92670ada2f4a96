"""BENCHMARKS.md and docs/benchmarks/ from the JSON files in results/. Nothing is measured here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.benchmarks import (
    architectures,
    check,
    completions_memory,
    conformance,
    coverage,
    decoder_batch,
    decoder_quantized,
    decoder_real,
    decoder_small,
    drift_learning,
    engines,
    evaluator_memory,
    evaluator_speed,
    gate_memory,
    gpu_kit,
    gpu_memory,
    gpu_waits,
    greedy,
    heads,
    latency_models,
    latency_public,
    latency_simulated,
    latency_sweep,
    light_paths,
    paper_sweep,
    power,
    quickstart,
    replica_plans,
    segments,
    segments_cost,
    served_distillation,
    servers,
    servers_memory,
    servers_overhead,
    spread,
    suite,
    thread_choice,
    threads,
    trace,
    training_processes,
    transplant,
    watch_alarms,
    watch_load,
)
from tests.benchmarks.distillation import defaults
from tests.benchmarks.distillation import figure as distillation
from tests.benchmarks.figures import ROOT
from tests.benchmarks.page import answers, page
from tests.benchmarks.stored import Results

FOLDER = Path("docs/benchmarks")


@dataclass(frozen=True)
class Topic:
    title: str
    figures: Mapping[str, ModuleType]


TOPICS = {
    "quickstart": Topic(
        "Quickstart, start-up, memory", {"quickstart": quickstart, "light_paths": light_paths, "check": check}
    ),
    "examination": Topic(
        "Examination",
        {
            "conformance": conformance,
            "trace": trace,
            "evaluator_speed": evaluator_speed,
            "evaluator_memory": evaluator_memory,
            "segments_cost": segments_cost,
        },
    ),
    "statistics": Topic("Intervals and power", {"coverage": coverage, "power": power}),
    "decoding": Topic(
        "Decoding",
        {
            "greedy": greedy,
            "decoder_small": decoder_small,
            "engines": engines,
            "decoder_real": decoder_real,
            "decoder_batch": decoder_batch,
            "decoder_quantized": decoder_quantized,
            "threads": threads,
            "thread_choice": thread_choice,
        },
    ),
    "distillation": Topic(
        "Training",
        {
            "distillation": distillation,
            "distillation_defaults": defaults,
            "segments": segments,
            "drift_learning": drift_learning,
            "heads": heads,
            "transplant": transplant,
        },
    ),
    "latency": Topic(
        "Latency",
        {
            "latency_sweep": latency_sweep,
            "latency_models": latency_models,
            "latency_public": latency_public,
            "paper_sweep": paper_sweep,
            "latency_simulated": latency_simulated,
            "replica_plans": replica_plans,
        },
    ),
    "servers": Topic(
        "Targets on servers",
        {
            "servers": servers,
            "servers_memory": servers_memory,
            "servers_overhead": servers_overhead,
            "served_distillation": served_distillation,
        },
    ),
    "watch": Topic("In service", {"watch_alarms": watch_alarms, "watch_load": watch_load}),
    "scale": Topic(
        "More than one process, large corpora",
        {
            "training_processes": training_processes,
            "spread": spread,
            "completions_memory": completions_memory,
            "gate_memory": gate_memory,
        },
    ),
    "gpu": Topic("GPUs", {"gpu_kit": gpu_kit, "gpu_waits": gpu_waits, "gpu_memory": gpu_memory}),
    "architectures": Topic("Architectures", {"architectures": architectures}),
    "suite": Topic("The tests", {"suite": suite}),
}
FIGURES = {name: module for topic in TOPICS.values() for name, module in topic.figures.items()}


def pages() -> dict[Path, str]:
    """By path in the checkout, what each page is by the JSON files."""
    results = Results()
    found = {Path("BENCHMARKS.md"): page(results)}
    for name, topic in TOPICS.items():
        found[FOLDER / f"{name}.md"] = "\n".join(_topic(name, topic, results))
    return found


def render() -> None:
    """Write the pages."""
    for path, text in pages().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


def _topic(name: str, topic: Topic, results: Results) -> Iterator[str]:
    yield f"# Benchmarks: {topic.title}\n"
    yield "Rendered from `tests/benchmarks/results/`. The figures to decide by are in [BENCHMARKS.md](../../BENCHMARKS.md).\n"
    yield from answers(name, results)
    for figure, module in topic.figures.items():
        if not results.has(figure):
            continue
        yield from module.section(results.figure(figure))
        yield f"\n{results.conditions(figure)}, {results.versions(figure)}.\n"
