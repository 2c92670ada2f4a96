"""`python -m tests.benchmarks gpu_memory`: what the shipped configs take of a GPU, by the plan that refuses what cannot fit.

From checkpoints of the published shapes without content (sparse files): the plan reads headers only. No GPU is needed.
"""

import json
import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.benchmarks.figures import write

GIB = 1 << 30
CARDS = (24, 48, 80)  # GB, as they are sold; a driver and torch take half a GiB
_RESERVED = GIB // 2
_SMOLLM: dict[str, Any] = {"vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True}
# Of configs/: target and draft by the names of `shapes`, batch of generation, its longest sequence.
PAIRS = {
    "qwen3-8b": ("Qwen3-8B", "Qwen3-0.6B", 64, 2560),
    "smollm2-1.7b": ("SmolLM2-1.7B", "SmolLM2-135M", 16, 2560),
    "llama3.1-70b": (None, "Llama-3.2-1B", 0, 0),
}


def shapes() -> dict[str, Any]:
    """Configs by name."""
    import transformers

    from tests.device.kit.models import published

    small = {
        "SmolLM2-1.7B": (2048, 8192, 24, 32, 32),
        "SmolLM2-135M": (576, 1536, 30, 9, 3),
    }
    found = {name: published(name) for name in ("Qwen3-8B", "Qwen3-1.7B", "Qwen3-0.6B", "Llama-3.1-8B", "Llama-3.2-1B")}
    for name, (hidden, intermediate, layers, heads, keys) in small.items():
        found[name] = transformers.LlamaConfig(
            **_SMOLLM,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=keys,
        )
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        configs = shapes()
        for name, config in configs.items():
            _checkpoint(Path(place) / name, config)
        figure = {
            "pairs": {name: _pair(Path(place), *pair) for name, pair in PAIRS.items()},
            "trainings": {name: _training(Path(place) / name) for name in configs if "8B" not in name},
        }
    write("gpu_memory", "python -m tests.benchmarks gpu_memory", figure)


def _checkpoint(place: Path, config: Any) -> None:
    """A directory with config.json and a safetensors file whose tensors have the model's names and shapes, all of them holes."""
    import torch
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    config.architectures = [type(model).__name__]
    config.save_pretrained(place)
    header, end = {}, 0
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    for name, weight in model.state_dict().items():
        if name not in tied:
            header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [end, end + weight.nbytes]}
            end += weight.nbytes
    text = json.dumps(header).encode()
    with (place / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def _pair(place: Path, target: str | None, draft: str, batch: int, tokens: int) -> dict[str, Any]:
    """Whether the target generates on each card with the config's batch, or with which; what training the draft takes."""
    found: dict[str, Any] = {"draft": draft, "training": _training(place / draft)}
    if target is not None:
        found |= {
            "target": target,
            "batch": batch,
            "cards": {str(card): _batch(place / target, batch, tokens, card) for card in CARDS},
        }
    return found


def _batch(path: Path, batch: int, tokens: int, card: int) -> int:
    """The batch, or the largest that fits; 0 where the weights do not."""
    import torch

    from pipeline.errors import UsageError
    from pipeline.models import memory_plan

    free, device = card * 10**9 - _RESERVED, torch.device("cuda", 0)
    with patch.object(memory_plan, "_free_on", lambda place: free):
        try:
            plan = memory_plan.DecodedBatch(key="generate.batch", rows=batch, tokens=tokens)
            memory_plan.require_memory(path, "bfloat16", device, None, False, plan)
        except UsageError as refused:
            fits = re.search(r"set generate\.batch to (\d+)", str(refused))
            return int(fits[1]) if fits else 0
    return batch


def _training(path: Path) -> dict[str, float]:
    """GiB a process, without activations: alone, and divided among four."""
    from pipeline.models.memory import training_bytes
    from pipeline.models.shape import measure_weights

    parameters = measure_weights(path, False).parameters
    return {
        "parameters": parameters,
        **{optimizer: training_bytes(parameters, optimizer) / GIB for optimizer in ("adamw", "muon")},
        "adamw, 4 processes, shard": training_bytes(parameters, "adamw", 4) / GIB,
    }


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Memory of the shipped configs\n"
    yield (
        "By the plan that refuses what cannot fit before anything is loaded, from checkpoints of the published shapes; half a "
        "GiB of a card is taken to be in use. A lower bound: activations come on top.\n"
    )
    yield (
        "| config | target generates with `generate.batch` on a card of "
        + " | ".join(f"{card} GB" for card in CARDS)
        + " |"
    )
    yield "|---|---|" + "---|" * (len(CARDS) - 1)
    for name, pair in figure["pairs"].items():
        if "target" in pair:
            cells = [_fits(int(pair["cards"][str(card)]), int(pair["batch"])) for card in CARDS]
            yield f"| `{name}` ({pair['target']}) | " + " | ".join(cells) + " |"
        else:
            yield f"| `{name}` (the target is served elsewhere) | " + " | ".join(["no target here"] * len(CARDS)) + " |"
    yield ""
    yield "| training of | parameters | AdamW | Muon | AdamW, four GPUs with `distill.shard` (each) |"
    yield "|---|---|---|---|---|"
    for name, found in figure["trainings"].items():
        sizes = " | ".join(f"{found[key]:.1f} GiB" for key in ("adamw", "muon", "adamw, 4 processes, shard"))
        yield f"| {name} | {found['parameters'] / 1e9:.2f} billion | {sizes} |"
    yield ""


def _fits(fits: int, batch: int) -> str:
    if fits == batch:
        return f"{batch}, as it is"
    return f"{fits}: lower it from {batch}" if fits else "the weights do not fit"
