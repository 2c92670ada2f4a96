"""The promotion rules, and the load at which the pair serves."""

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.pair import NumberFormat
from pipeline.config.quantiles import DEFAULT_QUANTILE, quantile_of
from pipeline.config.quantize import Variant


class LoadConfig(Section):
    """The load of one replica that serves the pair."""

    requests_per_second: float = Field(gt=0, description="Arrival rate (Poisson arrivals).")
    max_batch: int = Field(
        default=32, ge=1, le=4096, description="Maximum batch size: requests that are decoded at once (max_num_seqs)."
    )
    context: int = Field(default=4096, ge=1, description="Tokens of KV cache for each request, for the memory.")


class ServedTargetConfig(Section):
    """The target as the deployment serves it. A run that examined another one is refused."""

    revision: str | None = Field(
        default=None,
        description="The hub revision, or for a local directory the content digest that `show --json` prints.",
    )
    dtype: NumberFormat | None = Field(default=None, description="The number format in which it is served.")


class GateConfig(Section):
    """Rules of promotion. A rule whose figure is missing or not a number refuses the candidate."""

    min_gain: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="The lower bound of the gain in acceptance rate must exceed this (0.01 is 1 point); over a champion that is "
        "another kind of draft, of the gain in tokens per second (0.01 is 1%).",
    )
    domain_margin: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="No domain may lose this much acceptance rate, or speed where the champion is another kind of draft: the "
        "lower bound of its gain must be above -domain_margin.",
    )
    min_prompts_per_domain: int = Field(
        default=40,
        ge=2,
        description="With fewer examination prompts in a domain, a segment or a range of positions its rule is inconclusive, and "
        "the candidate is refused. The turns of one chat count as one.",
    )
    min_domain_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Domains with a smaller share of the examination prompts have no rule of their own, such as rare modes of "
        "the chat template in a log. 0: every domain has one.",
    )
    segment_margin: float | None = Field(
        default=0.02,
        ge=0,
        le=1,
        description="The same for each segment (thinking, tool calls, answer) that holds at least 10% of the tokens, where there "
        "are several. Null: no such rules.",
    )
    length_margin: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="The same for each range of positions in the output: up to token 16, 32, 64 and so on. Null: no such rules.",
    )
    champion_modes: bool = Field(
        default=True,
        description="Every mode of the chat template (such as enable_thinking=false) that the champion was trained in must be "
        "examined. Set it to false for the run that gives up a mode.",
    )
    beats_prompt_lookup: bool = Field(
        default=True,
        description="The lower bound of the gain in tokens per target call over prompt-lookup must be above 0.",
    )
    max_draft_megabytes: float | None = Field(
        default=None, gt=0, description="Maximum size of the draft on disk (10^6 bytes)."
    )
    load: LoadConfig | None = Field(default=None, description="The load at which the pair serves.")
    profile: dict[Variant, str] = Field(
        default={},
        description="Step times on the serving machine, by variant of the draft (unquantized, int8, int4, fp8): files of "
        "`understudy profile` or `latency fit`. A single path is for the unquantized draft. The variant with the lowest "
        "predicted latency on dev prompts at `load` is promoted.",
    )
    champion_profile: str | None = Field(
        default=None,
        description="Step times on the serving machine with the champion, a file as for `profile`. With it, a candidate of "
        "another kind than the champion is judged by its predicted speed at `load`, and otherwise by the speed that was "
        "measured on the machine of the run (`evaluate.speed`).",
    )
    min_speedup: float | None = Field(
        default=None,
        ge=0,
        description="The lower bound of the predicted speedup at `load` must exceed this. Null: 1 with `load` and `profile`. "
        "0: no such rule.",
    )
    max_latency_seconds: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={},
        description="By quantile of the request latency, p50 to p99: the upper bound of the prediction at `load` must be below "
        "this. `{p95: 2.0, p99: 4.0}` is two rules.",
    )
    max_memory_megabytes: float | None = Field(
        default=None,
        gt=0,
        description="Maximum memory of the weights of the pair and the KV caches at `load` (10^6 bytes).",
    )

    served_target: ServedTargetConfig | None = Field(
        default=None, description="The target that the deployment serves; the examined one must be equal."
    )
    max_examination_days: int | None = Field(
        default=None,
        ge=1,
        description="Maximum age of the examination completions; older ones refuse the candidate, because traffic changes.",
    )
    examples: int = Field(
        default=60,
        ge=0,
        le=200,
        description="Prompts that the review page shows with the outcome of every token; 0 keeps prompts off the page.",
    )

    @property
    def served(self) -> tuple[int, int]:
        """Batch and context for which memory is computed: those of the load, or one request."""
        context: int = LoadConfig.model_fields["context"].default
        return (self.load.max_batch, self.load.context) if self.load else (1, context)

    @property
    def least_speedup(self) -> float | None:
        """The threshold of the rule about the speedup; None where there is no such rule."""
        default = 1.0 if self.load and self.profile else 0.0
        return (default if self.min_speedup is None else self.min_speedup) or None

    @property
    def quantiles(self) -> tuple[float, ...]:
        """The quantiles of the latency that are predicted: those of the rules, or 0.95 if there are none."""
        return tuple(sorted(map(quantile_of, self.max_latency_seconds))) or (DEFAULT_QUANTILE,)

    @field_validator("max_latency_seconds", mode="before")
    @classmethod
    def _quantile_names(cls, value: Any) -> Any:
        for name, most in value.items() if isinstance(value, dict) else ():
            if isinstance(most, dict) and len(most) == 1:  # --set takes every dot for a level
                inner, number = next(iter(most.items()))
                raise ValueError(f"write --set 'gate.max_latency_seconds={{{name}.{inner}: {number}}}', in braces")
            quantile_of(str(name))
        return value

    @field_validator("profile", mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        return {"unquantized": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _rules_have_what_they_need(self) -> "GateConfig":
        if self.profile and self.load is None:
            raise ValueError("profile is used at a load: set gate.load too")
        if self.champion_profile is not None and not self.profile:
            raise ValueError(
                "champion_profile is compared with step times of the candidate: set gate.profile and gate.load too"
            )
        timed = ["min_speedup"] * bool(self.min_speedup) + ["max_latency_seconds"] * bool(self.max_latency_seconds)
        if timed and not (self.load and self.profile):
            raise ValueError(f"{timed[0]} needs a prediction: set gate.load and gate.profile too")
        if self.max_memory_megabytes is not None and self.load is None:
            raise ValueError("max_memory_megabytes depends on batch and context: set gate.load too")
        return self
