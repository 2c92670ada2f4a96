"""Peak memory of an examination of 1,000, 10,000 and 100,000 completions: it must not grow with their number.

`peak_mib` is the child's largest resident set (VmHWM: ru_maxrss would count the parent's too), which holds the libraries
and whatever of the mapped store was touched; `anonymous_mib` the largest anonymous memory seen after a window, which is
what the evaluator itself holds.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.figures import write
from tests.benchmarks.memory import in_child, mib

if TYPE_CHECKING:
    from pipeline.speculation.settings import Sampling

COUNTS = (1_000, 10_000, 100_000)
SHARD, TOKENS, LOOKAHEAD, KEPT, VOCABULARY = 128, 64, 16, 4, 64


def main() -> None:
    """By number of completions: MiB, seconds, and completion tokens examined a second."""
    found = {}
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as place:
            build(Path(place), count)
            found[str(count)] = in_child("evaluator_memory", place)
    write("evaluator_memory", "python -m tests.benchmarks evaluator_memory", found)


def build(directory: Path, count: int, split: str = "examination", samplings: "Sequence[Sampling]" = ()) -> None:
    """A store of random completions of about TOKENS tokens, shard by shard; as many at each of `samplings`."""
    from pipeline.generation.completion_store import StoredCompletion, write_shard
    from pipeline.generation.distributions import ENTRY_BYTES
    from pipeline.speculation.settings import Sampling

    generator, kinds = np.random.default_rng(0), samplings or (Sampling(),)
    for number, first in enumerate(range(0, count, SHARD)):
        rows = []
        for index in range(first, min(first + SHARD, count)):
            length = int(generator.integers(TOKENS - 16, TOKENS + 17))
            total = length + LOOKAHEAD
            rows.append(
                StoredCompletion(
                    id=f"{index:016x}",
                    text_id=f"{index:016x}",
                    conversation=f"{index:016x}",
                    split=split,
                    domain=f"domain-{index % 4}",
                    sampling=kinds[index * len(kinds) // count],
                    prompt=generator.integers(0, VOCABULARY, 16, dtype=np.int32),
                    length=length,
                    stopped=False,
                    tokens=generator.integers(0, VOCABULARY, total, dtype=np.int32),
                    log_p=np.log(generator.uniform(0.01, 0.2, total)).astype(np.float32),
                    entries=np.zeros((total, KEPT, ENTRY_BYTES), np.uint8),
                    certain=np.full(total, KEPT, np.uint8),
                    rest_log_p=np.zeros(total, np.float16),
                    vocabulary=VOCABULARY,
                )
            )
        write_shard(directory, f"shard-{number:05d}", rows)


def examine(directory: Path, hidden: int = 16, layers: int = 1) -> dict[str, float]:
    """What the stage does with one set of completions, in this process, with a random draft of this shape."""
    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.drafts.plain import PlainDraft
    from pipeline.examination.examiner import Examiner
    from pipeline.examination.windows import tally_counts
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import Sampling
    from pipeline.store.row_files import RowFile
    from tests.fakes import tiny_llama

    settings = EvaluateConfig()
    model = tiny_llama(0, vocabulary=VOCABULARY, hidden=hidden, layers=layers).float()
    before, began, anonymous = mib("status", "VmRSS"), time.perf_counter(), 0.0
    completions = read_completions(directory, {"examination"}, Sampling())
    with RowFile(directory / "acceptance.json", ["deployed"]) as spools:

        def counted() -> Any:
            nonlocal anonymous
            for counts in Examiner(Sampling(), settings).counts(PlainDraft(model, VOCABULARY), completions):
                yield counts
                anonymous = max(anonymous, mib("smaps_rollup", "Anonymous"))

        tally = tally_counts(counted(), settings.max_gamma, spools, "deployed", ())
        figures = tally.figures(settings.confidence)
        spools.write(asdict(figures), "prompts")
    seconds = time.perf_counter() - began
    return {
        "before_mib": before,
        "peak_mib": mib("status", "VmHWM"),
        "anonymous_mib": anonymous,
        "seconds": seconds,
        "tokens_per_second": figures.tokens / seconds,
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Memory of the examination\n"
    yield (
        "A tiny draft on synthetic completions of about 64 tokens. `anonymous` is the memory of the examination itself; the peak "
        "also includes libraries and the mapped pages of the store. It must not grow with the number of completions.\n"
    )
    yield "| completions | peak MiB | anonymous MiB | tokens/s, store to acceptance.json |"
    yield "|---|---|---|---|"
    for count, row in figure.items():
        yield (
            f"| {int(count):,} | {row['peak_mib']:.0f} | {row['anonymous_mib']:.0f} | {row['tokens_per_second']:,.0f} |"
        )


if __name__ == "__main__":
    print(json.dumps(examine(Path(sys.argv[1]))))
