"""`python -m tests.device.kit.run`: the parts of the kit, each with a limit, each writing what it has after every measure.

A part that ends early is called again: what is measured is kept. A measure that fails says why, and the next call tries it again.
"""

import argparse
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.models.devices import choose_device
from pipeline.planning.doctor.gpus import gpus
from tests.device.kit.models import Setup

PARTS = {1: "rehearsal", 2: "decoding", 3: "training", 4: "passes", 5: "surface", 6: "quantized", 7: "heads"}
SECONDS = 480.0
_LIBRARIES = ("understudy", "torch", "transformers", "accelerate", "trl", "datasets", "numpy")


def main() -> int:
    options = _options()
    device = choose_device(options.device)
    if options.device == "auto" and device.type == "cpu":
        for check in gpus():
            print("; ".join(filter(None, [f"{check.name}: {check.found}", check.remedy])), file=sys.stderr)
        print("no GPU is measured here; --device cpu measures the CPU", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    failed = False
    (work := options.out.absolute() / "work").mkdir(exist_ok=True)
    for number in options.parts:
        failed |= not run_part(number, Setup(device, options.tiny, work), options.out, options.seconds)
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", type=int, default=[*PARTS], help=f"of {PARTS}; default: all, in order")
    parser.add_argument("--out", type=Path, default=Path("results"), help="a folder; each part writes one JSON file")
    parser.add_argument("--device", default="auto", help="as in a config; auto: the GPU if there is one")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="no measure of a part begins later, and programs that it has started (part 1) are ended then; what else has begun "
        "is not stopped",
    )
    parser.add_argument("--tiny", action="store_true", help="a rehearsal with shapes whose figures mean nothing")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {min(unknown)}; the parts are {', '.join(map(str, PARTS))}")
    return options


def run_part(number: int, setup: Setup, out: Path, limit: float) -> bool:
    """Whether all measures of the part are there now that this device can make."""
    name, began = PARTS[number], time.monotonic()
    path = out / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    here = {"part": number, "tiny": setup.tiny, "machine": _machine(setup.device), "versions": _versions()}
    if found and {key: found.get(key) for key in here} != here:
        raise SystemExit(f"{path}: measured on another card, with other libraries or with --tiny; give another --out")
    found |= here
    measures, errors, not_for_it = found.setdefault("measures", {}), {}, {}
    setup = replace(setup, until=began + limit)
    part = importlib.import_module(f"tests.device.kit.{name}")
    left = list[str]()
    for measure, work in part.measures(setup):
        if measure in measures:
            continue
        if time.monotonic() - began > limit:
            left.append(measure)
            continue
        print(f"{number} {name}: {measure} ...", flush=True)
        started = time.monotonic()
        try:
            result = {**work(), "seconds": round(time.monotonic() - started, 2)}
            print(f"  {json.dumps(result)[:400]}", flush=True)
            if reason := result.get("not_measured"):
                not_for_it[measure] = reason
            else:
                measures[measure] = result
        except Exception as error:  # whatever it is, the other measures may work
            errors[measure] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            print(traceback.format_exc()[-3000:], file=sys.stderr, flush=True)
        path.write_text(json.dumps(found | {"errors": errors | not_for_it, "left": left}, indent=1) + "\n")
        gc.collect()
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
    path.write_text(json.dumps(found | {"errors": errors | not_for_it, "left": left}, indent=1) + "\n")
    failed = [
        measure for measure, values in measures.items() if values.get("failed")
    ]  # tests that the next call would not pass
    print(f"{number} {name}: {len(measures)} measured, {len(errors | not_for_it)} not, {len(left)} left", flush=True)
    for measure, reason in (errors | not_for_it).items():
        print(f"  not measured: {measure}: {reason[:200]}", flush=True)
    for measure in failed:
        print(f"  {measure}: {measures[measure]['failed']} tests failed: {measures[measure]['reasons']}", flush=True)
    for measure in left:
        print(f"  left: {measure}; call again", flush=True)
    return not left and not errors and not failed


def _machine(device: torch.device) -> dict[str, Any]:
    found = {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    if device.type != "cuda":
        return found | {"card": str(device)}
    card = torch.cuda.get_device_properties(device)
    return found | {
        "card": card.name,
        "memory_gib": round(card.total_memory / 2**30, 1),
        "capability": f"{card.major}.{card.minor}",
        "cuda": torch.version.cuda,
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


if __name__ == "__main__":
    sys.exit(main())
