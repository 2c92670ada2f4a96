"""What the stages of a run hold at least in the memory of a device, and whether a run on this machine is refused for it.

Sizes and refusals are those of the run's own check (`models/memory_plan.py`), before anything is loaded. Of a model that is not
on this machine nothing is known. Imports torch only where there is something to compare.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pipeline.config.pair import DeviceMap
from pipeline.config.root import Config
from pipeline.config.tasks import GenerateTask
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.memory import gib, training_bytes
from pipeline.planning.assumptions import Assumption, amounts_of, longest_prompt
from pipeline.planning.earlier_runs import Measurements
from pipeline.planning.forecast import Forecast
from pipeline.planning.local_sizes import local_models, size_with_new_rows
from pipeline.planning.same_inputs import draft_kind
from pipeline.running.execution.local import devices_of
from pipeline.running.jobs import jobs_of

if TYPE_CHECKING:
    import torch

    from pipeline.models.memory_plan import DecodedBatch, Room

_GENERATING, _TRAINING = "execution.local", "distill.processes"  # keys: how many processes a stage has here


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """The memory of one stage, in each of its processes."""

    stage: str
    bytes: float | None  # at least; None: not known
    what: str  # takes them, or why they are not known
    refused: str = ""  # why a run on this machine is refused, in its words
    by_prompt: bool = False  # whether it is refused for caches of the longest prompt, whose length may be assumed


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """`free`: bytes, by the places where a run here puts its models; None where a place does not report them. `note`: what is to
    be known of the comparison with them."""

    stages: list[StageMemory]
    prompt: Assumption  # tokens of the longest, whose cache counts
    free: dict[str, int | None]
    note: str

    def of(self, names: Collection[str]) -> "MemoryForecast":
        """The forecast of these jobs and stages alone."""
        return replace(self, stages=[stage for stage in self.stages if stage.stage.partition(",")[0] in names])


def memory_of(config: Config, counted: Forecast, known: Measurements) -> MemoryForecast:
    """The memory of the stages that generate, train and examine. Loads nothing."""
    by_stage = _Stages(config, counted, known)
    stages = [*by_stage.generations(), *by_stage.trainings(), *by_stage.examinations()]
    return MemoryForecast(stages=stages, prompt=by_stage.prompt, free=by_stage.free, note=by_stage.note)


@dataclass(frozen=True, kw_only=True)
class _Model:
    """One that a stage loads."""

    role: str
    dtype: str
    device_map: DeviceMap | None = None
    batch: "DecodedBatch | None" = None


_Check = Callable[["torch.device", int], None]  # on a device, which so many processes share


class _Stages:
    def __init__(self, config: Config, counted: Forecast, known: Measurements) -> None:
        self.prompt = longest_prompt(config, known.lengths)
        self.free, self.note = dict[str, int | None](), ""
        self._config, self._trusted, self._paths = config, config.pair.trust_remote_code, local_models(config)
        self._completions = {work.job: work.completions for work in counted.generate}
        self._parameters = known.draft_parameters or config.plan.draft_parameters
        self._processes = round(amounts_of(config, counted, known).processes)

    def generations(self) -> Iterator[StageMemory]:
        """The memory of generation by targets that are loaded here."""
        config, local = self._config, self._config.execution.local
        for job in jobs_of(config):
            if not isinstance(job.task, GenerateTask) or (job.task.target == "target" and config.generate.is_served):
                continue
            asked = min(config.generate.batch, config.generate.shard, self._completions[job.id])
            model = self._target(job.task.target, asked)
            devices = devices_of(config.device, local) if local > 1 and self._device is not None else self._main
            yield self._loading(job.id, [model], devices, _each(local))

    def trainings(self) -> Iterator[StageMemory]:
        """The memory of training all weights of the draft, or adapters beside them; on-policy rounds load the target too."""
        distill, draft = self._config.distill, _Model(role="draft", dtype="float32")
        try:
            processes, wrong = self._training_processes, ""
        except UsageError as error:
            processes, wrong = self._processes, str(error)
        on_gpus = self._device is not None and self._device.type == "cuda" and processes > 1
        devices = [f"cuda:{number}" for number in range(processes)] if on_gpus else self._main * processes
        devices = [] if wrong else devices
        if distill.lora is None:
            yield self._training(processes, devices, wrong)
        elif distill.shard and processes > 1:  # loaded by one process after another
            yield self._loading(
                "distill", [draft], ["cpu" for _ in devices[:1]], ", on the host, before they are divided"
            )
        else:
            yield self._loading("distill", [draft], devices, _each(processes), _TRAINING)
        if distill.on_policy.rounds:
            models = [draft, self._target("target")]
            yield self._loading("distill, on-policy rounds", models, devices, _each(processes), _TRAINING)
        if self._has_head:
            target = [self._target("target")]
            yield self._loading("distill, its target", target, devices, _each(processes), _TRAINING)

    def examinations(self) -> Iterator[StageMemory]:
        """The memory of examination with the target, which decodes for the cross-check. A head, which is small, is examined on
        its states."""
        config = self._config
        if self._has_head:
            yield self._loading("evaluate", [self._target("target")], self._main, "")
            return
        models = [_Model(role="draft", dtype=config.pair.draft.dtype)]
        if config.evaluate.crosscheck_prompts and not config.generate.is_served:
            models.append(self._target("target"))
        yield self._loading("evaluate", models, self._main, "")

    def _target(self, role: str, rows: int | None = None) -> _Model:
        pair, batch = self._config.pair, None
        source = pair.target if role == "target" else pair.target_before or pair.target
        if rows is not None and role in self._paths:
            from pipeline.models.memory_plan import DecodedBatch

            tokens = round(self.prompt.value) + self._config.generate.max_new_tokens
            batch = DecodedBatch(key="generate.batch", rows=rows, tokens=tokens)
        return _Model(role=role, dtype=source.dtype, device_map=pair.target.device_map, batch=batch)

    def _loading(
        self, stage: str, models: Sequence[_Model], devices: Sequence[str], each: str, key: str = _GENERATING
    ) -> StageMemory:
        """The memory of one model, or of a draft and a target beside it. `key`: that of the number of processes."""
        if missing := [model.role for model in models if model.role not in self._paths]:
            return StageMemory(stage=stage, bytes=None, what=self._missing(missing[0]))
        from pipeline.models.memory_plan import needed_memory, require_room

        try:
            needed = [
                needed_memory(self._paths[loaded.role], loaded.dtype, self._trusted, loaded.batch) for loaded in models
            ]
            rows = [self._bytes_of_new_rows(model) for model in models]
        except UnderstudyError as error:
            return StageMemory(stage=stage, bytes=None, what=str(error))

        def check(device: "torch.device", processes: int) -> None:
            for number, model in enumerate(models):
                room = self._room(device, model.device_map).shared(processes, key)
                room = room.beside(rows[number], "its new rows") if rows[number] else room
                if number:
                    room = room.beside(sizes[0].bytes, f"the {models[0].role}")
                require_room(self._paths[model.role], model.dtype, room, self._trusted, model.batch)

        sizes = [replace(size, weights=size.weights + more) for size, more in zip(needed, rows, strict=True)]
        if models[0].batch is not None:
            what = sizes[0].text
        elif len(models) == 1:
            what = f"weights of the {models[0].role} as {models[0].dtype}"
        else:
            of = [f"of the {model.role} ({gib(size.bytes)})" for model, size in zip(models, sizes, strict=True)]
            what = f"weights {' and '.join(of)}"
        refused = self._refused(devices, check)
        return StageMemory(
            stage=stage,
            bytes=sum(size.bytes for size in sizes),
            what=what + each,
            refused=refused,
            by_prompt=any(
                loaded.batch is not None and refused.startswith(f"{loaded.batch.key} = ") for loaded in models
            ),
        )

    def _training(self, processes: int, devices: Sequence[str], wrong: str) -> StageMemory:
        path, parameters = self._paths.get("draft"), self._parameters
        if path is not None:
            from pipeline.drafts.head_tensors import measure_draft

            try:
                parameters = measure_draft(path, self._trusted).parameters
            except UnderstudyError as error:
                return StageMemory(stage="distill", bytes=None, what=str(error))
        if parameters is None:
            stated = "" if self._config.pair.is_reference else "; plan.draft_parameters states its size"
            return StageMemory(stage="distill", bytes=None, what=self._missing("draft") + stated)
        count, optimizer = (
            parameters + self._new_rows if path is not None else parameters,
            self._config.distill.optimizer,
        )
        parts = processes if self._config.distill.shard else 1

        def check(device: "torch.device", sharing: int) -> None:
            from pipeline.models.memory_plan import require_training_room

            name = str(path or self._config.pair.draft.source)
            require_training_room(name, count, self._room(device).shared(sharing, _TRAINING), optimizer, parts)

        divided = (
            f"; with distill.shard {gib(training_bytes(count, optimizer, processes))}" if processes > parts else ""
        )
        return StageMemory(
            stage="distill",
            bytes=training_bytes(count, optimizer, parts),
            what=f"float32 weights, gradients and optimizer state of {count:,.0f} parameters{_each(processes)}{divided}",
            refused=wrong or self._refused(devices, check),
        )

    @cached_property
    def _new_rows(self) -> int:
        """Parameters that the draft has more than its files, where it is given the target's vocabulary."""
        size = size_with_new_rows(self._config)
        if size is None or "draft" not in self._paths:
            return 0
        from pipeline.models.shape import measure_weights

        return size.whole - measure_weights(self._paths["draft"], self._trusted).parameters

    def _bytes_of_new_rows(self, model: _Model) -> int:
        from pipeline.models.loading import dtype_bytes

        return self._new_rows * dtype_bytes(model.dtype) if model.role == "draft" else 0

    def _refused(self, devices: Sequence[str], check: _Check) -> str:
        """Why the stage is refused, by the first device on which it does not fit."""
        if not devices:
            return ""
        import torch

        try:
            for device, processes in Counter(devices).items():
                check(torch.device(device), processes)
        except UsageError as error:
            return str(error)
        return ""

    def _room(self, device: "torch.device", device_map: DeviceMap | None = None) -> "Room":
        from pipeline.models.memory_plan import Room

        room = Room.of(device, device_map)
        self.free.setdefault(", ".join(room.places), room.free)
        return room

    @cached_property
    def _device(self) -> "torch.device | None":
        """The device on which a run here would be; None where nothing is compared."""
        if self._config.pair.is_reference or not (self._paths or self._parameters):  # the first is small
            return None
        if self._config.execution.ray is not None:
            self.note = "memory is not compared with this machine: Ray chooses the devices of its workers"
            return None
        import torch

        from pipeline.models.devices import choose_device

        try:
            device = choose_device(self._config.device)
        except UsageError as error:
            self.note = f"memory is not compared with this machine: {error}"
            return None
        if device.type == "cpu" and self._config.device == "auto":
            self.note = "no GPU is seen here: for another machine, compare what is needed with the memory of its GPU"
        return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device

    @property
    def _main(self) -> list[str]:
        """The device of this process."""
        return [] if self._device is None else [str(self._device)]

    @property
    def _training_processes(self) -> int:
        """UsageError where a training here is refused for their number."""
        if self._device is None or self._device.type != "cuda":
            return self._processes
        import torch

        from pipeline.distillation.launchers import processes_here

        distill, placed = self._config.distill, self._config.pair.target.device_map
        device = self._device if self._config.device not in ("auto", "cuda") else torch.device("cuda")
        return processes_here(distill.processes, distill.batch, device, bool(distill.on_policy.rounds and placed))

    @cached_property
    def _has_head(self) -> bool:
        """Whether the draft reads hidden states of the target, as far as it is known here."""
        return draft_kind(self._config).reads_states

    def _missing(self, role: str) -> str:
        pair = self._config.pair
        if pair.is_reference:
            return "not known before the run has made the reference pair"
        if role == "draft" and pair.draft.head is not None:
            return "not known before the run has made the head"
        if role == "draft" and pair.draft.is_of_target:
            return "not known before the run has made the draft of the target's layers"
        return f"not known: {getattr(pair, role).source} is not on this machine yet"


def _each(processes: int) -> str:
    return f", in each of {processes} processes" if processes > 1 else ""
