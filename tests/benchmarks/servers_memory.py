"""Peak memory of the stage `generate` with a served target for 1,000, 10,000 and 100,000 prompts: it must not grow with them.

The server is a stand-in that answers with completions of 2 tokens. The stage runs in a process of its own, as `understudy stage`
runs it; `peak_mib` is that process's largest resident set (VmHWM), which holds the libraries and the mapped pages too.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.figures import write
from tests.benchmarks.memory import in_child, mib
from tests.standin_server import EOS, VOCABULARY, in_processes

COUNTS = (1_000, 10_000, 100_000)
TOKENS, NEW, LISTED = 16, 2, 4


def main() -> None:
    """By number of prompts: MiB, seconds, and completions per second."""
    found = {}
    with in_processes(1) as (server,):
        for count in COUNTS:
            with tempfile.TemporaryDirectory() as place:
                _build(Path(place), count)
                found[str(count)] = in_child("servers_memory", place, server.url, count)
    write("servers_memory", "python -m tests.benchmarks servers_memory", found)


def _build(place: Path, count: int) -> None:
    """A pair artifact and a corpus artifact, as their stages write them; every tenth prompt is for the examination."""
    from tests.fakes import tiny_tokenizer

    tiny_tokenizer(VOCABULARY).save_pretrained(place / "pair" / "tokenizer")
    (place / "corpus").mkdir()
    build_prompts(place / "corpus", count, VOCABULARY)


def build_prompts(corpus: Path, count: int, vocabulary: int) -> None:
    """A corpus artifact of random prompts."""
    import pyarrow as pa

    from pipeline.corpus.prompt_store import PROMPTS, SCHEMA

    generator = np.random.default_rng(0)
    with pa.ipc.new_file(str(corpus / PROMPTS), SCHEMA) as out:
        for first in range(0, count, 256):
            rows = [
                dict.fromkeys(("id", "text_id", "conversation"), f"{number:016x}")
                | {
                    "split": "train" if number % 10 else "examination",
                    "domain": f"domain-{number % 4}",
                    "mode": "",
                    "cluster": number,
                    "tokens": generator.integers(10, vocabulary, TOKENS).tolist(),
                }
                for number in range(first, min(first + 256, count))
            ]
            out.write_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


def _generate(place: Path, url: str, count: int) -> dict[str, float]:
    """The stage, in this process."""
    from pipeline.config.root import Config
    from pipeline.running.served_input import identify_target
    from stages.generate import run
    from tests.contexts import stage_context
    from tests.pairs import pair_facts

    config = Config.model_validate(
        {
            "name": "memory",
            "pair": {
                "target": {"source": "server", "tokenizer": str(place / "pair" / "tokenizer"), "dtype": "float32"},
                "draft": {"source": str(place)},
            },
            "corpus": {"sources": [{"path": str(place)}]},
            "generate": {
                "engine": "server",
                "server": {"endpoints": [url], "logprobs": LISTED, "concurrency": 16},
                "max_new_tokens": NEW,
                "lookahead": 1,
                "distribution_tokens": 2,
            },
            "promote": {"target_name": "memory"},
        }
    )
    facts = pair_facts(vocabulary=VOCABULARY, stop_tokens=[EOS], served=identify_target(config, []).facts())
    (place / "pair" / "pair.json").write_text(json.dumps(facts))
    (place / "out").mkdir()
    context = stage_context(
        config, "generate", place, place / "out", inputs={"target": place / "pair", "corpus": place / "corpus"}
    )
    began = time.perf_counter()
    figures = run(context).figures
    seconds = time.perf_counter() - began
    assert figures["completions"] >= count
    return {
        "peak_mib": mib("status", "VmHWM"),
        "seconds": seconds,
        "completions_per_second": figures["completions"] / seconds,
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Memory of generation by servers\n"
    yield (
        f"Peak resident memory of the stage `generate`: prompts of {TOKENS} tokens, completions of {NEW}, one stand-in that "
        "speaks vLLM's protocol. It must not grow with the number of prompts.\n"
    )
    yield "| prompts | peak MiB | completions/s |"
    yield "|---|---|---|"
    for count, row in figure.items():
        yield f"| {int(count):,} | {row['peak_mib']:.0f} | {row['completions_per_second']:,.0f} |"


if __name__ == "__main__":
    print(json.dumps(_generate(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
