"""config.json of a draft: its kind, and of a head on the target's hidden states what its files must hold. Torch-free.

Three programs write such files, and engines read all of them: speculators (`speculators_model_type`, the layer in
`transformer_layer_config`), EAGLE's own (`LlamaForCausalLMEagle3`, the layer's sizes at the top) and Medusa's. Where a file does
not state what engines and trainers fill in differently, it is refused: a head that is computed in another way than it was trained
loses acceptance, and nothing else shows it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from pipeline.drafts.kinds import EAGLE3, MEDUSA, PLAIN, Kind, KindName, Trait
from pipeline.errors import UsageError
from pipeline.models.model_json import CONFIG, MOST_BYTES, ModelConfig, Size
from pipeline.models.names import find_model
from pipeline.store.parsing import Format, Text

_LayerId = Annotated[int, Field(strict=True, ge=0, le=10_000)]
_EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
_LAYER_TYPES = ("llama", "qwen3")  # of the layers of EAGLE-3 heads, in speculators and in vLLM
# Other drafts that read hidden states, by architecture (not the vision models Eagle 2 and 2.5) and by type.
_OTHER_CLASSES = re.compile(r"Eagle3?(?=[A-Z]|$)|Medusa|DFlash|DSpark|MTP|MLPSpeculator")
_OTHER_TYPES = re.compile(r"eagle3?|medusa|dflash|dspark|mtp|.*_mtp|mlp_speculator")


class _EagleSection(ModelConfig):
    eagle_aux_hidden_state_layer_ids: list[_LayerId] | None = None
    use_aux_hidden_state: bool | None = None
    norm_before_fc: bool | None = None


class HeadConfig(ModelConfig):
    """The fields of all three forms."""

    speculators_model_type: Text | None = None
    transformer_layer_config: dict[Text, Any] | None = None
    eagle_config: _EagleSection | None = None
    eagle_aux_hidden_state_layer_ids: list[_LayerId] | None = None
    draft_vocab_size: Size | None = None
    target_hidden_size: Size | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    parallel_drafting: bool | None = None
    num_heads: Size | None = None
    medusa_num_heads: Size | None = None
    medusa_num_layers: Size | None = None
    medusa_fc_bias: bool | None = None
    original_lm_head: bool | None = None
    truncated_vocab_size: Size | None = None


_FORMAT = Format(
    name="config of a draft",
    content=HeadConfig,
    remedy="correct it, or take it again from where the draft was published",
    foreign=True,
    error=UsageError,
    most_bytes=MOST_BYTES,
)


@dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """What an EAGLE-3 head is, but for its weights."""

    layer: dict[str, Any]  # of its decoder layers, as transformers' config of `model_type` takes it
    layer_ids: tuple[int, ...] | None  # of the target's hidden states; None: not stated, then as engines do
    draft_vocabulary: int
    vocabulary: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    kind: ClassVar[Kind] = EAGLE3
    longest: ClassVar[int | None] = None  # tokens that it proposes in a round; None: no limit
    why_not_trained: ClassVar[str] = ""

    def traits(self, target_layers: int) -> tuple[Trait, ...]:
        """What of the head not every engine computes. `target_layers`: how many the target has."""
        ids = self.layer_ids or ()
        has: dict[Trait, bool] = {
            "norm_before_residual": self.norm_before_residual,
            "qk_norm": self.layer["model_type"] == "qwen3",
            "windows": "sliding_attention" in (self.layer.get("layer_types") or ()),
            "biases": bool(self.layer.get("attention_bias") or self.layer.get("mlp_bias")),
            "activation": self.layer.get("hidden_act", "silu") != "silu",
            "embedding": 0 in ids,
            "last_layer": target_layers in ids,
            "one_state": len(ids) == 1,
            "part_of_vocabulary": self.draft_vocabulary < self.vocabulary,
        }
        return tuple(trait for trait, is_so in has.items() if is_so)

    @property
    def summary(self) -> str:
        """For people: layers, hidden states, tokens."""
        count, kind = self.layer.get("num_hidden_layers"), self.layer["model_type"]
        layers = f"{kind} layers" if count is None else f"{count} {kind} layer{'s' if count != 1 else ''}"
        reads = (
            "does not state which hidden states it reads (engines then take an early, a middle and a late one)"
            if self.layer_ids is None
            else f"reads hidden states {', '.join(map(str, self.layer_ids))} of the target"
        )
        some = f"{self.draft_vocabulary:,} of " if self.draft_vocabulary < self.vocabulary else ""
        return f"{layers}, {reads}, drafts {some}{self.vocabulary:,} tokens"


@dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """What Medusa heads are, but for their weights."""

    heads: int
    layers: int  # residual blocks of each
    hidden: int
    vocabulary: int
    kept: int  # tokens that the heads know: all of the vocabulary, or those of a `token_map`
    bias: bool
    one_output_layer: bool  # for all heads
    kind: ClassVar[Kind] = MEDUSA

    @property
    def longest(self) -> int | None:
        """Tokens that the heads propose in a round."""
        return self.heads

    @property
    def why_not_trained(self) -> str:
        """What keeps the heads from being trained further; empty where nothing does."""
        if self.kept < self.vocabulary:
            return "a part of the target's vocabulary"
        return "one output layer for all" if self.one_output_layer else ""

    def traits(self, target_layers: int) -> tuple[Trait, ...]:
        """What of the heads not every engine computes."""
        return ("part_of_vocabulary",) if self.kept < self.vocabulary else ()

    @property
    def summary(self) -> str:
        """For people: places, blocks, tokens."""
        blocks = f"{self.layers} block{'s' if self.layers != 1 else ''}"
        return f"{self.heads} places of {blocks}, {self.vocabulary:,} tokens; engines draft greedily with it"


def kind_of(directory: Path) -> Kind:
    """The kind of the draft in a model directory. UsageError for a kind that cannot be examined here, by its name."""
    kind = _kind_in(_FORMAT.read(directory / CONFIG))
    if isinstance(kind, str):
        raise UsageError(
            f"{directory}: a draft of the kind {kind} cannot be examined exactly yet: its prediction was not compared with "
            "the counters of an engine; kinds that can: a plain model, EAGLE-3, Medusa"
        )
    return kind


def _kind_in(config: HeadConfig) -> Kind | str:
    """The name, for a kind that is not here."""
    named = [name for name in (config.speculators_model_type, config.model_type, *(config.architectures or ())) if name]
    if config.speculators_model_type == "eagle3" or any(name in _EAGLE3 for name in named):
        return "P-EAGLE" if config.parallel_drafting else EAGLE3
    if config.model_type == "medusa" or "MedusaModel" in named or config.medusa_num_heads is not None:
        return MEDUSA
    is_other = (name for name in named if _OTHER_CLASSES.search(name) or _OTHER_TYPES.fullmatch(name))
    return config.speculators_model_type or next(is_other, PLAIN)


def require_target(directory: Path, where: str) -> None:
    """UsageError, which begins with `where`, for a head in the place of a target."""
    try:
        kind = _kind_in(_FORMAT.read(directory / CONFIG))
    except UsageError:  # of a target, other keys may mean something else; whoever loads it reports what is wrong
        return
    if kind != PLAIN:
        raise UsageError(
            f"{where}: this is a draft (kind {kind if isinstance(kind, str) else kind.name}), not a target, which is a whole "
            "language model; swap target and draft if they are in each other's place"
        )


def find_target(name: str) -> Path:
    """The directory of the target that is called `name` on the command line, fetched if need be. UsageError for a draft."""
    directory = find_model(name, "target")
    require_target(directory, f"--target {name}")
    return directory


def head_of(directory: Path) -> Eagle3Config | MedusaConfig:
    """What the head in a directory is, by its config.json alone. UsageError for a head that no engine computes so."""
    return _READERS[kind_of(directory).name](directory)


def trainable_head(directory: Path) -> Eagle3Config | MedusaConfig | None:
    """None for a plain draft. UsageError for a head that is examined here, and not trained further. Its config.json alone is
    read."""
    if not kind_of(directory).reads_states:
        return None
    head = head_of(directory)
    if head.why_not_trained:
        raise UsageError(
            f"{directory}: Medusa heads with {head.why_not_trained} are judged here (`understudy probe`), not trained further; "
            f"take others, or begin with untrained ones (pair.draft: {{source: target, head: {{kind: {head.kind.name}}}}})"
        )
    return head


def read_eagle3(directory: Path) -> Eagle3Config:
    """UsageError for what no engine computes, or engines and trainers compute differently."""
    config, file = _FORMAT.read(directory / CONFIG), directory / CONFIG
    section = config.eagle_config or _EagleSection()
    stored = config.speculators_model_type is not None
    layer = config.transformer_layer_config if stored else config.model_dump(exclude_unset=True)
    if layer is None:
        raise UsageError(f"{file}: transformer_layer_config is missing, which holds the sizes of the head's layers")
    if layer.get("model_type") not in _LAYER_TYPES:
        raise UsageError(
            f"{file}: layers of the type {layer.get('model_type')!r} are not those of an EAGLE-3 head that engines serve; "
            f"they serve {' and '.join(_LAYER_TYPES)}"
        )
    if section.use_aux_hidden_state is False:
        raise UsageError(
            f"{file}: use_aux_hidden_state is false: this is a head of EAGLE-1 or 2, which is not supported"
        )
    if stored and config.norm_before_residual is None:
        raise UsageError(
            f"{file}: norm_before_residual is missing; speculators takes it as false and vLLM as true, so state the one that the "
            "head was trained with"
        )
    ids = config.eagle_aux_hidden_state_layer_ids or section.eagle_aux_hidden_state_layer_ids or None
    if ids is not None and ids != sorted(set(ids)):
        raise UsageError(
            f"{file}: eagle_aux_hidden_state_layer_ids is {ids}; engines read these layers in ascending order and once each, so "
            "a head that was trained in another order would read other states than in its training"
        )
    before_fc = section.norm_before_fc if section.norm_before_fc is not None else config.norm_before_fc
    if before_fc and config.fc_norm:
        raise UsageError(
            f"{file}: norm_before_fc and fc_norm exclude each other; set the one that the head was trained with"
        )
    hidden, vocabulary = layer.get("hidden_size"), layer.get("vocab_size")
    if not isinstance(hidden, int) or not isinstance(vocabulary, int):
        raise UsageError(f"{file}: hidden_size or vocab_size of the head's layers is missing")
    return Eagle3Config(
        layer=layer,
        layer_ids=None if ids is None else tuple(ids),
        draft_vocabulary=config.draft_vocab_size or vocabulary,
        vocabulary=vocabulary,
        norm_before_residual=bool(config.norm_before_residual),
        norm_before_fc=bool(before_fc),
        fc_norm=bool(config.fc_norm),
        norm_output=bool(config.norm_output),
    )


def read_medusa(directory: Path) -> MedusaConfig:
    """UsageError for sizes that are missing."""
    config, file = _FORMAT.read(directory / CONFIG), directory / CONFIG
    heads = config.num_heads or config.medusa_num_heads
    if heads is None or config.hidden_size is None or config.vocab_size is None:
        missing = "num_heads" if heads is None else "hidden_size" if config.hidden_size is None else "vocab_size"
        raise UsageError(f"{file}: {missing} is missing, which engines need of Medusa heads; add it")
    return MedusaConfig(
        heads=heads,
        layers=config.medusa_num_layers or config.num_hidden_layers or 1,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        kept=config.truncated_vocab_size or config.vocab_size,
        bias=bool(config.medusa_fc_bias),
        one_output_layer=bool(config.original_lm_head),
    )


_READERS: dict[KindName, Callable[[Path], Eagle3Config | MedusaConfig]] = {
    EAGLE3.name: read_eagle3,
    MEDUSA.name: read_medusa,
}
