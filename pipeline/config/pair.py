"""The pair: target, base draft, and the recipe of the reference pair."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.config.base import Section
from pipeline.drafts.kinds import HeadKindName, Trait

REFERENCE, TARGET, SERVER = "reference", "target", "server"

Dtype = Literal["float32", "bfloat16", "float16"]
NumberFormat = Literal["float32", "bfloat16", "float16", "fp8", "int8", "int4", "nvfp4", "mxfp4"]
_LOADED = ("float32", "bfloat16", "float16")
DeviceMap = Literal["auto"] | Mapping[str, Annotated[int, Field(strict=True, ge=0)] | Literal["cpu", "disk"]]


class _Source(Section):
    """Where a model comes from, and which revision of it."""

    source: str = Field(
        min_length=1,
        description="A hub id (`org/name`), a local directory (starting with `.`, `/` or `~`), or `reference`.",
    )
    revision: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{40}$",
        description="The commit of a hub model, 40 hex digits. Required for a hub id, because a branch can change.",
    )

    @property
    def is_local(self) -> bool:
        return self.source.startswith((".", "/", "~"))

    @property
    def is_hub(self) -> bool:
        return not self.is_local and self.source not in (REFERENCE, TARGET, SERVER)

    @model_validator(mode="after")
    def _hub_needs_revision(self) -> "_Source":
        if self.is_hub and self.revision is None:
            raise ValueError(
                f"'{self.source}' is a hub id and needs `revision`, the commit's 40 hex digits "
                "(a local directory starts with '.', '/' or '~')"
            )
        return self


class ModelSource(_Source):
    """Where a model comes from that is loaded here."""

    dtype: Dtype = Field(default="float32", description="The dtype in which the model is loaded.")


class TargetSource(_Source):
    """Where the target comes from: a model that is loaded here, or the servers that run it."""

    source: str = Field(
        min_length=1,
        description="A hub id (`org/name`), a local directory (starting with `.`, `/` or `~`), `reference`, or `server`: the "
        "servers in `generate.server` run it, and it is not loaded here.",
    )
    tokenizer: str | None = Field(
        default=None,
        description="With source `server`: a local directory or `org/name@revision` with the target's tokenizer. If it has the "
        "target's config.json and generation_config.json, they are used too; weights are not needed.",
    )
    revision: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._/@-]{1,100}$",
        description="The commit of a hub model, 40 hex digits; required for a hub id, because a branch can change. With source "
        "`server`: what you call the weights that are served, since no server reports it.",
    )
    dtype: NumberFormat = Field(
        default="float32",
        description="The dtype in which the model is loaded; with source `server`, the number format in which it is served.",
    )

    device_map: DeviceMap | None = Field(
        default=None,
        description="Where its layers are placed. null: all on `device`. auto: over all GPUs, and what they cannot hold in host "
        "memory and on disk, which is slow. Or a GPU's number, `cpu` or `disk` for each module, by name. For target_before too.",
    )

    @property
    def is_served(self) -> bool:
        return self.source == SERVER

    @model_validator(mode="after")
    def _is_loaded_or_served(self) -> "TargetSource":
        if (
            self.tokenizer is not None
            and "@" in self.tokenizer
            and not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", self.tokenizer)
        ):
            raise ValueError(
                f"tokenizer is {self.tokenizer!r}; write org/name@ and the commit's 40 hex digits, or a directory"
            )
        if self.is_served != (self.tokenizer is not None):
            raise ValueError("`source: server` and `tokenizer` belong together: set both, or neither")
        if self.is_served and self.device_map is not None:
            raise ValueError("device_map places a target that is loaded here, and it is on servers; remove it")
        if not self.is_served and self.dtype not in _LOADED:
            raise ValueError(f"dtype is {self.dtype}; a model is loaded as {', '.join(_LOADED)}")
        if not self.is_served and self.revision is not None and not re.fullmatch("[0-9a-f]{40}", self.revision):
            raise ValueError(f"revision is {self.revision!r}; a hub model needs the commit's 40 hex digits")
        return self


_OF_ONE_KIND: Mapping[str, HeadKindName] = {"layer_ids": "eagle3", "layer": "eagle3", "places": "medusa"}


class HeadShape(Section):
    """An untrained head for the target (docs/drafts.md)."""

    kind: HeadKindName = Field(
        description="eagle3: a decoder layer; medusa: a small network for each place of the block."
    )
    layer_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None,
        description="For eagle3: the target's hidden states that it reads, by the number of the layer that they enter, "
        "ascending; null: an early, a middle and a late one.",
    )
    layer: Literal["eagle", "speculators"] = Field(
        default="eagle",
        description="For eagle3: eagle is the layer of EAGLE-3's authors, which every engine with EAGLE-3 computes; speculators "
        "has the normed states in its residual stream, and of a Qwen3 target q_norm and k_norm, which vLLM computes alone.",
    )
    places: int = Field(
        default=5, ge=1, le=16, description="For medusa: tokens of the longest block, one network each."
    )

    @property
    def traits(self) -> tuple[Trait, ...]:
        """What of it not every engine computes, as far as the config has it."""
        of_layer: tuple[Trait, ...] = ("norm_before_residual",) if self.layer == "speculators" else ()
        if _OF_ONE_KIND["layer"] != self.kind:
            return ()
        ids = self.layer_ids or (1, 2, 3)  # three by default
        of_states: dict[Trait, bool] = {"embedding": ids[0] == 0, "one_state": len(ids) == 1}
        return (*of_layer, *(trait for trait, is_so in of_states.items() if is_so))

    @property
    def longest(self) -> int | None:
        """The most tokens that it proposes in a round; None: no limit."""
        return self.places if _OF_ONE_KIND["places"] == self.kind else None

    @model_validator(mode="after")
    def _keys_are_of_the_kind(self) -> "HeadShape":
        for key, kind in _OF_ONE_KIND.items():
            if kind != self.kind and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} is of {kind}, and kind is {self.kind}: leave it out")
        return self

    @model_validator(mode="after")
    def _layers_are_in_order(self) -> "HeadShape":
        if self.layer_ids is not None and (not self.layer_ids or list(self.layer_ids) != sorted(set(self.layer_ids))):
            raise ValueError(
                f"layer_ids is {list(self.layer_ids)}; engines read them ascending and once each: give them so, or leave it out"
            )
        return self


class DraftSource(ModelSource):
    """Where the base draft comes from; `target` makes it from some of the target's layers, or an untrained head on its hidden
    states."""

    source: str = Field(
        min_length=1,
        description="A hub id (`org/name`), a local directory (starting with `.`, `/` or `~`), `reference`, or `target`: some of "
        "the target's `layers`, or a `head` on its hidden states.",
    )
    layers: int | tuple[int, ...] | None = Field(
        default=None,
        description="With source `target`: the number of layers to keep (the first, the last, others evenly spaced), or a list "
        "of layer numbers from 0.",
    )

    head: HeadShape | None = Field(
        default=None,
        description="With source `target`: an untrained head on the target's hidden states, instead of layers.",
    )

    vocabulary: Literal["own", "target"] = Field(
        default="own",
        description="own: the draft's tokenizer must be the target's. target: a draft with another tokenizer gets the target's, "
        "with new rows in its embedding and output layer, and must be trained afterwards (docs/drafts.md).",
    )
    tokens: Mapping[str, str] = Field(
        default={},
        description="With vocabulary `target`: for special tokens of the target, by name, the text of the draft's that means the "
        "same, such as `<|im_end|>: </s>`.",
    )

    @model_validator(mode="after")
    def _new_rows_are_of_another_vocabulary(self) -> "DraftSource":
        if self.vocabulary == "target" and self.source in (TARGET, REFERENCE):
            raise ValueError(
                f"a draft of source {self.source} has the target's vocabulary already; leave `vocabulary` out"
            )
        if self.tokens and self.vocabulary != "target":
            raise ValueError("`tokens` needs `vocabulary: target`; without it the draft's tokenizer is the target's")
        if empty := [token for token, text in self.tokens.items() if not text]:
            raise ValueError(f"tokens.{empty[0]} is empty; write the draft's text for it, or remove it")
        return self

    @model_validator(mode="after")
    def _made_of_the_target(self) -> "DraftSource":
        if self.layers is not None and self.head is not None:
            raise ValueError("`layers` and `head` are two ways to make a draft of the target; set one of them")
        if (self.source == TARGET) != (self.layers is not None or self.head is not None):
            raise ValueError(
                "`source: target` needs `layers` (a draft of some of its layers) or `head` (a head on its hidden states), and "
                "they need `source: target`"
            )
        return self

    @property
    def is_of_target(self) -> bool:
        return self.source == TARGET


class ReferenceShape(Section):
    """Size and training of one model of the reference pair (a Llama-shaped decoder)."""

    hidden: int = Field(gt=0, le=16_384, multiple_of=32, description="Width of the residual stream.")
    layers: int = Field(gt=0, le=256, description="Decoder layers.")
    heads: int = Field(gt=0, description="Attention heads.")
    intermediate: int = Field(gt=0, le=16_384, multiple_of=32, description="Width of the MLP.")
    steps: int = Field(gt=0, description="Training steps from random weights.")
    learning_rate: float = Field(gt=0, description="Peak learning rate (Muon and AdamW, warm-up then cosine).")

    @model_validator(mode="after")
    def _heads_divide(self) -> "ReferenceShape":
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden is {self.hidden}, which {self.heads} heads of even width do not divide")
        return self


class TargetShape(ReferenceShape):
    """The target: trained on the library's own modules."""

    hidden: int = Field(default=192, gt=0, le=16_384, multiple_of=32, description="Width of the residual stream.")
    layers: int = Field(default=6, gt=0, le=256, description="Decoder layers.")
    heads: int = Field(default=3, gt=0, description="Attention heads.")
    intermediate: int = Field(default=512, gt=0, le=16_384, multiple_of=32, description="Width of the MLP.")
    steps: int = Field(default=360, gt=0, description="Training steps from random weights.")
    learning_rate: float = Field(
        default=6e-3, gt=0, description="Peak learning rate (Muon and AdamW, warm-up then cosine)."
    )


