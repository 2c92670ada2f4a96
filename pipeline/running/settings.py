"""What each stage is asked: exactly what enters the key of its artifacts. Torch-free.

A stage reads its settings and its inputs, whose digests are in the key too, and nothing else that decides what it writes. What it
uses beside them cannot decide that: `context.Resources`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from pydantic import BaseModel

from pipeline.config.corpus import CorpusConfig
from pipeline.config.evaluate import ConventionName, Drafting, EvaluateConfig, SpeedConfig
from pipeline.config.gate import GateConfig
from pipeline.config.generate import DistributionSelection, SamplingConfig
from pipeline.config.pair import Dtype, HeadShape, NumberFormat, ReferenceRecipe
from pipeline.config.promote import PromoteConfig
from pipeline.config.quantize import QuantizedVariant, RecoveryConfig
from pipeline.config.segments import SegmentsConfig
from pipeline.config.server import Api
from pipeline.config.tasks import Examination, GenerateTask, PromptsTask, QuantizeTask
from pipeline.distillation.settings import TrainingSettings
from pipeline.judgement.schema import ChampionVersion
from pipeline.models.rope_choice import Factors
from pipeline.speculation.settings import GREEDY, Sampling

TRANSPLANT = 2  # how `drafts/transplant.py` makes rows: raised with a change to it, so that they are made again


@dataclass(frozen=True, kw_only=True)
class ServerNeeds:
    """What the servers of a target are asked for, and checked to give."""

    api: Api
    logprobs: int  # listed for each token
    samplings: tuple[SamplingConfig, ...]  # of the completions; the deployment's first
    check_defaults: bool  # whether the servers' sampling defaults must be the deployment's


@dataclass(frozen=True, kw_only=True)
class PairSettings:
    """The dtype of each model, and how the ones that are made here are made."""

    reference: ReferenceRecipe | None = None  # None: the models are the user's own
    seed: int | None = None  # of the reference pair's training
    target: NumberFormat
    draft: Dtype
    target_before: Dtype | None = None
    revisions: Mapping[str, str | None]  # by role, as declared: a rule of the gate compares the target's
    layers: int | tuple[int, ...] | None = None  # of the target, of which the draft is made
    head: HeadShape | None = None  # that is made for the target
    server: ServerNeeds | None = None  # None: the target is loaded here
    rope_factors: Factors | None = None  # of models with two sets; None: by their contexts
    vocabulary: Literal["own", "target"] = (
        "own"  # target: a draft with another tokenizer gets rows for the target's tokens
    )
    tokens: Mapping[str, str] = field(default_factory=dict)  # of the target, with the draft's text for them
    transplant: int | None = None  # TRANSPLANT, where the vocabulary is the target's

    @property
    def roles(self) -> tuple[str, ...]:
        return ("target", "draft", *(["target_before"] if self.target_before else []))

    def dtype(self, role: str) -> str:
        """The dtype, or of a served target the number format, of a role's model."""
        return str(getattr(self, role))


@dataclass(frozen=True, kw_only=True)
class CorpusSettings:
    """How prompts are read, cleaned and split."""

    corpus: CorpusConfig  # without the paths of its files, which are inputs


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """What is generated and stored. Lengths are in tokens."""

    task: GenerateTask | PromptsTask
    sampling: SamplingConfig  # of the deployment
    examination_samplings: tuple[SamplingConfig, ...]
    train_temperatures: tuple[float, ...]
    max_new_tokens: int
    lookahead: int
    distribution_tokens: int
    distribution_selection: DistributionSelection
    batch: int | None  # completions decoded at once; None: as the servers choose
    shard: int
    dtype: NumberFormat  # of the target
    seed: int
    api: Api | None  # of the servers; None: the target is loaded here
    logprobs: int | None  # asked of the servers for each token
    # How later turns of a chat are rendered: as the corpus rendered the first.
    chat_template: bool | None
    chat_template_arguments: Mapping[str, Any]
    prompt_limit: int
    segments: SegmentsConfig


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """How the draft is trained."""

    training: TrainingSettings


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings:
    """The variant, and when and how it is trained further."""

    task: QuantizeTask
    training: TrainingSettings
    head: bool  # whether the output head is quantized
    recovery: RecoveryConfig


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """How a draft is examined, and on which completions."""

    task: Examination
    evaluate: EvaluateConfig
    sampling: SamplingConfig  # of the deployment
    dtype: Dtype  # of the draft

    @property
    def deployed(self) -> Sampling:
        """The deployment's sampling settings, as the decoder reads them."""
        return Sampling.from_config(self.sampling)


@dataclass(frozen=True, kw_only=True)
class SpeedSettings:
    """How step times are measured."""

    speed: SpeedConfig
    confidence: float  # which needs so many turns
    max_gamma: int
    sampling: SamplingConfig  # of the deployment
    draft_sampling: Drafting
    target: NumberFormat
    dtype: Dtype  # of the draft

    @property
    def deployed(self) -> Sampling:
        """The deployed settings, as in `EvaluateSettings`."""
        return Sampling.from_config(self.sampling)

    @property
    def drafting(self) -> Sampling:
        """What is applied to the draft's logits."""
        return GREEDY if self.draft_sampling == "greedy" else self.deployed


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """The rules, and the settings of the figures that they are applied to."""

    rules: GateConfig  # without the paths of its profiles, which are inputs
    variants: tuple[QuantizedVariant, ...]
    gamma: int
    max_gamma: int
    convention: ConventionName
    confidence: float
    sampling: SamplingConfig  # of the deployment
    seed: int
    champion: ChampionVersion | None  # whose weights are an input; None: the base draft is compared


@dataclass(frozen=True, kw_only=True)
class PromoteSettings:
    """How the draft is registered. `promote` writes nothing that is reused, so this key names no artifact."""

    name: str  # of the config
    promote: PromoteConfig
    max_examination_days: int | None
    served: tuple[int, int]  # batch and context for which memory is stated
    champion: ChampionVersion | None  # that the candidate was compared with


Settings = (
    PairSettings
    | CorpusSettings
    | GenerateSettings
    | DistillSettings
    | QuantizeSettings
    | EvaluateSettings
    | SpeedSettings
    | GateSettings
    | PromoteSettings
)


def key_json(value: Any) -> Any:
    """Settings as JSON, every field of them: what enters a key, and what a manifest shows."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value):
        return {field.name: key_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: key_json(part) for name, part in value.items()}
    return [key_json(part) for part in value] if isinstance(value, tuple | list) else value
