"""What labels of segments cost the examination: the same completions with labels and without, in turns, in one process."""

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import write

_COMPLETIONS, _TURNS = 1_000, 7
_NAMES = ("answer", "thinking", "tool_call")
_DRAFTS = {
    "0.3 M parameters": (128, 3),
    "3 M parameters": (256, 6),
}  # width, layers; those of users have 100 M and more


def main() -> None:
    """By draft: median seconds of the examination, and the ratio of each turn."""
    from tests.benchmarks.evaluator_memory import build, examine

    with tempfile.TemporaryDirectory() as made:
        plain, labelled = Path(made) / "plain", Path(made) / "labelled"
        plain.mkdir()
        build(plain, _COMPLETIONS)
        shutil.copytree(plain, labelled)
        _label(labelled)
        for place in (plain, labelled):  # once for what is built at first use
            examine(place)
        rows = {}
        for name, shape in _DRAFTS.items():
            pairs = [tuple(examine(place, *shape)["seconds"] for place in (plain, labelled)) for _ in range(_TURNS)]
            rows[name] = _row(pairs)
    figure = {"completions": _COMPLETIONS, "turns": _TURNS, "rows": rows}
    write("segments_cost", "python -m tests.benchmarks segments_cost", figure)


def _row(pairs: list[tuple[float, ...]]) -> dict[str, Any]:
    ratios = sorted(with_labels / without for without, with_labels in pairs)
    return {
        "seconds": statistics.median(without for without, _ in pairs),
        "seconds_with_segments": statistics.median(found for _, found in pairs),
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
    }


def _label(directory: Path) -> None:
    """Three segments in each completion."""
    import numpy as np

    from pipeline.generation.completion_files import completion_files
    from pipeline.generation.completion_store import read_shard
    from pipeline.generation.segment_files import write_segments

    for path in completion_files(directory):
        totals = [len(item.tokens) for item in read_shard(path)]
        labels = [np.minimum(np.arange(total) // 24, 2).astype(np.uint8) for total in totals]
        write_segments(directory, path.name.removesuffix(".completions.arrow"), _NAMES, np.concatenate(labels))


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Cost of segments in the examination\n"
    yield (
        f"{figure['completions']:,} synthetic completions of about 64 tokens, without labels and with three segments in each, "
        f"{figure['turns']} turns in one process. What segments cost does not depend on the draft, whose forward passes take the "
        "more of the time the larger it is.\n"
    )
    yield "| draft | without, s | with segments, s | ratio of a turn: median, range |"
    yield "|---|---|---|---|"
    for name, row in figure["rows"].items():
        seconds, (low, high) = [row["seconds"], row["seconds_with_segments"]], row["ratio_range"]
        yield f"| {name} | {seconds[0]:.2f} | {seconds[1]:.2f} | {row['ratio']:.3f}, {low:.3f} to {high:.3f} |"
