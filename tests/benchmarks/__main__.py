"""`make bench`: run the figures, or those named, and render BENCHMARKS.md from what lies in results/."""

import sys

from tests.benchmarks import (
    architectures,
    check,
    conformance,
    coverage,
    decoder_batch,
    decoder_quantized,
    decoder_real,
    decoder_small,
    engines,
    evaluator_memory,
    evaluator_speed,
    greedy,
    latency_models,
    latency_simulated,
    latency_sweep,
    light_paths,
    power,
    quickstart,
    served_distillation,
    servers,
    servers_memory,
    servers_overhead,
    sharper,
    threads,
    trace,
)
from tests.benchmarks.distillation import figure as distillation
from tests.benchmarks.render import render

FIGURES = {
    "quickstart": quickstart,
    "evaluator_speed": evaluator_speed,
    "evaluator_memory": evaluator_memory,
    "decoder_small": decoder_small,
    "engines": engines,
    "decoder_real": decoder_real,
    "decoder_batch": decoder_batch,
    "decoder_quantized": decoder_quantized,
    "latency_sweep": latency_sweep,
    "latency_models": latency_models,
    "latency_simulated": latency_simulated,
    "greedy": greedy,
    "trace": trace,
    "conformance": conformance,
    "coverage": coverage,
    "power": power,
    "sharper": sharper,
    "light_paths": light_paths,
    "check": check,
    "threads": threads,
    "architectures": architectures,
    "servers": servers,
    "servers_memory": servers_memory,
    "servers_overhead": servers_overhead,
    "served_distillation": served_distillation,
    "distillation": distillation,
}

# Only when named: `make bench-distill`, `make bench-served`.
_LONG = ("distillation", "servers_overhead", "served_distillation")

for name in sys.argv[1:] or [name for name in FIGURES if name not in _LONG]:
    if name != "render":
        FIGURES[name].main()
render(FIGURES)
