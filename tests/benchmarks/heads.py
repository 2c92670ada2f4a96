"""`python -m tests.benchmarks heads`: kinds of drafts of the quickstart's target and of the benchmarks' target, on equal
completions, each with the rate that `distill.learning_rate: auto` finds; what their tokens would buy at the shapes of
Llama-3.1-8B on the card of gpu_kit.json; and the speed of examining a head against decoding with it. About an hour on 2 cores;
finished runs in the store stay.
"""

import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from tests.benchmarks.answers import interval
from tests.benchmarks.figures import RESULTS, ROOT, write
from tests.benchmarks.runs import built, reference_pair, run_until

STORE = Path(os.environ.get("UNDERSTUDY_BENCH_HEADS", ROOT / ".understudy-benchmarks-heads"))
GAMMA, PROMPTS, REPEATS = 5, 32, 3
_FEW, _TIMED = 10, 40  # steps
_QUICKSTART = ROOT / "configs" / "quickstart.yaml"
_BENCHMARKS = Path(__file__).with_name("reference_pair.yaml")
_PAIR, _BATCHES = "Llama-3.1-8B with Llama-3.2-1B", (1, 8, 32)
_CONTEXT = 1024
_BANDWIDTH = 3.35e12  # bytes per second of an H100 SXM (NVIDIA's data sheet)
# Of Llama-3.1-8B: width, vocabulary, and parameters of one decoder layer.
_WIDTH, _VOCABULARY, _LAYER = 4096, 128_256, 218_112_000
_KEYS = 1024  # width of its keys, and of its values
_DRAFTED = 32_000  # tokens that published EAGLE-3 heads of this target draft


def main() -> None:
    pair = reference_pair(_QUICKSTART, STORE)
    found = list(_all_trained(pair, _QUICKSTART, STORE, ("muon", "adamw")))
    speed = {
        row["draft"]: _examination_speed(pair, Path(row["generated"]), Path(row["directory"]))
        for row in found
        if row["optimizer"] == "adamw"
    }
    for row in found:
        row["step_seconds"] = _step_seconds(STORE, row["config"])
    second = STORE / "second"
    other = list(_all_trained(reference_pair(_BENCHMARKS, second), _BENCHMARKS, second, ("muon",)))
    for row in (*found, *other):
        del row["directory"], row["generated"], row["config"]
    figure = {"drafts": found, "second_pair": other, "examination": speed, "card": _card()}
    write("heads", "python -m tests.benchmarks heads", figure)


