"""Memory of what goes through all completions, at 10,000 and at 100,000 of them: it must not grow with their number.

Each way runs in a process of its own, on made-up prompts or completions and a random model of some thousand parameters.
`anonymous_mib` is the largest anonymous memory seen (RssAnon, looked at 100 times a second): what the process itself holds.
`peak_mib` is its largest resident set (VmHWM), with what is mapped of files: a training reads its completions in any order, and
what it has read of them is in the system's file cache, which gives memory back where somebody needs it.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import evaluator_memory, servers_memory
from tests.benchmarks.evaluator_memory import VOCABULARY
from tests.benchmarks.figures import write
from tests.benchmarks.memory import in_child, mib

COUNTS = (10_000, 100_000)
BATCHES, ROWS = 200, 16  # of a training, that are read
_TITLES = {
    "generate": "`generate`, by a target that is loaded here",
    "evaluate": "`evaluate`, at two sampling settings",
    "distill": "data of `distill`: chosen, mixed, packed, read in batches",
    "quantize": "examination on dev prompts, as `distill` and `quantize` make it",
    "check": "`check`: counts of every prompt",
    "expected": "`export`: expected counters",
}


def main() -> None:
    """By way and number of completions: MiB and seconds."""
    found: dict[str, Any] = {}
    for way in WAYS:
        for count in COUNTS:
            with tempfile.TemporaryDirectory() as place:
                prepare(way, Path(place), count)
                found.setdefault(way, {})[str(count)] = in_child("completions_memory", way, place)
    write("completions_memory", "python -m tests.benchmarks completions_memory", found)


def prepare(way: str, place: Path, count: int) -> None:
    """A pair, and prompts or completions."""
    from pipeline.models.stored_pair import PAIR_FILE
    from pipeline.speculation.settings import GREEDY, Sampling
    from pipeline.store.artifacts import MANIFEST
    from pipeline.store.files import write_json
    from tests.fakes import tiny_llama, tiny_tokenizer
    from tests.pairs import pair_facts

    for role, seed in (("target", 0), ("draft", 1)):
        tiny_llama(seed, vocabulary=VOCABULARY, layers=1).float().save_pretrained(place / "pair" / role)
        tiny_tokenizer(VOCABULARY).save_pretrained(place / "pair" / role)
    tiny_tokenizer(VOCABULARY).save_pretrained(place / "pair" / "tokenizer")
    write_json(place / "pair" / PAIR_FILE, pair_facts(vocabulary=VOCABULARY, tokens=VOCABULARY))
    for name in ("out", "corpus", "completions"):
        (place / name).mkdir()
    if way == "generate":
        servers_memory.build_prompts(place / "corpus", count, VOCABULARY)
        return
    split = {"distill": "train", "quantize": "dev"}.get(way, "examination")
    samplings = (Sampling(), GREEDY) if way == "evaluate" else (Sampling(),)
    evaluator_memory.build(place / "completions", count, split, samplings)
    tiny_tokenizer(VOCABULARY).save_pretrained(place / "completions" / "tokenizer")
    manifest = {"stage": "generate", "key": "k", "figures": {}, "provides": {}, "files": {}, "inputs": {"target": "t"}}
    settings = {"dtype": "float32", "sampling": _config().sampling.model_dump(mode="json")}
    write_json(place / "completions" / MANIFEST, manifest | {"settings": settings})


def _config() -> Any:
    from pipeline.config.loading import parse_config

    return parse_config(
        {
            "name": "memory",
            "device": "cpu",
            "pair": {"target": {"source": "reference"}, "draft": {"source": "reference", "dtype": "float32"}},
            "corpus": {"sources": [{"path": "reference"}]},
            "generate": {"max_new_tokens": 2, "lookahead": 1, "distribution_tokens": 2, "batch": 128},
            "evaluate": {"crosscheck_prompts": 0},
        },
        "bench",
    )


def _generate(place: Path) -> None:
    """The stage."""
    import stages.generate
    from tests.contexts import stage_context

    inputs = {"target": place / "pair", "corpus": place / "corpus"}
    stages.generate.run(stage_context(_config(), "generate", place, place / "out", inputs=inputs))


def _evaluate(place: Path) -> None:
    """The stage."""
    import stages.evaluate
    from pipeline.config.tasks import EvaluateTask
    from tests.contexts import settings_of, stage_context

    config, job = _config(), "evaluate/candidate"
    task = EvaluateTask(kind="plain", role="candidate", variant="unquantized")
    inputs = {"completions": place / "completions", "draft": place / "pair/draft", "target": place / "pair"}
    context = stage_context(
        config,
        job,
        place,
        place / "out",
        settings=replace(settings_of(config, job), task=task.examination),
        inputs=inputs,
        digests=dict.fromkeys(inputs, "d"),
    )
    stages.evaluate.run(context)


def _distill(place: Path) -> None:
    """What the stage reads, without the training itself: every domain has a share, and the completions are counted at the end."""
    from pipeline.config.distill import DistillConfig
    from pipeline.distillation.dataset import PackedCompletions
    from pipeline.distillation.mixing import mix
    from pipeline.distillation.segments import segment_weights
    from pipeline.generation.stored_completions import StoredCompletions, column

    settings = DistillConfig(domain_shares={f"domain-{number}": 0.25 for number in range(4)})
    train = StoredCompletions.open(place / "completions", {"train"})
    rows = mix(train, settings.domain_shares, 0)
    segment_weights(rows, settings.segment_shares)
    documents = PackedCompletions(rows)
    order = np.random.default_rng(0).permutation(len(documents.rows))
    for begin in range(0, BATCHES * ROWS, ROWS):
        documents.collate([{"row": int(row)} for row in order.take(range(begin, begin + ROWS), mode="wrap")])
    column(train, "length").sum()


def _quantize(place: Path) -> None:
    """Of the training's examination."""
    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.drafts.plain import PlainDraft
    from pipeline.examination.examiner import Examiner
    from pipeline.generation.stored_completions import StoredCompletions
    from pipeline.speculation.settings import Sampling
    from tests.fakes import tiny_llama

    dev = StoredCompletions.open(place / "completions", {"dev"}, Sampling())
    examiner = Examiner(Sampling(), EvaluateConfig(convention="user"))
    examiner.summary(PlainDraft(tiny_llama(1, vocabulary=VOCABULARY, layers=1).float(), VOCABULARY), dev)


