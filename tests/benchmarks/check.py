"""`understudy check` on 500 prompts of 128 tokens with the reference draft: the whole process, start to end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import UNDERSTUDY, seconds, write
from tests.benchmarks.runs import understudy

PROMPTS, TOKENS, REPEATS = 500, 128, 5
_PROMPT_TOKENS = 48
_TARGET_SECONDS, _TARGET_BYTES = 12, 1_000_000


def main() -> None:
    write("check", "python -m tests.benchmarks check", _measure())


def _measure() -> dict[str, Any]:
    """The completions are made on first use and stay beside the benchmarks' pair."""
    from tests.benchmarks.refpair import bench_store, find_pair

    pair, place = find_pair(), bench_store() / "check"
    draft = pair.draft
    if not (place / "store" / "runs").is_dir():
        place.mkdir(exist_ok=True)
        _write_config(place, pair)
        understudy("run", place / "check.yaml", "--until", "generate", "--store", place / "store")
    baseline = place / "baseline.json"
    line = ["check", "--draft", draft, "--baseline", baseline]
    understudy(*line, "--store", place / "store", "--update-baseline")
    line += ["--completions", _completions(place / "store"), "--json", place / "check.json"]
    times = seconds([UNDERSTUDY, *map(str, line)], REPEATS)
    found = json.loads((place / "check.json").read_text())
    rows = json.loads(baseline.read_text())["prompts"]
    return {
        "seconds": times,
        "prompts": found["difference"]["prompts"],
        "tokens": sum(row["tokens"] for row in rows),
        "longest": max(row["tokens"] for row in rows),
        "baseline_bytes": baseline.stat().st_size,
    }


def _completions(store: Path) -> Path:
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import find_built, require_run

    opened = Store(store)
    return find_built(opened, require_run(opened, None, needs=("generate",)), "generate").path


def _write_config(place: Path, pair: Any) -> None:
    """A run over the pair's own directories, with nearly all prompts in the examination."""
    from pipeline.models.loading import load_tokenizer
    from tests.benchmarks.refpair import windows

    tokenizer = load_tokenizer(pair.tokenizer)
    texts = (tokenizer.decode(prompt) for prompt in windows(pair, int(PROMPTS * 1.06), _PROMPT_TOKENS, seed=0))
    (place / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    config = {
        "name": "check",
        "pair": {"target": {"source": str(pair.target)}, "draft": {"source": str(pair.draft)}},
        "corpus": {
            "sources": [{"path": str(place / "prompts.jsonl")}],
            "chat_template": False,
            "splits": {"train": 0.02, "dev": 0.02, "examination": 0.96},
        },
        "generate": {"max_new_tokens": TOKENS, "batch": 128},
    }
    (place / "check.yaml").write_text(json.dumps(config))  # JSON is YAML


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    times = figure["seconds"]
    yield "## The regression check of CI\n"
    yield (
        f"`understudy check` with the reference draft on {figure['prompts']} prompts with completions of at most "
        f"{figure['longest']} tokens ({figure['tokens']:,} tokens), a process from start to end, median of "
        f"{times['repeats']:.0f}: **{times['median']:.1f} s** ({times['lowest']:.1f} to {times['highest']:.1f}; target "
        f"below {_TARGET_SECONDS} s on 2 cores). The baseline file: {figure['baseline_bytes'] / 1000:.0f} kB (target below "
        f"{_TARGET_BYTES / 1000:.0f} kB).\n"
    )
