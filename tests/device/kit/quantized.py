"""Part 6: a draft's INT8, INT4 and FP8 variants, where they load: their size, how far their logits are, and tokens a second."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pipeline.models.devices import synchronize
from pipeline.models.loading import load_model
from pipeline.models.saving import save_model
from pipeline.quantization.variants import quantize
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import Sampling
from tests.device.kit.models import Setup
from tests.fakes import tiny_tokenizer

DRAFT, TOKENS = "Qwen3-0.6B", 64


def measures(setup: Setup) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for variant in ("fp8", "int8", "int4"):
        yield variant, lambda variant=variant: _variant(setup, variant)


def _variant(setup: Setup, variant: Any) -> dict[str, Any]:
    if variant != "fp8" and importlib.util.find_spec("bitsandbytes") is None:
        return {"not_measured": "bitsandbytes is not installed"}
    if variant != "fp8" and setup.device.type not in ("cuda", "cpu"):
        return {"not_measured": f"bitsandbytes has no kernels for {setup.device.type}"}
    source, out = setup.work / "draft", setup.work / variant
    if not source.exists():
        save_model(setup.model(DRAFT), source, (), None)
        tiny_tokenizer().save_pretrained(source)
    if not out.exists():
        quantize(source, variant, out, setup.device, False, False, list(range(2, 66)))
    ids_BT = torch.arange(2, 66, device=setup.device)[None]
    whole, small = (load_model(place, "bfloat16", setup.device) for place in (source, out))
    with torch.inference_mode():
        p, q = (model(ids_BT).logits.float().softmax(-1) for model in (whole, small))
    return {
        "agreement": float(torch.minimum(p, q).sum(-1).mean()),
        "bytes": _bytes(out),
        "bytes_bf16": _bytes(source),
        "tokens_per_second": _speed(setup, small),
        "tokens_per_second_bf16": _speed(setup, whole),
    }


def _bytes(place: Path) -> int:
    return sum(file.stat().st_size for file in place.glob("*.safetensors"))


def _speed(setup: Setup, model: Any) -> float:
    """Of plain decoding at batch 1, the faster of two."""
    decoder, speeds = Decoder(model, None, sampling=Sampling(), vocabulary=setup.vocabulary(DRAFT)), list[float]()
    for _ in range(2):
        began = time.perf_counter()
        decoder.decode([Request(list(range(2, 34)), TOKENS, 0)])
        synchronize(setup.device)
        speeds.append(TOKENS / (time.perf_counter() - began))
    return max(speeds)