def _check(place: Path) -> None:
    from pipeline.examination.on_completions import Settings, examine_on
    from pipeline.store.artifacts import Artifact, read_manifest

    manifest = read_manifest(place / "completions")
    assert manifest is not None
    settings = Settings(evaluate=_config().evaluate, dtype="float32", device="cpu")
    examine_on(Artifact(place / "completions", manifest), place / "pair/draft", settings)


def _expected(place: Path) -> None:
    from pipeline.drafts.plain import PlainDraft
    from pipeline.export.expected import examine_as_served
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import Sampling
    from tests.fakes import tiny_llama

    stored = read_completions(place / "completions", {"examination"}, Sampling())
    draft = PlainDraft(tiny_llama(1, vocabulary=VOCABULARY, layers=1).float(), VOCABULARY)
    examine_as_served(draft, stored, Sampling(), _config().evaluate, [1, 2, 3, 4, 5], lambda done: None)


WAYS: dict[str, Callable[[Path], None]] = {
    "generate": _generate,
    "evaluate": _evaluate,
    "distill": _distill,
    "quantize": _quantize,
    "check": _check,
    "expected": _expected,
}


class _Watch:
    """The largest anonymous memory of this process, until it is closed."""

    def __init__(self) -> None:
        self.most, self._ended = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.01):
            self.most = max(self.most, mib("status", "RssAnon"))


def run(way: str, place: Path) -> dict[str, float]:
    """What it took, in this process."""
    began = time.perf_counter()
    with closing(_Watch()) as watch:
        WAYS[way](place)
    seconds = time.perf_counter() - began
    return {"anonymous_mib": watch.most, "peak_mib": mib("status", "VmHWM"), "seconds": seconds}


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Memory of many completions\n"
    yield (
        "Peak memory at 10,000 and at 100,000 completions of about 64 tokens (of `generate`: 2), with a random model of some "
        "thousand parameters. Anonymous: what the process itself holds, libraries included. Resident: with what is mapped of the "
        "store, which is the system's file cache. The last column is what one more completion adds to the anonymous memory.\n"
    )
    yield "| | " + " | ".join(f"{count:,}: anonymous, resident MiB" for count in COUNTS) + " | bytes a completion |"
    yield "|---|---|---|---|"
    for way, rows in figure.items():
        few, many = (rows[str(count)] for count in COUNTS)
        growth = (many["anonymous_mib"] - few["anonymous_mib"]) * 2**20 / (COUNTS[1] - COUNTS[0])
        sizes = " | ".join(f"{row['anonymous_mib']:,.0f}, {row['peak_mib']:,.0f}" for row in (few, many))
        yield f"| {_TITLES[way]} | {sizes} | {growth:,.0f} |"


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]))))