class DraftShape(ReferenceShape):
    """The base draft: at most a sixth of the target's parameters, trained by itself on the same text."""

    hidden: int = Field(default=128, gt=0, le=16_384, multiple_of=32, description="Width of the residual stream.")
    layers: int = Field(default=1, gt=0, le=256, description="Decoder layers.")
    heads: int = Field(default=2, gt=0, description="Attention heads.")
    intermediate: int = Field(default=256, gt=0, le=16_384, multiple_of=32, description="Width of the MLP.")
    steps: int = Field(default=250, gt=0, description="Training steps from random weights.")
    learning_rate: float = Field(
        default=8e-3, gt=0, description="Peak learning rate (Muon and AdamW, warm-up then cosine)."
    )


class ReferenceRecipe(Section):
    """How the reference pair is made from the text of the running Python's standard library."""

    vocabulary: int = Field(default=1024, ge=512, le=65_536, description="Vocabulary size of the byte-level BPE.")
    context: int = Field(
        default=128,
        ge=64,
        le=8_192,
        description="Tokens of a training window. The models' context limit is twice that.",
    )
    batch: int = Field(default=8, gt=0, description="Windows per training step.")
    target: TargetShape = Field(
        default=TargetShape(), description="The target, trained on the domain `modules`, the library's own modules."
    )
    draft: DraftShape = Field(default=DraftShape(), description="The base draft, trained by itself on the same text.")
    fine_tune_steps: int = Field(
        default=120,
        gt=0,
        description="Steps that fine-tune the target on the domain `tests`, the library's test suite.",
    )
    fine_tune_learning_rate: float = Field(
        default=3e-3, gt=0, description="Peak learning rate of the target's fine-tuning."
    )
    newton_schulz_steps: int = Field(
        default=5,
        ge=1,
        le=10,
        description="Iterations of Muon's orthogonalisation. Five take a third of a step on a CPU without bfloat16 units.",
    )
    text_megabytes: float = Field(
        default=3.0, gt=0, description="Maximum text to read of each domain (10^6 characters)."
    )
    prompts: int = Field(
        default=1000, ge=8, description="Prompts cut from held-out files, which no model is trained on."
    )
    prompt_tokens: int = Field(default=48, ge=4, description="Longest prompt; the shortest is half of it.")


