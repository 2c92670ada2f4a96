"""`make bench`: run the figures, or those named, and render BENCHMARKS.md and docs/benchmarks/ from results/."""

import sys

from tests.benchmarks.render import FIGURES, render

# Only when named: `make bench-distill`, `make bench-served`, `make bench-scale`.
_NAMED = (
    "distillation",
    "distillation_defaults",
    "servers_overhead",
    "served_distillation",
    "spread",
    "heads",
    "transplant",
)

unknown = [name for name in sys.argv[1:] if name not in {*FIGURES, "render"}]
if unknown:
    sys.exit(f"no figure is called {unknown[0]}; there are {', '.join(FIGURES)}")
for name in sys.argv[1:] or [name for name in FIGURES if name not in _NAMED]:
    if name != "render":
        FIGURES[name].main()
render()
