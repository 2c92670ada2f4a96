"""What `understudy plan` takes from the config where nothing has measured it. No stage reads it, so it is in no key."""

from pydantic import Field

from pipeline.config.base import MOST, Section


class PlanConfig(Section):
    """Figures for `understudy plan`, in place of measured ones. Throughputs are of one endpoint, process or GPU."""

    rows: int | None = Field(
        default=None,
        gt=0,
        description="Prompts to plan for, in place of the rows of `corpus.sources`, which then need not be there.",
    )
    prompt_tokens: float | None = Field(default=None, gt=0, le=MOST, description="Mean tokens of a prompt.")
    longest_prompt_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Tokens of the longest prompt, which sets the length of packed training rows; without it "
        "`corpus.max_prompt_tokens` is assumed.",
    )
    completion_tokens: float | None = Field(default=None, gt=0, le=MOST, description="Mean tokens of a completion.")
    generate_tokens_per_second: float | None = Field(
        default=None,
        gt=0,
        description="Tokens per second that the target generates: an endpoint of weight 1 at `generate.server.concurrency` "
        "requests, or the target that is loaded here at `generate.batch`. The prefills of its prompts are within this time.",
    )
    train_tokens_per_second: float | None = Field(
        default=None, gt=0, description="Tokens per second of the training of the draft, prompts included."
    )
    examine_tokens_per_second: float | None = Field(
        default=None, gt=0, description="Tokens per second of a teacher-forced pass of a draft, prompts included."
    )
    flops: float | None = Field(
        default=None,
        gt=0,
        description="FLOP per second that one device sustains in training (30 to 50% of its peak is usual; measure it). Where "
        "no throughput of training and examinations is known, they are estimated as 6 N D and 2 N D; of a head also 2 N D of its "
        "target.",
    )
    draft_parameters: float | None = Field(
        default=None, gt=0, description="Parameters of the draft, where it is neither on this machine nor in the store."
    )
    target_parameters: float | None = Field(
        default=None,
        gt=0,
        description="Parameters of the target, whose pass is a part of each training step of a head on its hidden states, where "
        "it is neither on this machine nor in the store.",
    )
    gpus_per_endpoint: int | None = Field(
        default=None, gt=0, description="GPUs behind an endpoint, to state GPU hours."
    )
