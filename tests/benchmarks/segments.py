"""What a draft gains and loses by segment: trained on whole completions, on answers only, and with a share for tool calls."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import write
from tests.benchmarks.runs import understudy

_SHARES = {
    "as they are": {},
    "none for tool calls": {"tool_call": 0.0},
    "answers only": {"answer": 1.0, "thinking": 0.0, "tool_call": 0.0},
    "half of the loss for tool calls": {"tool_call": 0.5},
}
_REFUSED = 3  # exit code


def main() -> None:
    from tests.benchmarks.segments_pair import make_pair

    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        make_pair(place)
        rows = {name: _run(place, number, shares) for number, (name, shares) in enumerate(_SHARES.items())}
    write("segments", "python -m tests.benchmarks segments", {"rows": rows})


def _run(place: Path, number: int, shares: dict[str, float]) -> dict[str, Any]:
    """A run with these shares, against the base draft: each has a registry of its own."""
    config = {
        "name": "segments",
        "pair": {name: {"source": str(place / name)} for name in ("target", "draft")},
        "corpus": {
            "sources": [{"path": "prompts.jsonl"}],
            "splits": {"train": 0.8, "dev": 0.05, "examination": 0.15},
            "near_duplicate_threshold": 0.95,
        },
        "generate": {"max_new_tokens": 120, "batch": 128},
        "distill": {"max_steps": 300, "learning_rate": 2e-3, "evaluate_every": 100, "segment_shares": shares},
        "quantize": {"variants": []},
        "promote": {"target_name": f"segments-{number}"},
    }
    path, store = place / f"run-{number}.yaml", place / "store"
    path.write_text(json.dumps(config))
    understudy("run", path, "--store", store, codes=(0, _REFUSED))
    summary = json.loads(understudy("show", "--json", "--store", store))
    drafts = {line["name"]: line for line in summary["drafts"]}
    decision = summary["decision"]
    return {
        "verdict": decision["verdict"],
        "refused_by": [rule["name"] for rule in decision["rules"] if rule["verdict"] != "pass"],
        "all": {name: drafts[name]["acceptance_rate"]["value"] for name in ("base", "candidate")},
        "segments": {
            segment: {
                name: drafts[name]["segments"][segment]["acceptance_rate"]["value"] for name in ("base", "candidate")
            }
            for segment in drafts["candidate"]["segments"]
        },
        "shares": {name: part["share"] for name, part in drafts["candidate"]["segments"].items()},
        "prompts": drafts["candidate"]["acceptance_rate"]["prompts"],
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    rows = figure["rows"]
    first = next(iter(rows.values()))
    names = list(first["segments"])
    yield "## Segments of completions\n"
    yield (
        "A target of 1.4 M parameters that thinks and calls a tool, re-tuned so that its answers changed and its tool calls did "
        f"not. Acceptance rate on {first['prompts']} examination prompts minus that of the base draft, in points. Of the tokens: "
        + ", ".join(f"{name} {first['shares'][name]:.0%}" for name in names)
        + ".\n"
    )
    yield f"| loss | all | {' | '.join(names)} | verdict |"
    yield f"|---|---:|{'---:|' * len(names)}---|"
    for label, row in rows.items():
        gains = [row["all"], *(row["segments"][name] for name in names)]
        shown = " | ".join(f"{100 * (gain['candidate'] - gain['base']):+.1f}" for gain in gains)
        refused = f"refused by {', '.join(f'`{name}`' for name in row['refused_by'])}"
        yield f"| {label} | {shown} | {'passed' if row['verdict'] == 'promote' else refused} |"
