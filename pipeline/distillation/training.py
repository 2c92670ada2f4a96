"""One training of the base draft: offline on the target's completions, then on-policy rounds, then merging of adapters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from pipeline.acceptance.rounds import Floats
from pipeline.config.distill import DistillConfig
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.pair import DeviceMap
from pipeline.distillation.adapters import add_adapters, merge_adapters
from pipeline.distillation.on_policy import RoundSampler, SampleFunction, run_rounds
from pipeline.distillation.processes import count, spread
from pipeline.distillation.rate_trials import find_rate
from pipeline.distillation.settings import TrainingSettings
from pipeline.distillation.sharding import complete, divided
from pipeline.distillation.trained_head import TrainedHead
from pipeline.distillation.trainer import distill
from pipeline.distillation.training_log import Log
from pipeline.distillation.weighted_completions import ScoredPrompts, WeightedCompletions
from pipeline.drafts.head_config import kind_of, trainable_head
from pipeline.drafts.head_tensors import measure_draft
from pipeline.drafts.kinds import Kind
from pipeline.drafts.loading import head_draft, load_head
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import BrokenDraft, UsageError
from pipeline.examination.examiner import AcceptanceSummary, Examiner
from pipeline.generation.completion_store import StoredCompletion
from pipeline.models.devices import choose_device
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.memory_plan import Room, require_training_memory, require_training_room
from pipeline.models.out_of_memory import SmallerBatches
from pipeline.models.stored_pair import Pair
from pipeline.progress import Progress
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling
from pipeline.speculation.target_states import TargetStates

_DIVERGED = AcceptanceSummary(0.0, 0.0)
DEV_GAMMA = 5  # draft length at which checkpoints are compared


@dataclass(frozen=True)
class Training:
    """The inputs that all trainings of a run share."""

    settings: TrainingSettings
    pair: Pair
    dev: Sequence[StoredCompletion]  # at the deployment's sampling
    progress: Progress
    device: str
    trust_remote_code: bool
    target_device_map: DeviceMap | None = None
    shard: bool = False  # whether the processes divide the draft among them
    prompts: ScoredPrompts | None = None  # whose positions are trained on too

    def run(self, rows: Sequence[StoredCompletion], weights: Mapping[str, float], work: Path) -> tuple[Any, Log]:
        """The base draft trained on `rows`, with its best weights on dev prompts, and the log. `weights`: of a token in the loss,
        by its segment, in every phase. Checkpoints are written to `work`; an interrupted training resumes from them, a finished
        one is only loaded."""
        model, log = self.run_phases(rows, weights, work)
        return (model if self.settings.distill.lora is None else merge_adapters(model)), log

    def require_memory(self) -> None:
        """UsageError where weights, gradients and optimizer state cannot fit, before anything is loaded."""
        settings, device, path = self.settings.distill, choose_device(self.device), self.pair.path("draft")
        if kind_of(path).reads_states:
            require_training_room(
                str(path), measure_draft(path).parameters, Room.of(device), settings.optimizer, parts=1
            )
        elif settings.lora is None:
            parts = count() if self.shard else 1
            require_training_memory(self.pair.path("draft"), device, settings.optimizer, parts, self.trust_remote_code)

    def run_phases(self, rows: Sequence[StoredCompletion], weights: Mapping[str, float], work: Path) -> tuple[Any, Log]:
        """What `run` does, but for adapters, which stay beside the weights."""
        settings, seed, trials = self.settings.distill, self.settings.seed, Log()
        model = self.draft()

        def train(rows: Sequence[StoredCompletion], settings: DistillConfig, seed: int, place: Path) -> Log:
            return self.train(model, rows, weights, settings, seed, place)

        if settings.learning_rate == "auto":
            rate, trials = self._find_rate(model, rows, weights, work / "rates")
            settings = settings.model_copy(update={"learning_rate": rate})
        log = train(rows, settings, seed, work / "offline")
        if settings.on_policy.rounds:
            for phase in run_rounds(rows, settings, seed, work, self._sampler(model), train):
                done = max(entry["step"] for entry in log)
                log += [entry | {"step": done + entry["step"]} for entry in phase]
        return model, [*trials, *log]

    def _find_rate(
        self, model: Any, rows: Sequence[StoredCompletion], weights: Mapping[str, float], work: Path
    ) -> tuple[float, Log]:
        begin: list[AcceptanceSummary] = []  # of the draft with which every trial begins, once it is known

        def train(settings: DistillConfig, place: Path) -> Log:
            known = iter(tuple(begin))

            def examine(draft: Any) -> AcceptanceSummary:
                if (summary := next(known, None)) is not None:
                    return summary
                if not begin:
                    begin.append(self.examine(draft))
                    return begin[0]
                later = self._examination(draft)
                return _DIVERGED if isinstance(later, str) else later

            return self.train(model, rows, weights, settings, self.settings.seed, place, examine)

        hidden = int(model.get_input_embeddings().weight.shape[-1])
        return find_rate(model, self.settings.distill, hidden, train, work, self.progress)

    def train(
        self,
        model: Any,
        rows: Sequence[StoredCompletion],
        weights: Mapping[str, float],
        settings: DistillConfig,
        seed: int,
        work: Path,
        examine_trial: Callable[[Any], AcceptanceSummary] | None = None,
    ) -> Log:
        """One phase: train `model` in place on `rows`; it ends with its best weights on dev prompts. `examine_trial`: of a trial
        of the rate, which may diverge."""
        return distill(
            model,
            load_tokenizer(self.pair.tokenizer, self.trust_remote_code),
            WeightedCompletions(rows, self.pair.vocabulary, weights, self.prompts),
            settings,
            seed=seed,
            work=work,
            examine=examine_trial or self.examine,
            progress=self.progress,
            may_diverge=examine_trial is not None,
        )

    @property
    def examiner(self) -> Examiner:
        """The examiner of checkpoints and variants: tokens per target call at draft length `DEV_GAMMA`, every call counted. This
        is the same for every `evaluate.gamma` and `evaluate.convention`, so that changing those does not train the draft
        again."""
        settings = EvaluateConfig(
            gamma=DEV_GAMMA,
            convention="user",
            draft_sampling=self.settings.draft_sampling,
            batch_tokens=self.settings.batch_tokens,
        )
        return Examiner(self.sampling, settings)

    @property
    def sampling(self) -> Sampling:
        """The deployment's sampling settings."""
        return Sampling.from_config(self.settings.sampling)

    def examine(self, draft: Any) -> AcceptanceSummary:
        """Acceptance rate and tokens per target call of `draft` on dev prompts, of which each process examines some. BrokenDraft
        if it cannot be examined."""
        summary = self._examination(draft)
        if isinstance(summary, str):
            raise BrokenDraft(summary)
        return summary

    def _examination(self, draft: Any) -> AcceptanceSummary | str:
        """The examination, which is the same in every process, and so is why a draft cannot be examined."""
        examiner, examined = self.examiner, self._as_draft(draft)

        def acceptance(numbers: list[int]) -> Sequence[Floats | str]:
            try:
                return self._batches.run(
                    lambda batch_tokens: examiner.in_batches(batch_tokens).acceptance_of(
                        examined, self.dev, set(numbers)
                    )
                )
            except BrokenDraft as error:
                return [str(error)] * len(numbers)

        acceptance_or_why = spread(examiner.groups(self.dev), acceptance)
        known = [own for own in acceptance_or_why if not isinstance(own, str)]
        return next((own for own in acceptance_or_why if isinstance(own, str)), None) or examiner.summary_of(
            self.dev, known
        )

    @cached_property
    def _batches(self) -> SmallerBatches:
        """The figures of checkpoints are compared with one another; where batches become smaller between two, they differ by
        rounding, which no choice between them may rest on anyway."""
        return SmallerBatches(
            "examination on dev prompts: tokens of a batch", self.settings.batch_tokens, self.progress.warn
        )

    def _sampler(self, draft: Any) -> SampleFunction:
        rounds = self.settings.rounds
        assert rounds is not None  # there are on-policy rounds

        @cache  # loaded when it is first needed: a finished round is only read
        def target() -> Any:
            return self._load("target", rounds.target_dtype)

        sampler = RoundSampler(
            target=target,
            sampling=self.sampling,
            settings=rounds,
            batch_tokens=self.settings.batch_tokens,
            vocabulary=self.pair.vocabulary,
            stop_tokens=self.pair.stop_tokens,
            progress=self.progress,
        )

        def write(prompts: Sequence[StoredCompletion], seed: int, out: Path) -> Sequence[StoredCompletion]:
            with complete(draft) as whole_draft:
                return sampler.sample(whole_draft.eval(), prompts, seed, out)

        return write

    def _as_draft(self, model: Any) -> LoadedDraft:
        """The draft as it is examined."""
        if not isinstance(model, TrainedHead):
            return PlainDraft(model, self.pair.vocabulary)
        return head_draft(model.head, self.pair.vocabulary, model.states)

    def _head(self, kind: Kind) -> TrainedHead:
        """UsageError for settings of a training that heads do not have."""
        settings = self.settings.distill
        try:
            settings.require_for(kind, is_divided=self.shard)
        except ValueError as error:
            raise UsageError(str(error)) from None
        target = self._load("target", self.pair.dtype("target")).requires_grad_(False)
        states, path = TargetStates(target), self.pair.path("draft")
        trainable_head(path)
        head: Any = load_head(kind, path, states, self.pair.vocabulary, torch.float32).model
        steps = settings.unrolled_steps or kind.unrolled or 1
        return TrainedHead(head.requires_grad_(True), states, steps)

    def draft(self) -> Any:
        """The base draft in fp32, with adapters where they are trained."""
        if (kind := kind_of(self.pair.path("draft"))).reads_states:
            return self._head(kind)
        lora, device = self.settings.distill.lora, choose_device(self.device)

        def load(place: torch.device) -> Any:
            # fp32 regardless of the serving dtype: small updates are lost in bf16 weights.
            model = load_model(self.pair.path("draft"), "float32", place, self.trust_remote_code)
            return model if lora is None else add_adapters(model, lora, self.settings.seed)

        return divided(lambda: load(torch.device("cpu")), device) if self.shard else load(device)

    def _load(self, role: str, dtype: str) -> Any:
        placed = self.target_device_map if role == "target" else None
        return load_model(self.pair.path(role), dtype, choose_device(self.device), self.trust_remote_code, placed)