def _all_trained(pair: Path, base: Path, store: Path, optimizers: Sequence[str]) -> Iterator[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {
        "plain, pre-trained": {"source": str(pair / "draft")},
        "EAGLE-3, from nothing": {"source": "target", "head": {"kind": "eagle3"}},
        "Medusa, 5 places, from nothing": {"source": "target", "head": {"kind": "medusa"}},
    }
    for name, draft in kinds.items():
        for optimizer in optimizers:
            yield {"draft": name, "optimizer": optimizer, **_trained(pair, base, store, name, draft, optimizer)}


def _trained(pair: Path, base: Path, store: Path, name: str, draft: dict[str, Any], optimizer: str) -> dict[str, Any]:
    config = yaml.safe_load(base.read_text())
    del config["pair"]["reference"]
    config["name"] = f"{name.partition(',')[0].lower()}-{optimizer}"
    config["pair"] = {
        "target": {"source": str(pair / "target"), "dtype": "float32"},
        "draft": {**draft, "dtype": "float32"},
    }
    config["corpus"]["sources"] = [{"path": str(pair / "prompts.jsonl")}]
    config["evaluate"] = config.get("evaluate", {}) | {"max_gamma": GAMMA, "speed": {"turns": 0}}
    config["distill"] |= {"optimizer": optimizer}
    config["distill"].pop("learning_rate", None)  # by trials
    config["quantize"] = {"variants": []}
    run_until(store, config, "evaluate")
    return _figures(store, config["name"]) | {"config": config}


def _step_seconds(store: Path, config: dict[str, Any]) -> float:
    """From two short trainings, between which lie so many steps and nothing else."""
    seconds = []
    for steps in (_FEW, _FEW + _TIMED):
        short = {"max_steps": steps, "learning_rate": 1e-3, "evaluate_every": 1000}
        named = {**config, "name": f"{config['name']}-{steps}", "distill": {**config["distill"], **short}}
        run_until(store, named, "distill")
        seconds.append(built(store, named["name"], "distill").manifest.seconds)
    return float(seconds[1] - seconds[0]) / _TIMED


def _figures(store: Path, name: str) -> dict[str, Any]:
    from pipeline.acceptance.schema import read_profile
    from pipeline.drafts.head_tensors import measure_draft

    profile, distilled = (
        read_profile(built(store, name, "evaluate/candidate").path),
        built(store, name, "distill"),
    )
    assert profile.headline is not None
    assert profile.greedy is not None
    draft = distilled.path / "draft"
    return {
        "directory": str(draft),
        "generated": str(built(store, name, "generate").path),
        "tokens_per_target_call": {
            "1": _figure(profile.headline.tokens_per_target_call[GAMMA]),
            "0": _figure(profile.greedy.tokens_per_target_call[GAMMA]),
        },
        "parameters": measure_draft(draft, False).parameters,
        "learning_rate": distilled.figures["learning_rate"],
        "prompts": profile.headline.acceptance_rate.prompts,
    }


def _figure(found: Any) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _examination_speed(pair: Path, generated: Path, directory: Path) -> dict[str, float]:
    """Seconds for PROMPTS completions at temperature 0: all draft lengths examined, and one decoded, one request at a time."""
    import torch

    from pipeline.acceptance.examine import examine
    from pipeline.drafts.head_config import kind_of
    from pipeline.drafts.loading import load_head
    from pipeline.drafts.plain import PlainDraft
    from pipeline.generation.completion_store import read_completions
    from pipeline.models.loading import load_model
    from pipeline.speculation.batch import Request
    from pipeline.speculation.decoder import Decoder
    from pipeline.speculation.settings import GREEDY
    from pipeline.speculation.target_states import TargetStates
    from tests.benchmarks.timing import in_turns, median_ratio, seconds_of

    items = list(islice(read_completions(generated, {"examination"}, GREEDY), PROMPTS))
    target, vocabulary = load_model(pair / "target", "float32", torch.device("cpu")), items[0].vocabulary
    draft: Any
    if (kind := kind_of(directory)).reads_states:
        draft = load_head(kind, directory, TargetStates(target), vocabulary)
    else:
        draft = PlainDraft(load_model(directory, "float32", torch.device("cpu")), vocabulary)
    decoder = Decoder(target, draft, sampling=GREEDY, draft_sampling=GREEDY, vocabulary=vocabulary, gamma=GAMMA)
    requests = [Request(item.prompt.tolist(), item.length, 0) for item in items]
    ways = {
        "examination": seconds_of(lambda: examine({"draft": draft}, items, GREEDY, GREEDY, 8192, GAMMA)),
        "decoding": seconds_of(lambda: [decoder.decode([request]) for request in requests]),
    }
    seconds = in_turns(ways, REPEATS)
    ratio = median_ratio(seconds["decoding"], seconds["examination"])
    return {name: median(values) for name, values in seconds.items()} | {"ratio": ratio}


def _card() -> dict[str, Any]:
    """Milliseconds of passes at the shapes of Llama-3.1-8B, by batch: those of the target and of a model of 1B were measured on
    the card, those of heads are the time in which it reads their weights, which a recorded pass comes near to."""
    part = json.loads((RESULTS / "gpu_kit.json").read_text())["figure"]["parts"]["surface"]
    profile = part["measures"][_PAIR]["profile"]
    target, draft = profile["target"], profile["draft"]
    place = target["contexts"].index(_CONTEXT)
    rows = [target["batches"].index(batch) for batch in _BATCHES]
    projection, wider = (
        3 * _WIDTH * _WIDTH,
        _WIDTH * (_WIDTH + 2 * _KEYS),
    )  # of 3 states; queries, keys, values of 2 inputs
    weights = {
        "EAGLE-3, from nothing": projection + _LAYER + wider + _DRAFTED * _WIDTH,
        "Medusa, 5 places, from nothing": GAMMA * (_WIDTH * _WIDTH + _VOCABULARY * _WIDTH),
    }
    return {
        "card": part["machine"]["card"],
        "batches": list(_BATCHES),
        "plain_ms": [1000 * target["seconds"][row][0][place] for row in rows],
        "verify_ms": [1000 * target["seconds"][row][GAMMA][place] for row in rows],
        # Of a round.
        "draft_ms": {
            "plain, pre-trained": [1000 * GAMMA * draft["seconds"][row][0][place] for row in rows],
            "EAGLE-3, from nothing": [1000 * GAMMA * 2 * weights["EAGLE-3, from nothing"] / _BANDWIDTH] * len(rows),
            "Medusa, 5 places, from nothing": [1000 * 2 * weights["Medusa, 5 places, from nothing"] / _BANDWIDTH]
            * len(rows),
        },
        "weight_bytes": {name: 2 * count for name, count in weights.items()},
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    card = figure["card"]
    yield "## Kinds of drafts of one target\n"
    yield (
        "The quickstart's fine-tuned target; equal completions and steps, the rate of each by trials, "
        f"{figure['drafts'][0]['prompts']} examination prompts, gamma {GAMMA}, one seed. Predicted speedup over plain decoding: "
        "with these tokens per call and the times of passes at the shapes of Llama-3.1-8B in bf16 on one "
        f"{card['card']}, context {_CONTEXT:,}, at batch {', '.join(map(str, card['batches']))}. Times of the target and of a "
        "draft of 1B are measured; those of heads are the time in which the card reads their weights, a lower bound. Medusa "
        "drafts greedily.\n"
    )
    yield from _kinds(figure["drafts"], card, True)
    second = figure["second_pair"]
    yield (
        f"\nThe benchmarks' target (`reference_pair.yaml`), trained in the same way; {second[0]['prompts']} prompts.\n"
    )
    yield from _kinds(second, card, False)
    yield "\n### Examining a kind against decoding with it\n"
    yield (
        f"{PROMPTS} completions at temperature 0, fp32: gamma 1 to {GAMMA} examined, gamma {GAMMA} decoded, one request at a "
        f"time; medians of {REPEATS} turns (aim for heads: 20 times).\n"
    )
    yield "| draft | examined, s | decoded, s | times as fast |"
    yield "|---|---|---|---|"
    for name, found in figure["examination"].items():
        yield f"| {name} | {found['examination']:.2f} | {found['decoding']:.1f} | {found['ratio']:.0f} |"


def _kinds(rows: Sequence[dict[str, Any]], card: dict[str, Any], timed: bool) -> Iterator[str]:
    """`timed`: with the seconds of a training step."""
    batches = " | ".join(f"T=1, batch {batch} | T=0" for batch in card["batches"])
    seconds = "s per step | " if timed else ""
    yield f"| draft | optimizer | rate | parameters | tokens per target call, T=1 | T=0 | {seconds}{batches} |"
    yield "|---" * (6 + timed + 2 * len(card["batches"])) + "|"
    for row in rows:
        calls = " | ".join(interval(row["tokens_per_target_call"][temperature], 2) for temperature in ("1", "0"))
        seconds = f"{row['step_seconds']:.2f} | " if timed else ""
        yield (
            f"| {row['draft']} | {row['optimizer']} | {row['learning_rate']:.2g} | {row['parameters']:,} | {calls} | "
            f"{seconds}{' | '.join(_speedups(row, card))} |"
        )


def _speedups(row: dict[str, Any], card: dict[str, Any]) -> list[str]:
    """By batch, at temperatures 1 and 0."""
    calls = row["tokens_per_target_call"]
    return [
        f"{calls[temperature]['value'] * plain / (verify + drafted):.2f}"
        for plain, verify, drafted in zip(
            card["plain_ms"], card["verify_ms"], card["draft_ms"][row["draft"]], strict=True
        )
        for temperature in ("1", "0")
    ]
