"""Forward times of a pair on this machine, measured with nothing else running: the baseline of `efficiency`."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch

from pipeline.latency.costs.ideal_speedup import ForwardTimes
from pipeline.models.devices import synchronize
from pipeline.speculation.choice import choose_forward
from pipeline.speculation.forward import CachedModel, Forward


def measure_times(
    target: Any,
    draft: Any,
    vocabulary: int,
    tokens: Sequence[int],
    *,
    batch: int = 1,
    context: int = 128,
    repeats: int = 15,
) -> ForwardTimes:
    """The forward times of `measure_forwards`, for two models."""
    forwards = choose_forward(target, vocabulary), choose_forward(draft, vocabulary)
    return measure_forwards(*forwards, vocabulary, tokens, batch=batch, context=context, repeats=repeats)


@torch.inference_mode()
def measure_forwards(
    target: Forward,
    draft: Forward,
    vocabulary: int,
    tokens: Sequence[int],
    *,
    batch: int,
    context: int,
    repeats: int,
) -> ForwardTimes:
    """Median seconds of a target pass over each of `tokens` tokens per sequence and of a draft pass over one, with the forward
    that the decoder uses and `context` tokens in the KV cache. The passes alternate, so a slow moment affects all of them."""
    widest = max(tokens)
    passes: dict[tuple[str, int], Callable[[], None]] = {}
    for name, forward, widths in (("target", target, sorted({1, *tokens})), ("draft", draft, [1])):
        model = CachedModel(forward, batch, context + widest)
        ids_BT = torch.arange(batch * (context + widest), device=model.device).view(batch, -1) % vocabulary
        model.logits(ids_BT[:, :context], [0] * batch, keep=1)
        for width in widths:
            passes[name, width] = _one_pass(model, ids_BT[:, context : context + width], context)
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in passes}
    for number in range(repeats + 2):
        for key, run in passes.items():
            started = perf_counter()
            run()
            if number >= 2:  # the first two are warm-up
                seconds[key].append(perf_counter() - started)
    medians = {key: median(values) for key, values in seconds.items()}
    return ForwardTimes(
        {width: medians[name, width] for name, width in medians if name == "target"}, medians["draft", 1]
    )


def _one_pass(model: CachedModel, ids_BT: torch.Tensor, context: int) -> Callable[[], None]:
    def run() -> None:
        model.logits(ids_BT, [context] * len(ids_BT), keep=ids_BT.shape[1])
        synchronize(model.device)

    return run
