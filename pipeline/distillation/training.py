"""One training of the base draft under a config: offline on what the target said, then on-policy rounds, adapters merged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.distill import DistillConfig
from pipeline.config.root import Config
from pipeline.distillation.adapters import add_adapters, merge_adapters
from pipeline.distillation.on_policy import Write, run_rounds, write_round
from pipeline.distillation.trainer import distill
from pipeline.examination.examiner import AcceptanceSummary, Examiner
from pipeline.generation.completion_store import StoredCompletion
from pipeline.models.loading import choose_device, load_model, load_tokenizer
from pipeline.models.stored_pair import Pair
from pipeline.progress import Progress
from pipeline.speculation.sampling import Sampling

Log = list[dict[str, float]]  # entries of step with loss, or with dev_acceptance and dev_omega


@dataclass(frozen=True)
class Training:
    """What every training of a run shares."""

    config: Config
    pair: Pair
    dev: Sequence[StoredCompletion]  # at the deployment's sampling
    progress: Progress

    def run(self, rows: Sequence[StoredCompletion], work: Path) -> tuple[Any, Log]:
        """A draft trained on `rows` from the base, as it was when dev prompts said it was best, and its log. Checkpoints go to
        `work`; a training that was killed goes on from them, one that was finished is only read."""
        settings, seed = self.config.distill, self.config.seed
        # In fp32 whatever the draft is served in: small updates vanish in bf16 weights.
        model = self._load("draft", "float32")
        if settings.lora is not None:
            model = add_adapters(model, settings.lora, seed)

        def learn(some: Sequence[StoredCompletion], how: DistillConfig, seed: int, place: Path) -> Log:
            return self.learn(model, some, how, seed, place)

        log = learn(rows, settings, seed, work / "offline")
        if settings.on_policy.rounds:
            for phase in run_rounds(rows, settings, seed, work, self._writer(model), learn):
                done = max(entry["step"] for entry in log)
                log += [entry | {"step": done + entry["step"]} for entry in phase]
        return (model if settings.lora is None else merge_adapters(model)), log

    def learn(self, model: Any, rows: Sequence[StoredCompletion], how: DistillConfig, seed: int, work: Path) -> Log:
        """One phase: `model` is trained in place on `rows`, and left as it was when dev prompts said it was best."""
        tokenizer = load_tokenizer(self.pair.tokenizer, self.config.pair.trust_remote_code)
        vocabulary = self.pair.vocabulary
        return distill(model, tokenizer, rows, how, seed, vocabulary, work, self.examine, self.progress)

    @property
    def examiner(self) -> Examiner:
        """Calls are counted as for a user whatever the convention: nothing is stored past the end of dev completions."""
        return Examiner(self.sampling, self.config.evaluate, self.pair.vocabulary, count_as="user")

    @property
    def sampling(self) -> Sampling:
        """The deployment's."""
        return Sampling.from_config(self.config.sampling)

    def examine(self, draft: Any) -> AcceptanceSummary:
        """On dev prompts."""
        return self.examiner.summary(draft, self.dev)

    def _writer(self, draft: Any) -> Write:
        target = self._load("target", self.pair.dtype("target"))

        def write(prompts: Sequence[StoredCompletion], seed: int, out: Path) -> list[StoredCompletion]:
            return write_round(
                draft.eval(),
                target,
                prompts,
                self.sampling,
                self.config.generate,
                self.config.evaluate.batch_tokens,
                seed,
                self.pair.vocabulary,
                self.pair.stop_tokens,
                out,
                self.progress,
            )

        return write

    def _load(self, role: str, dtype: str) -> Any:
        device = choose_device(self.config.device)
        return load_model(self.pair.path(role), dtype, device, self.config.pair.trust_remote_code)


def best(log: Log) -> dict[str, float]:
    """The entry of the draft that is kept: the first of the best by tokens per target call."""
    return max((entry for entry in log if "dev_omega" in entry), key=lambda entry: entry["dev_omega"])
