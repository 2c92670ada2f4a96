"""`make bench`: run all figures, or those named, and render BENCHMARKS.md from what lies in results/."""

import sys

from tests.benchmarks import light_paths, quickstart
from tests.benchmarks.render import render

FIGURES = {"light_paths": light_paths.main, "quickstart": quickstart.main}

for name in sys.argv[1:] or FIGURES:
    if name != "render":
        FIGURES[name]()
render()
