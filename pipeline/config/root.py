"""The whole configuration."""

import re
from collections.abc import Iterable

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.corpus import CorpusConfig
from pipeline.config.distill import DistillConfig
from pipeline.config.evaluate import EvaluateConfig
from pipeline.config.execution import ExecutionConfig
from pipeline.config.gate import GateConfig
from pipeline.config.generate import GenerateConfig, SamplingConfig
from pipeline.config.pair import PairConfig
from pipeline.config.plan import PlanConfig
from pipeline.config.promote import PromoteConfig, TrackingConfig
from pipeline.config.quantize import QuantizeConfig
from pipeline.config.watch import WatchConfig
from pipeline.drafts.kinds import KINDS, PLAIN, Kind, Trait
from pipeline.engines.heads import why_unserved


class Config(Section):
    """Everything a run needs, one section per stage."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9._-]+$", max_length=100, description="Name of this config; shown in runs and reports."
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of all random numbers.")
    device: str = Field(
        default="auto",
        description="`auto` (the first GPU if there is one, otherwise the CPU), `cpu`, `cuda`, or `cuda:1` for another GPU than "
        "the first.",
    )
    pair: PairConfig
    corpus: CorpusConfig
    sampling: SamplingConfig = SamplingConfig()
    generate: GenerateConfig = GenerateConfig()
    distill: DistillConfig = DistillConfig()
    quantize: QuantizeConfig = QuantizeConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    gate: GateConfig = GateConfig()
    promote: PromoteConfig = PromoteConfig()
    tracking: TrackingConfig = TrackingConfig()
    watch: WatchConfig = WatchConfig()
    execution: ExecutionConfig = ExecutionConfig()
    plan: PlanConfig = PlanConfig()

    @field_validator("device")
    @classmethod
    def _device_is_known(cls, device: str) -> str:
        if device == "mps":
            raise ValueError("device is mps, and Apple's GPUs have no float64, which decoding computes in; set cpu")
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", device):
            raise ValueError(f"device is {device!r}; the devices are auto, cpu, cuda and cuda:N, such as cuda:1")
        return device

    @model_validator(mode="after")
    def _sections_agree(self) -> "Config":
        self._require_examined()
        self._require_draft()
        if self.pair.target.is_served != self.generate.is_served:
            raise ValueError(
                "`pair.target.source: server` and `generate.engine: server` belong together: set both, or neither"
            )
        self._require_places()
        if self.generate.is_served:
            self._require_served()
        self._require_exportable()
        return self

    def _require_examined(self) -> None:
        """ValueError for draft lengths that the examination does not have, and prompts that the pair does not have."""
        if self.evaluate.gamma > self.evaluate.max_gamma:
            raise ValueError(
                f"evaluate.gamma is {self.evaluate.gamma} but only gamma 1 to evaluate.max_gamma = "
                f"{self.evaluate.max_gamma} are examined"
            )
        if self.evaluate.convention == "vllm" and self.generate.lookahead < self.evaluate.max_gamma - 1:
            raise ValueError(
                f"convention vllm drafts past the end of a completion: generate.lookahead must be at least "
                f"evaluate.max_gamma - 1 = {self.evaluate.max_gamma - 1}, not {self.generate.lookahead}"
            )
        if any(source.is_reference for source in self.corpus.sources) and not self.pair.is_reference:
            raise ValueError("corpus.sources has `reference`, whose prompts exist only with the reference pair")

    def _require_draft(self) -> None:
        """ValueError for keys that the kind of draft cannot do with, as far as it is known without the draft's files."""
        if (head := self.pair.draft.head) is not None:
            self.require_for(KINDS[head.kind], head.longest, head.traits)
        elif self.pair.is_reference or self.pair.draft.is_of_target:
            self.require_for(PLAIN, None)

    def _require_places(self) -> None:
        """ValueError for processes or workers that would not have the devices that are asked for."""
        if self.pair.target.device_map is not None and self.execution.local > 1:
            raise ValueError(
                f"execution.local is {self.execution.local}, and pair.target.device_map would place the target of each process "
                "on the same devices; set execution.local to 1"
            )
        if self.pair.target.device_map is not None and self.distill.on_policy.rounds and self.distill.processes != 1:
            raise ValueError(
                "distill.on_policy.rounds load the target in each process of the training, and pair.target.device_map would "
                "place them on the same devices; set distill.processes to 1"
            )
        if self.execution.ray is not None and self.device.startswith("cuda"):
            if self.device != "cuda":
                raise ValueError(
                    f"device is {self.device}, and Ray chooses the GPUs of its workers; set device to cuda"
                )
            if not self.execution.ray.gpus:
                raise ValueError("device is cuda, and Ray gives its workers no GPU; set execution.ray.gpus to 1")

    def _require_served(self) -> None:
        """ValueError for what needs a target that is loaded here, or more than its servers give."""
        if self.distill.on_policy.rounds:
            raise ValueError(
                "distill.on_policy.rounds: the target has to be loaded for on-policy rounds, and it is on servers "
                "(generate.engine: server); set it to 0"
            )
        if self.generate.stored_tokens > self.generate.server.logprobs:
            raise ValueError(
                f"generate.distribution_tokens is {self.generate.stored_tokens}, more than generate.server.logprobs = "
                f"{self.generate.server.logprobs}"
            )
        if self.generate.server.api == "llama.cpp" and self.distill.prompt_weight:
            raise ValueError(
                "distill.prompt_weight: llama-server scores no prompts, but one token a request; set it to 0"
            )
        if any(source.use_answers for source in self.corpus.sources):
            self._require_known_log_p()

    def _require_exportable(self) -> None:
        """ValueError for settings that the exported engine ignores, and profiles of variants that are not made."""
        if self.promote.export is not None and self.promote.export.engine == "vllm" and self.sampling.min_p:
            raise ValueError(
                f"sampling.min_p is {self.sampling.min_p:g}, and promote.export.engine is vllm, which does not apply min_p while "
                "it speculates (vLLM issue 42744); set sampling.min_p to 0"
            )
        if unmade := [
            variant for variant in self.gate.profile if variant not in ("unquantized", *self.quantize.loadable)
        ]:
            raise ValueError(
                f"gate.profile.{unmade[0]}: this variant is not made (quantize.variants, and what {self.quantize.engine} loads)"
            )

    def require_for(self, kind: Kind, longest: int | None, traits: Iterable[Trait] = ()) -> None:
        """ValueError for keys that a draft of this kind cannot do with: found before anything is paid. `longest`: the most tokens
        that it proposes in a round; `traits`: what of it not every engine computes."""
        self.distill.require_for(kind)
        self._require_exported(kind, traits)
        if not kind.reads_states:
            return
        if longest is not None and self.evaluate.gamma > longest:
            raise ValueError(
                f"evaluate.gamma is {self.evaluate.gamma}, and the heads propose at most {longest} tokens; set it to {longest} "
                "or fewer"
            )
        if self.pair.target.is_served:
            raise ValueError(
                "pair.draft: a head reads hidden states of its target, which servers do not give; load the target here "
                "(pair.target.source: a directory, or a model of the hub)"
            )

    def _require_exported(self, kind: Kind, traits: Iterable[Trait]) -> None:
        """ValueError for a draft that the engine of `promote.export` does not serve."""
        export = self.promote.export
        if export is not None and (reason := why_unserved(export.engine, kind.name, traits)) is not None:
            raise ValueError(f"promote.export.engine: {reason}, or leave promote.export out")

    def _require_known_log_p(self) -> None:
        """Recorded answers have no log p; a scoring by servers gives that of the likeliest tokens at temperature 1."""
        sampling, listed = self.sampling, self.generate.server.logprobs
        plain = sampling.temperature == 0 or sampling == SamplingConfig()
        if not plain and not 0 < sampling.top_k <= listed:
            raise ValueError(
                "corpus.sources.N.use_answers with a target on servers needs `sampling` at temperature 0, at temperature 1 "
                f"without cut-offs, or with a top_k up to generate.server.logprobs = {listed}: log p at other settings needs the "
                "whole vocabulary; load the target here (generate.engine: local), or set use_answers to false"
            )
