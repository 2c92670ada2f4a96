"""How the draft is trained on the target's completions."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.drafts.kinds import EAGLE3, Kind
from pipeline.engines.chat_markers import PROMPT

_MOST_PROCESSES = 4096  # that a message lists


def divisors(batch: int) -> list[int]:
    """The numbers of processes among which a micro-batch of `batch` rows can be divided."""
    return [number for number in range(1, min(batch, _MOST_PROCESSES) + 1) if batch % number == 0]


def indivisible(processes: int, batch: int) -> str:
    """What is wrong with a number of processes, and which would do."""
    return (
        f"a batch of {batch} rows (distill.batch) cannot be divided among {processes} processes, only among "
        f"{', '.join(map(str, divisors(batch)))}"
    )


class OnPolicyConfig(Section):
    """On-policy rounds (GKD) after the offline phase: the draft generates, the target scores, the draft is trained on that."""

    rounds: int = Field(default=0, ge=0, description="Number of rounds; each one runs the target again.")
    prompts: int = Field(
        default=512,
        gt=0,
        description="Train prompts per round; the same number of stored target completions is mixed in.",
    )
    max_steps: int = Field(default=100, gt=0, description="Optimiser steps per round.")
    learning_rate: float | None = Field(
        default=None, gt=0, description="Peak learning rate of a round; null: a quarter of the offline phase's."
    )


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
        description="Loss on the stored target distributions; cross_entropy uses the target's tokens only (SFT).",
    )
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="muon: Muon for hidden matrices and AdamW for the rest; better for drafts that were pre-trained with Muon.",
    )
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        default="auto",
        description="Peak learning rate (warm-up, then linear to 0). auto: the best of at most 4 short trainings on dev prompts, "
        "whose steps are at most a tenth of max_steps.",
    )
    unrolled_steps: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="For an EAGLE-3 head: places of a block that are trained, each from the one before. Null: "
        f"{EAGLE3.unrolled}.",
    )
    max_steps: int = Field(default=300, gt=0, description="Optimiser steps.")
    batch: int = Field(default=16, gt=0, description="Sequences per micro-batch.")
    accumulation: int = Field(default=1, gt=0, description="Micro-batches per optimiser step.")
    warmup_share: float = Field(default=0.05, ge=0, lt=1, description="Share of the steps used for warm-up.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Maximum norm of the gradient (clipping).")
    bf16: bool | None = Field(
        default=None,
        description="Train in bfloat16 autocast with float32 weights; null: if the device has bfloat16 units.",
    )
    compile: bool | None = Field(
        default=None,
        description="Compile the draft's layers (torch.compile), which takes a quarter of a minute once; null: on a GPU, in "
        "trainings of 200 steps or more of drafts of 100 million parameters or more, without lora, shard or "
        "gradient_checkpointing. The passes over the logits are compiled with them; null: of any draft from 200 steps on.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute activations in the backward pass: less memory, more time."
    )
    evaluate_every: int = Field(
        default=100,
        gt=0,
        description="Steps between two examinations on dev prompts; the checkpoint with the most tokens per target call at draft "
        "length 5 is kept.",
    )
    patience: int = Field(
        default=0, ge=0, description="Stop training after this number of examinations without an improvement; 0: never."
    )
    save_every: int = Field(
        default=100, gt=0, description="Steps between two checkpoints that a killed run resumes from."
    )
    learning_curve: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(),
        description="Also train drafts on these shares of the completions, such as [0.25, 0.5], to estimate the gain from "
        "more completions. Each share costs a whole training.",
    )
    domain_shares: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default={},
        description="Share of the training sequences by domain, such as {general: 0.2}, which mixes general prompts into a "
        "narrow workload, so that the draft does not forget them. The other domains keep their proportions in the rest.",
    )
    segment_shares: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default={},
        description="Share of the loss by segment of the completion, such as {tool_call: 0.3}. The other segments keep their "
        "proportions in the rest.",
    )
    prompt_weight: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Weight in the loss of a position of the prompt, beside 1 for one of the completion; 0: the target does not "
        "score prompts. Of each train prompt its last generate.max_new_tokens positions count, without what most prompts of its "
        "domain begin and end with.",
    )
    processes: int | Literal["auto"] = Field(
        default="auto",
        description="Processes that train one draft together; each micro-batch is divided among them. auto: one for each GPU, or "
        "one without a GPU; under torchrun, srun or `accelerate launch` as many as it started.",
    )
    shard: bool = Field(
        default=False,
        description="Divide the draft among these processes: each holds a part of its weights, gradients and optimizer state "
        "(FSDP2). For drafts that are too large for one GPU.",
    )
    lora: LoraConfig | None = Field(
        default=None, description="Train LoRA adapters on the linear layers only; null trains all weights."
    )
    on_policy: OnPolicyConfig = Field(default=OnPolicyConfig(), description="On-policy rounds after the offline phase.")

    @property
    def peak_rate(self) -> float:
        """The peak rate of settings in which `auto` is decided."""
        assert self.learning_rate != "auto"
        return self.learning_rate

    def require_for(self, kind: Kind, is_divided: bool = False) -> None:
        """ValueError for a key that is set and that a draft of this kind is not trained with. `is_divided`: among processes."""
        of_models = {
            "lora": self.lora is not None,
            "on_policy.rounds": self.on_policy.rounds > 0,
            "shard": self.shard or is_divided,
            "gradient_checkpointing": self.gradient_checkpointing,
            "compile": self.compile is True,
        }
        chosen = of_models if kind.reads_states else {}
        chosen |= {"unrolled_steps": self.unrolled_steps is not None and kind.unrolled is None}
        if (key := next((key for key, is_set in chosen.items() if is_set), None)) is not None:
            raise ValueError(f"distill.{key}: not available for a draft of kind {kind.name}; leave it out")

    @field_validator("unrolled_steps")
    @classmethod
    def _default_is_null(cls, value: int | None) -> int | None:
        """One value has one key. The default stands in the configs of earlier runs, whatever their draft was."""
        return None if value == EAGLE3.unrolled else value

    @model_validator(mode="after")
    def _shares_are_of_one(self) -> "DistillConfig":
        for name, shares in (("domain_shares", self.domain_shares), ("segment_shares", self.segment_shares)):
            if sum(shares.values()) > 1 + 1e-6:
                raise ValueError(f"{name} sum to {sum(shares.values()):g}, more than 1")
        return self

    @model_validator(mode="after")
    def _batch_is_divisible(self) -> "DistillConfig":
        if self.shard and self.processes == 1:
            raise ValueError(
                "shard divides the draft among processes, and processes is 1: set it to auto or to a number of GPUs"
            )
        if self.processes != "auto" and (self.processes < 1 or self.batch % self.processes):
            raise ValueError(indivisible(self.processes, self.batch))
        return self

    @model_validator(mode="after")
    def _prompts_are_no_answers(self) -> "DistillConfig":
        if PROMPT in self.segment_shares:
            raise ValueError("segment_shares are of completions; what prompts weigh is prompt_weight")
        if self.prompt_weight and self.loss == "cross_entropy":
            raise ValueError(
                "loss cross_entropy would train the draft on the words of the prompts, which are not the target's: set "
                "prompt_weight to 0, or choose another loss"
            )
        return self

    @model_validator(mode="after")
    def _own_text_teaches_nothing(self) -> "DistillConfig":
        if self.on_policy.rounds and self.loss == "cross_entropy":
            raise ValueError(
                "loss cross_entropy would train the draft on its own text in on-policy rounds: choose another loss"
            )
        return self
