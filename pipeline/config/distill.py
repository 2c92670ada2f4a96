"""How the draft is trained on what the target said."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.config.base import Section


class OnPolicyConfig(Section):
    """Rounds after the offline phase: the draft writes, the target scores, the draft learns from that."""

    rounds: int = Field(default=0, ge=0, description="How many; each needs the target once more.")
    prompts: int = Field(
        default=512, gt=0, description="Train prompts of a round; as many of the target's own completions are mixed in."
    )
    max_steps: int = Field(default=100, gt=0, description="Optimiser steps of a round.")
    learning_rate: float = Field(default=5e-4, gt=0, description="Peak learning rate of a round.")


class LoraConfig(Section):
    """Low-rank adapters, merged into the draft when it is saved. Needs the extra `understudy[lora]`."""

    rank: int = Field(default=16, gt=0, description="Rank of each adapter.")
    alpha: float = Field(default=32.0, gt=0, description="An adapter's output is scaled by alpha / rank.")


class DistillConfig(Section):
    """Offline distillation on stored target distributions."""

    loss: Literal[
        "forward_kl",
        "reverse_kl",
        "jensen_shannon",
        "total_variation",
        "negative_log_acceptance",
        "lk_hybrid",
        "cross_entropy",
    ] = Field(
        default="lk_hybrid",
        description="On the stored distributions; cross_entropy: on the target's tokens alone (plain SFT).",
    )
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="muon: Muon for hidden matrices, AdamW for the rest; better for drafts that were trained so before.",
    )
    learning_rate: float = Field(default=2e-3, gt=0, description="Peak learning rate (warm-up, then linear to 0).")
    max_steps: int = Field(default=300, gt=0, description="Optimiser steps.")
    batch: int = Field(default=16, gt=0, description="Sequences of a micro-batch.")
    accumulation: int = Field(default=1, gt=0, description="Micro-batches of an optimiser step.")
    warmup_share: float = Field(default=0.05, ge=0, lt=1, description="Share of the steps that warm up.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradient clipping.")
    bf16: bool | None = Field(
        default=None,
        description="Products in bfloat16, weights in float32 always; null: where the device multiplies in it.",
    )
    gradient_checkpointing: bool = Field(default=False, description="Trade time for memory.")
    evaluate_every: int = Field(
        default=100,
        gt=0,
        description="Steps between two examinations on dev prompts; the draft that did best by tokens per target call is kept.",
    )
    patience: int = Field(
        default=0, ge=0, description="Examinations without a better draft after which training stops; 0: never."
    )
    save_every: int = Field(
        default=100, gt=0, description="Steps between two checkpoints that a killed run resumes from."
    )
    learning_curve: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(),
        description="Also train drafts on these shares of the completions, such as [0.25, 0.5], to see what more of them would "
        "bring. Each costs a whole training.",
    )
    shares: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default={},
        description="Share of the training by domain, such as {general: 0.2} to replay a general slice beside a narrow workload, "
        "so that the draft does not forget it. Domains that are not named share the rest as they come.",
    )
    lora: LoraConfig | None = Field(
        default=None, description="Train adapters on the linear layers alone; null trains every weight."
    )
    on_policy: OnPolicyConfig = Field(
        default=OnPolicyConfig(), description="Rounds on what the draft itself writes, after the offline phase."
    )

    @model_validator(mode="after")
    def _shares_are_of_one(self) -> "DistillConfig":
        if sum(self.shares.values()) > 1 + 1e-6:
            raise ValueError(f"shares sum to {sum(self.shares.values()):g}, more than 1")
        return self

    @model_validator(mode="after")
    def _own_text_teaches_nothing(self) -> "DistillConfig":
        if self.on_policy.rounds and self.loss == "cross_entropy":
            raise ValueError(
                "loss cross_entropy learns the text itself, and on-policy text is the draft's own: take another"
            )
        return self