class PairConfig(Section):
    """The speculative-decoding pair."""

    target: TargetSource = Field(description="The large model that decides the output.")
    draft: DraftSource = Field(description="The base draft: the draft model before distillation.")
    target_before: ModelSource | None = Field(
        default=None,
        description="The target before its last change; the base draft is examined against it too.",
    )
    trust_remote_code: bool = Field(
        default=False, description="Run code that ships with a model. Set it only if you trust that code."
    )
    generation_config: Literal["check", "ignore"] = Field(
        default="check",
        description="check: `sampling` must agree with the sampling defaults in the target's generation_config.json, which vLLM "
        "and SGLang use for requests that set none. ignore: the server does not use them (vLLM: --generation-config vllm; "
        "SGLang: --sampling-defaults openai), or every request sets its own.",
    )
    rope_factors: Literal["short", "long"] | None = Field(
        default=None,
        description="For models whose RoPE has two sets of factors (longrope: Phi 3 and 4): which ones your engine uses. null: "
        "the long ones where the model's context exceeds its original one, as vLLM does by default. short: it was started with a "
        "lower limit (vLLM: --max-model-len), and no text is longer.",
    )
    reference: ReferenceRecipe = Field(default=ReferenceRecipe(), description="The recipe of the reference pair.")

    @property
    def is_reference(self) -> bool:
        return self.target.source == REFERENCE

    def _is_same(self, model: ModelSource) -> bool:
        return (model.source, model.revision) == (self.target.source, self.target.revision)

    @model_validator(mode="after")
    def _reference_is_a_pair(self) -> "PairConfig":
        if (self.target.source == REFERENCE) != (self.draft.source == REFERENCE):
            raise ValueError("`reference` is a pair: set both target.source and draft.source to it, or neither")
        if self.is_reference and (self.target.dtype, self.draft.dtype) != ("float32", "float32"):
            raise ValueError("the reference pair is made in float32; leave dtype out")
        if self.rope_factors is not None and self.is_reference:
            raise ValueError("the reference pair has one set of RoPE factors; leave rope_factors out")
        if self.target_before is not None and self.is_reference:
            raise ValueError("the reference pair has its own target_before; remove the key")
        if self.target.is_served and self.draft.is_of_target:
            raise ValueError(
                "draft.source is target, but the layers of a target on servers are not available; give a base draft"
            )
        if SERVER in (self.draft.source, self.target_before.source if self.target_before else None):
            raise ValueError("`server` is a source for the target only")
        if not self.is_reference and self._is_same(self.draft):
            raise ValueError(
                "draft.source is the target itself, and such a draft makes nothing faster; give a smaller model, or make one of "
                "the target's layers: draft: {source: target, layers: 4}"
            )
        for role in ("target", "target_before"):
            if getattr(self, role) is not None and getattr(self, role).source == TARGET:
                raise ValueError(f"`target` is a source for the draft only; give the path of {role}")
        return self
