"""BENCHMARKS.md: the figures that a user decides by, each with its peer; the others on the pages in docs/benchmarks/.

Every number is computed from the JSON files, misses included: a sentence that begins with "Missed" is written where a figure
is beyond its aim, and goes when it no longer is.
"""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.benchmarks import quality_answers as quality
from tests.benchmarks import scale_answers as scale
from tests.benchmarks import speed_answers as speed
from tests.benchmarks.answers import Answer
from tests.benchmarks.stored import Results

_HEAD = """# Benchmarks

The figures to decide by, and what each is compared with; [docs/benchmarks/](docs/benchmarks/) has the others, all tables,
machines and commands. Rendered by `python -m tests.benchmarks render`; `make bench` measures again. Machines had 2 cores, except
for GPUs, models were small: ratios carry over to other machines better than times. **Missed**: an aim was not reached.
"""

_WIDTH = 128


@dataclass(frozen=True)
class Entry:
    question: str
    figures: Sequence[str]  # of the JSON files that the answer is from; all of one topic
    topic: str
    answer: Callable[[Results], Answer]


def page(results: Results) -> str:
    """The whole page."""
    return "\n".join(line for part in ([_HEAD], *(_short(one, results) for one in DECISIVE)) for line in part)


def answers(topic: str, results: Results) -> Iterator[str]:
    """The answers of a page in docs/benchmarks/ that BENCHMARKS.md does not have."""
    for entry in OTHERS:
        if entry.topic == topic:
            found, peer = entry.answer(results)
            yield f"## {entry.question}\n"
            yield _filled(found) + "\n"
            yield _filled(f"Compared with {peer} Measured by {results.conditions(*entry.figures)}.") + "\n"


def _short(entry: Entry, results: Results) -> Iterator[str]:
    found, peer = entry.answer(results)
    yield f"## {entry.question}\n"
    yield _filled(found)
    yield _filled(f"Compared with {peer} Tables: [{entry.topic}.md](docs/benchmarks/{entry.topic}.md)") + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)


DECISIVE = (
    Entry("Does the examination agree with the engines' counters?", ["conformance"], "examination", quality.agreement),
    Entry(
        "How fast is the examination against decoding?",
        ["evaluator_speed", "evaluator_memory", "segments_cost"],
        "examination",
        speed.examination_speed,
    ),
    Entry("How often is the regression check wrong?", ["power"], "statistics", quality.power),
    Entry(
        "Is distillation better than SFT or GKD in the same time?",
        ["distillation_defaults"],
        "distillation",
        quality.training,
    ),
    Entry("What do kinds of drafts give on one target?", ["heads", "gpu_kit"], "distillation", quality.kinds),
    Entry("What do INT8 and INT4 cost?", ["quickstart", "decoder_quantized"], "decoding", quality.quantized),
    Entry(
        "How fast is the decoder?", ["decoder_real", "decoder_small", "engines", "greedy"], "decoding", speed.decoder
    ),
    Entry("And on a GPU?", ["gpu_waits", "gpu_kit"], "gpu", speed.gpu),
    Entry("Is predicted latency right beyond the sweep?", ["latency_models", "latency_public"], "latency", speed.sweep),
    Entry("How many replicas does a load need, and is the number right?", ["replica_plans"], "latency", speed.replicas),
    Entry("How often does the watch see a drift where there is none?", ["watch_alarms"], "watch", quality.alarms),
    Entry("How long does the quickstart take?", ["quickstart"], "quickstart", speed.quickstart),
)
OTHERS = (
    Entry("Do the intervals cover what they say?", ["coverage"], "statistics", quality.coverage),
    Entry("How fast are completions generated?", ["distillation"], "distillation", speed.generation),
    Entry("Is the closed form for latency under load right?", ["latency_simulated"], "latency", speed.formula),
    Entry(
        "What does generation by servers cost?",
        ["servers_overhead", "servers", "servers_memory"],
        "servers",
        speed.servers,
    ),
    Entry("Does a draft from a served target lose acceptance?", ["served_distillation"], "servers", quality.served),
    Entry("What does the watch cost?", ["watch_load"], "watch", speed.watching),
    Entry("What does a second process give in training?", ["training_processes"], "scale", scale.training),
    Entry("What does a second Ray worker give?", ["spread"], "scale", scale.shards),
    Entry("Does memory grow with the completions?", ["completions_memory"], "scale", scale.completions_memory),
    Entry("How much memory does the gate take?", ["gate_memory"], "scale", scale.gate_memory),
    Entry("How long do commands take to start?", ["light_paths", "check"], "quickstart", speed.start),
    Entry("How long do the tests take?", ["suite"], "suite", speed.suite_of_tests),
)
