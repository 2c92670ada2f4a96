"""Quantized drafts: speedup at real sizes with a bf16, an INT8 and an INT4 draft, in one run."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.config.quantize import QuantizedVariant
from tests.benchmarks.decoder_real import ACCEPTANCE, PROMPT
from tests.benchmarks.figures import write

GAMMA, TOKENS, DRAWS, REPEATS = 5, 96, 3, 5
_SPEEDUP_AIM, _OVER_BF16_AIM, _STRETCH = 2.5, 1.1, 3.0
_SIZE_AIMS = {"int8": 0.51, "int4": 0.29}
_NAMES: dict[str, QuantizedVariant] = {"int8": "int8", "int4": "int4", "int4 without head": "int4"}


def main() -> None:
    write("decoder_quantized", "python -m tests.benchmarks decoder_quantized", _measure())


def _measure() -> dict[str, Any]:
    import logging

    from pipeline.latency.costs.forward_times import measure_times
    from tests.benchmarks.realpair import VOCABULARY, real_decoder, real_pair
    from tests.benchmarks.timing import in_turns, median_ratio, seconds_per_token

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    target, draft = real_pair()
    with tempfile.TemporaryDirectory() as scratch:
        drafts, sizes = _variants(draft, Path(scratch))
    drafts = {"bf16": draft, **drafts}
    decoders = {name: real_decoder(target, one, GAMMA, ACCEPTANCE) for name, one in drafts.items()}

    def draft_seconds(one: Any) -> float:
        times = measure_times(target, one, VOCABULARY, [GAMMA + 1], context=PROMPT + TOKENS // 2, repeats=7)
        return times.draft

    plain = real_decoder(target, draft, 0, ACCEPTANCE)
    ways: dict[str, Any] = {"plain": lambda turn: seconds_per_token(plain, PROMPT, TOKENS, turn)}
    for name, one in decoders.items():
        ways[name] = lambda turn, one=one: seconds_per_token(one, PROMPT, TOKENS, turn, draws=DRAWS)
    for name, one in drafts.items():
        ways[f"pass of {name}"] = lambda turn, one=one: draft_seconds(one)
    found = in_turns(ways, REPEATS)
    seconds = {name: [pace.seconds for pace in found[name]] for name in ("plain", *drafts)}
    return {
        "acceptance": ACCEPTANCE,
        "repeats": REPEATS,
        "plain_ms": 1e3 * median(seconds["plain"]),
        "sizes": sizes,
        "drafts": {
            name: {
                "speedup": median_ratio(seconds["plain"], seconds[name]),
                "over_bf16": median_ratio(seconds["bf16"], seconds[name]),
                "omega": median(pace.omega for pace in found[name]),
                "pass_ms": 1e3 * median(found[f"pass of {name}"]),
            }
            for name in drafts
        },
    }


def _variants(draft: Any, scratch: Path) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Loaded anew from what was saved, and their sizes."""
    import torch

    from pipeline.models.loading import load_model
    from pipeline.quantization.variants import quantize

    device, drafts, sizes = torch.device("cpu"), {}, {}
    draft.save_pretrained(scratch / "bf16")
    for name, variant in _NAMES.items():
        sizes[name] = quantize(scratch / "bf16", variant, scratch / name, device, head="without" not in name).sizes
        drafts[name] = load_model(scratch / name, "bfloat16", device)
    return drafts, sizes


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Quantized drafts at real sizes\n"
    yield (
        f"The untied 853 M target in bf16 and its 99 M draft with random weights, batch 1, gamma {GAMMA}, imposed acceptance "
        f"{figure['acceptance']}: this measures the draft's cost, not its quality. Median of {figure['repeats']} turns; plain "
        f"decoding takes {figure['plain_ms']:.1f} ms per token. Targets for INT4: speedup {_SPEEDUP_AIM} ({_STRETCH} as a "
        f"stretch goal), {_OVER_BF16_AIM} times that of the bf16 draft. Sizes relative to bf16: the quantized layers (targets: "
        f"INT8 {_SIZE_AIMS['int8']}, INT4 {_SIZE_AIMS['int4']}) and the whole file.\n"
    )
    yield "| draft | speedup | relative to the bf16 draft | draft forward, ms | size of layers | size of file |"
    yield "|---|---|---|---|---|---|"
    for name, row in figure["drafts"].items():
        sizes = figure["sizes"].get(name)
        layers, file = (
            (sizes["linear_bytes"] / sizes["linear_bytes_bf16"], sizes["file_bytes"] / sizes["file_bytes_source"])
            if sizes
            else (1.0, 1.0)
        )
        yield (
            f"| {name} | **{row['speedup']:.2f}** | **{row['over_bf16']:.2f}** | {row['pass_ms']:.2f} | {layers:.3f} "
            f"| {file:.2f} |"
        )
