"""Peak memory of the gate at 1,000 to 50,000 examination prompts: the stage itself, on profiles of made-up counts.

`peak_mib` is the child's largest resident set (VmHWM), which holds the libraries: the gate loads torch and a tokenizer for the
examples of the review page. `loaded_mib` is what they take without a prompt.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.evaluator_memory import build
from tests.benchmarks.figures import write
from tests.benchmarks.memory import in_child, mib

COUNTS = (1_000, 10_000, 50_000)
GAMMAS, SEGMENTS, BLOCK = 16, ("answer", "thinking", "tool_call"), 1_000


def main() -> None:
    """By number of prompts: MiB and seconds."""
    found = {}
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as place:
            prepare(Path(place), count)
            found[str(count)] = in_child("gate_memory", place)
    write("gate_memory", "python -m tests.benchmarks gate_memory", found)


def prepare(place: Path, count: int) -> None:
    """The artifacts that the gate reads."""
    from pipeline.acceptance.schema import ExaminedDraft
    from pipeline.drafts.directory import TrainedOn
    from pipeline.models.stored_pair import PAIR_FILE
    from pipeline.store.artifacts import MANIFEST
    from pipeline.store.files import write_json
    from tests.decisions import TRAINING
    from tests.fakes import tiny_tokenizer
    from tests.pairs import pair_facts

    for name in ("pair", "completions", "distilled", "draft", "speed", "candidate", "base", "lookup"):
        (place / name).mkdir()
    write_json(place / "pair" / PAIR_FILE, pair_facts())
    tiny_tokenizer(64).save_pretrained(place / "pair/tokenizer")
    build(place / "completions", count)
    manifest = {"stage": "generate", "key": "k", "settings": {}, "figures": {}, "provides": {}, "files": {}}
    write_json(place / "completions" / MANIFEST, {**manifest, "inputs": {"corpus": "c"}})
    write_json(place / "distilled/training.json", TRAINING)
    write_json(place / "draft/config.json", {})
    TrainedOn(frozenset()).write(place / "draft")
    for seed, (name, rate) in enumerate({"candidate": 0.7, "base": 0.6}.items()):
        _write_profile(place / name, count, rate, seed)
    _write_profile(place / "lookup", count, 0.1, 2, draft=ExaminedDraft("prompt-lookup", 0, 0))


def _write_profile(directory: Path, count: int, rate: float, seed: int, **changes: Any) -> None:
    """A profile of made-up counts, and a_t of every token."""
    from pipeline.acceptance.figures import AcceptanceTally
    from pipeline.acceptance.profile import counts_json
    from pipeline.acceptance.profile_file import write_profile
    from pipeline.acceptance.rounds import Acceptance
    from pipeline.acceptance.schema import FILE
    from pipeline.examination.token_acceptance import FILE as BY_TOKEN
    from pipeline.examination.token_acceptance import TokenAcceptanceFile
    from pipeline.generation.completion_store import read_completions
    from pipeline.store.row_files import RowFile
    from tests.profiles import CONDITIONS, make_profile

    tally, generator, rows = AcceptanceTally(GAMMAS, ()), np.random.default_rng(seed), []
    stored = read_completions(directory.parent / "completions")
    with RowFile(directory / FILE, ["deployed", "greedy"]) as lists, TokenAcceptanceFile(directory / BY_TOKEN) as file:
        for number, item in enumerate(stored, 1):
            rows.append(_counts(item.id, item.length, item.domain, rate * float(generator.uniform(0.9, 1.1))))
            file.add([item], [Acceptance([np.full(item.length, rate)])])
            if len(rows) == BLOCK or number == count:
                tally.add(rows)
                lists.add("deployed", counts_json(rows))
                lists.add("greedy", counts_json(rows))
                rows = []
        figures = tally.figures(0.95)
        conditions = replace(CONDITIONS, max_gamma=GAMMAS, gamma=5)
        domains = tally.domains(5, 0.95)
        found = make_profile(
            [_counts("a", 64, "domain-0", rate)], conditions=conditions, headline=figures, greedy=figures
        )
        write_profile(lists, replace(found, domains=domains, **changes))


def _counts(name: str, tokens: int, domain: str, rate: float) -> Any:
    from pipeline.acceptance.profile import PromptCounts
    from pipeline.acceptance.segments import SegmentCounts

    accepted, part = rate * tokens, tokens / len(SEGMENTS)
    rounds = [tokens / (1 + rate * gamma**0.5) for gamma in range(1, GAMMAS + 1)]
    of_segment = SegmentCounts(
        tokens=int(part),
        accepted=rate * int(part),
        examined=float(int(part)),
        rounds=[one / len(SEGMENTS) for one in rounds],
        emitted=[part * 0.9] * GAMMAS,
        begins=1,
        begins_accepted=rate,
    )
    return PromptCounts(
        id=name,
        conversation=name,
        domain=domain,
        tokens=tokens,
        accepted=accepted,
        examined=float(tokens),
        rounds=rounds,
        calls=[one + 1 for one in rounds],
        rounds_variance=[one / 7 for one in rounds],
        accepted_drafts=[tokens - one for one in rounds],
        per_position=[rounds[-1] * rate**gamma for gamma in range(1, GAMMAS + 1)],
        loop_tokens=3,
        loop_accepted=3 * rate,
        prompt_tokens=16,
        accepted_by_output=[rate * found for found in (16, 16, min(tokens - 32, 32), tokens - 64) if found > 0],
        accepted_by_context=[0.0, *(rate * found for found in (16, 32, tokens - 48) if found > 0)],
        segments=dict.fromkeys(SEGMENTS, of_segment),
    )


def judge(place: Path) -> dict[str, float]:
    """The stage, in this process."""
    import transformers  # noqa: F401  # what the examples load anyway

    from pipeline.config.loading import parse_config
    from pipeline.examination import examples  # noqa: F401
    from stages import gate
    from tests.contexts import settings_of, stage_context

    (place / "out").mkdir()
    names = {"examination_unquantized": "candidate", "examination_base": "base", "examination_lookup": "lookup"}
    names |= {"draft_unquantized": "draft"} | {name: name for name in ("pair", "completions", "distilled")}
    models = {"target": {"source": "reference"}, "draft": {"source": "reference"}}
    sources: Sequence[Any] = [{"path": "reference"}]
    config = parse_config({"name": "bench", "pair": models, "corpus": {"sources": sources}}, "bench")
    context = stage_context(
        config,
        "gate",
        place,
        place / "out",
        settings=replace(settings_of(config, "gate"), variants=()),
        inputs={name: place / directory for name, directory in names.items()},
        digests=dict.fromkeys(names, "d"),
    )
    loaded, began = mib("status", "VmRSS"), time.perf_counter()
    gate.run(context)
    return {"loaded_mib": loaded, "peak_mib": mib("status", "VmHWM"), "seconds": time.perf_counter() - began}


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Memory of the gate\n"
    yield (
        "Three profiles of prompts with three segments and 16 draft lengths; libraries are torch and a tokenizer, for the "
        "examples of the review page. The aim is 1 GiB at 50,000.\n"
    )
    yield "| examination prompts | peak MiB | of it libraries | seconds |"
    yield "|---|---|---|---|"
    for count, row in figure.items():
        yield f"| {int(count):,} | {row['peak_mib']:.0f} | {row['loaded_mib']:.0f} | {row['seconds']:.0f} |"


if __name__ == "__main__":
    print(json.dumps(judge(Path(sys.argv[1]))))
