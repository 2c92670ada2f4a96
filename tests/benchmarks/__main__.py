"""`make bench`: run all figures, or those named, and render BENCHMARKS.md from what lies in results/."""

import sys

from tests.benchmarks import (
    decoder_batch,
    decoder_real,
    decoder_small,
    evaluator_speed,
    greedy,
    light_paths,
    quickstart,
    trace,
)
from tests.benchmarks.render import render

FIGURES = {
    "quickstart": quickstart,
    "evaluator_speed": evaluator_speed,
    "decoder_small": decoder_small,
    "decoder_real": decoder_real,
    "decoder_batch": decoder_batch,
    "greedy": greedy,
    "trace": trace,
    "light_paths": light_paths,
}

for name in sys.argv[1:] or FIGURES:
    if name != "render":
        FIGURES[name].main()
render(FIGURES)
