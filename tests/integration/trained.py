"""Tiny trainings for the tests of the trainer, in this process and in several."""

import json
import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.config.distill import DistillConfig
from pipeline.distillation import processes
from pipeline.distillation.adapters import add_adapters
from pipeline.distillation.segments import segment_weights
from pipeline.distillation.sharding import complete, divided
from pipeline.distillation.trainer import distill
from pipeline.distillation.training_log import Log
from pipeline.distillation.weighted_completions import WeightedCompletions
from pipeline.examination.examiner import AcceptanceSummary
from pipeline.generation.completion_store import StoredCompletion
from tests.fakes import quiet, stored_completion, tiny_llama, tiny_tokenizer

Weights = dict[str, list[float]]
# 7 rows in batches of 4: the second batch of an epoch has 3 rows; with 5 rows it has one, and a process has none.
SETTINGS = DistillConfig(bf16=False, max_steps=6, batch=4, save_every=2, evaluate_every=3, learning_rate=1e-2)


def rows_of(count: int) -> list[StoredCompletion]:
    """Of unequal lengths; the first half of each is thinking. Each fills a row of the training."""
    generator = np.random.default_rng(0)
    rows = [
        stored_completion(
            generator.integers(0, 32, 30), generator.integers(0, 32, 40 + n % 3), name=f"prompt-{n}", seed=n
        )
        for n in range(count)
    ]
    return [
        replace(
            item,
            segments=(np.arange(len(item.tokens)) < item.length // 2).astype(np.uint8),
            segment_names=("answer", "thinking"),
        )
        for item in rows
    ]


def square(model: Any) -> float:
    """A figure that depends on every weight."""
    return float(sum(weight.detach().double().square().sum() for weight in model.parameters()))


def train(
    work: Path,
    settings: DistillConfig,
    rows: list[StoredCompletion],
    before: Callable[[], None] = lambda: None,
    wrap: Callable[[Any], Any] = lambda model: model,
    phases: int = 1,
) -> tuple[Any, Log]:
    """The draft is the better the larger its weights are. `before`: is called before each examination. The log is that of the
    last phase."""

    def examine(model: Any) -> AcceptanceSummary:
        before()
        return AcceptanceSummary(square(model), square(model), {"answer": 0.25, "thinking": 0.75})

    model, log = wrap(tiny_llama(51, layers=1, dtype=torch.float32)), Log()
    for phase in range(phases):
        log = distill(
            model,
            tiny_tokenizer(),
            WeightedCompletions(rows, 32, segment_weights(rows, settings.segment_shares)),
            settings,
            seed=3,
            work=work / str(phase),
            examine=examine,
            progress=quiet(),
        )
    return model, log


class Killed(Exception):
    """In the middle of a training."""


def killed_before_the_last_examination() -> Callable[[], None]:
    """For `before` of a training with SETTINGS."""
    asked = list[int]()

    def killed() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise Killed

    return killed


def trained(
    settings: DistillConfig,
    rows: int,
    work: Path,
    phases: int = 1,
    shard: bool = False,
    prepared: Callable[[Any], Any] = lambda model: model,
    before: Callable[[], None] = lambda: None,
    kind: str = "cpu",
) -> list[Any]:
    """Weights and log of `train`. `shard`: the processes divide the draft, among their devices of that kind."""

    def wrap(model: Any) -> Any:
        found = prepared(model)
        return found if settings.lora is None else add_adapters(found, settings.lora, 5)

    def wrap_part(model: Any) -> Any:
        return divided(lambda: wrap(model), torch.device(kind))

    model, log = train(work, settings, rows_of(rows), before, wrap_part if shard else wrap, phases)
    with complete(model) as whole_model:
        return [weights_of(whole_model), log]


def flat(log: Any) -> dict[str, float]:
    """The figures of a log by place."""
    if isinstance(log, dict | list):
        items = log.items() if isinstance(log, dict) else enumerate(log)
        return {f"{name}.{inner}": value for name, part in items for inner, value in flat(part).items()}
    return {"": log}


def weights_of(model: Any) -> Weights:
    return {name: weight.flatten().tolist() for name, weight in model.state_dict().items()}


def in_processes(count: int, body: Callable[[], Any], out: Path, kind: str | None = "cpu") -> list[int | None]:
    """Call `body` in `count` processes that train together, each with a device of that kind (None: `body` joins them); what it
    returns in the first is written to `out` as JSON. Returns their exit codes."""
    started = start(count, body, out, kind)
    for one in started:
        one.join(600)
    return [one.exitcode for one in started]


def start(count: int, body: Callable[[], Any], out: Path, kind: str | None = "cpu") -> list[BaseProcess]:
    """As `in_processes`, without waiting. They are forked: imports take longer than these trainings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=_rank, args=(number, count, port, body, out, kind)) for number in range(count)]
    for one in started:
        one.start()
    return list(started)


def _rank(number: int, count: int, port: int, body: Callable[[], Any], out: Path, kind: str | None) -> None:
    from accelerate.state import AcceleratorState, PartialState

    names = {"RANK": number, "WORLD_SIZE": count, "LOCAL_RANK": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    if kind is not None:
        processes.join(kind)
    found = body()
    if processes.is_first():
        out.write_text(json.dumps(found))
    processes.leave()
    os._exit(0)  # without the handlers of the test's process
