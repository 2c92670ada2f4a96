"""Measure a pair's forward times on this machine over batch size, tokens and context, with the forward that the decoder uses."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from pipeline.latency.costs.forward_times import measure_forwards
from pipeline.latency.costs.measured_points import (
    MeasuredPoints,
    Point,
    point_key,
    points_path,
    read_points,
    write_points,
)
from pipeline.latency.costs.profile import Profile
from pipeline.latency.costs.surface import Surface
from pipeline.models.devices import synchronize
from pipeline.models.out_of_memory import batch_named
from pipeline.progress import Progress
from pipeline.speculation.choice import choose_forward, passes_differ, passes_of
from pipeline.speculation.forward import CachedModel, Forward


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is measured: at each of `batches` and `contexts` target passes over 1 to gammas + 1 tokens and draft passes over 1,
    and prefills of both models for each prompt length in `prompts`. `repeats`: passes of each kind."""

    batches: Sequence[int]
    gammas: int
    contexts: Sequence[int]
    prompts: Sequence[int]
    repeats: int = 7


def measure_profile(
    target: Any,
    draft: Any,
    vocabulary: int,
    grid: Grid,
    *,
    about: Mapping[str, Any],
    progress: Progress,
    out: Path | None = None,
) -> Profile:
    """Medians of alternating passes after warm-up, of every place of the grid.

    With `out` every measurement is kept beside it at once (`measured_points.py`), and one that is there is not made again.
    UsageError if what is there was measured under other conditions."""
    batches, contexts, prompts, repeats = grid.batches, grid.contexts, grid.prompts, grid.repeats
    tokens = tuple(range(1, grid.gammas + 2))
    forwards = choose_forward(target, vocabulary), choose_forward(draft, vocabulary)
    shape = (len(batches), len(tokens), len(contexts))
    conditions = {**_environment(target, passes_of((target, draft), vocabulary)), **about}
    if passes_differ(target, [draft], vocabulary):
        conditions["unequal_passes"] = True
    of = {**conditions, "max_gamma": grid.gammas, "repeats": repeats}
    kept = MeasuredPoints(about=of) if out is None else read_points(out, of)
    if out is not None and kept.count:
        progress.line(f"profile: going on after {kept.count} measurements in {points_path(out)}")
    with progress.track("profile", len(batches) * len(contexts) + len(prompts), "measurements") as track:
        for batch, context in product(batches, contexts):
            if (key := point_key(batch, context)) not in kept.points:
                passes = partial(measure_forwards, *forwards, vocabulary, tokens, context=context)
                with _timed(kept, out), _batch_named(batch, context, passes):
                    times = passes(batch=batch, repeats=repeats)
                    kept.points[key] = Point(target={count: times.target[count] for count in tokens}, draft=times.draft)
            track.advance(1)
        for length in prompts:
            if length not in kept.prefills:
                with _timed(kept, out), _prompt_named(length, forwards, vocabulary):
                    kept.prefills[length] = sum(_prefill(forward, vocabulary, length, repeats) for forward in forwards)
            track.advance(1)
    target_BTC, draft_BC = np.empty(shape), np.empty((shape[0], shape[2]))
    for (row, batch), (column, context) in product(enumerate(batches), enumerate(contexts)):
        point = kept.points[point_key(batch, context)]
        target_BTC[row, :, column] = [point.target[count] for count in tokens]
        draft_BC[row, column] = point.draft
    prefill_P = np.array([kept.prefills[length] for length in prompts])
    return Profile(
        Surface(tuple(batches), tokens, tuple(contexts), target_BTC),
        Surface(tuple(batches), (1,), tuple(contexts), draft_BC[:, None, :]),
        Surface((1,), tuple(prompts), (0,), prefill_P[None, :, None]),
        {**conditions, **_processor_share(target, kept.seconds, kept.worked)},
    )


@contextmanager
def _timed(kept: MeasuredPoints, out: Path | None) -> Iterator[None]:
    """Adds up the time of a measurement, and writes what was measured."""
    started, worked = perf_counter(), process_time()
    yield
    kept.seconds += perf_counter() - started
    kept.worked += process_time() - worked
    if out is not None:
        write_points(out, kept)


def _batch_named(batch: int, context: int, passes: Callable[..., object]) -> AbstractContextManager[None]:
    return batch_named(
        "--batch-sizes",
        batch,
        lambda size: passes(batch=size, repeats=1),
        lambda size: f"leave out --batch-sizes above {size}, or --context-lengths from {context} on,",
    )


def _prompt_named(length: int, forwards: Iterable[Forward], vocabulary: int) -> AbstractContextManager[None]:
    return batch_named(
        "--prompt-lengths",
        length,
        lambda size: [_prefill(forward, vocabulary, size, 1) for forward in forwards],
        lambda size: f"leave out --prompt-lengths above {size}",
    )


@torch.inference_mode()
def _prefill(forward: Forward, vocabulary: int, length: int, repeats: int) -> float:
    model, seconds = CachedModel(forward, 1, length + 1), []
    ids_1T = torch.arange(length + 1, device=model.device)[None] % vocabulary
    for number in range(repeats + 2):
        model.seen, started = [0], perf_counter()
        model.fill_cache(ids_1T, [length + 1])
        synchronize(model.device)
        if number >= 2:  # the first two are warm-up
            seconds.append(perf_counter() - started)
    return median(seconds)


def _processor_share(model: Any, seconds: float, worked: float) -> dict[str, float]:
    """CPU share of this process (CPU only): all threads wait for the slowest, so another process slows every pass."""
    if model.device.type != "cpu":
        return {}
    return {"processor_share": worked / seconds / torch.get_num_threads()}


def _environment(model: Any, passes: str) -> dict[str, Any]:
    """Device, threads, dtype and versions for which the times are valid. `passes`: as `choice.passes_of` states."""
    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": f"{device.type}: {name}",
        "passes": passes,
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "understudy")},
    }
