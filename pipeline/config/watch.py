"""What is watched in production, and what counts as drift. No stage reads it: it is in no key."""

from typing import Literal

from pydantic import Field

from pipeline.config.base import Section
from pipeline.config.promote import NoticeConfig
from pipeline.config.server import Endpoints
from pipeline.engines.facts import WatchedEngine

Rule = Literal["sequential", "window"]


class CanaryConfig(Section):
    """The examination prompts that the live engine is asked."""

    prompts: int = Field(default=32, ge=2, le=10_000, description="Examination prompts that are sent.")
    max_tokens: int = Field(default=64, ge=2, le=4096, description="Tokens that each answer may have.")
    concurrency: int = Field(default=4, ge=1, le=256, description="Concurrent requests to an engine.")
    idle: bool = Field(
        default=False,
        description="The engines serve nothing else meanwhile: their counters may be compared where an answer has no counts.",
    )


class WatchConfig(Section):
    """The engines that serve the champion, and the test for drift (docs/operations.md)."""

    endpoints: Endpoints = Field(
        default=(),
        description="Every replica of the engine, as `http://host:port`. A gateway does not work: it gives the counters of one "
        "replica at a time. An entry may be a URL.",
    )
    engine: WatchedEngine | None = Field(
        default=None, description="The engine that runs there; null: promote.export.engine."
    )
    model: str | None = Field(
        default=None, description="The served model, where an engine serves several; null: the only one."
    )
    key_variable: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable that holds the bearer token of the engines. The token is stored nowhere.",
    )
    timeout_seconds: float = Field(default=10.0, gt=0, le=600, description="Timeout of a scrape, in seconds.")
    log: str | None = Field(
        default=None,
        description="The deployment's log with statistics by request (docs/logs.md): a file of JSON lines, or a directory of "
        "them. They may grow and rotate.",
    )
    expected: str | None = Field(
        default=None,
        description="An exported directory, or its expected.json: what the counters should show. Null: the champion's, by the "
        "link in promote.export.out; without an export the counters are compared with their own first days.",
    )
    interval_seconds: float = Field(
        default=300.0, ge=1, le=86_400, description="Seconds between scrapes of `understudy watch` without --once."
    )
    draft_length: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Draft tokens of a draft, without an export to read it from: for SGLang, which does not count them, and so "
        "that later positions are watched.",
    )
    rule: Rule = Field(
        default="sequential",
        description="`sequential`: an e-detector, whose rate of false alarms holds however long it runs. `window`: the share of "
        "accepted tokens in a window is below a threshold.",
    )
    margin: float = Field(
        default=0.02,
        ge=0,
        lt=1,
        description="No drift: acceptance is at most this much below what was predicted (0.02 is 2 points).",
    )
    band: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Deviations by hour and by day that are expected, until the reference of "
        "reference_days and reference_drafts is complete.",
    )
    design_effect: float | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Variance of the accepted tokens of a scrape over that of independent drafts, until the counters give it. "
        "Null: that of the examination, or 6 without one.",
    )
    burst_minutes: float = Field(
        default=60.0,
        gt=0,
        le=1440,
        description="A deviation of less than this time is a burst of other traffic, and raises no alarm.",
    )
    reference_days: int = Field(
        default=7, ge=7, le=365, description="Days of counters that make the reference of level and spread."
    )
    reference_drafts: int = Field(default=20_000, ge=20_000, description="Minimum number of drafts of the reference.")
    years_between_false_alarms: float = Field(
        default=1.0, ge=0.01, le=100, description="The mean time to a false alarm is at least this long."
    )
    window: int = Field(default=200, ge=1, description="With rule `window`: draft tokens in the window.")
    threshold: float = Field(
        default=0.5, ge=0, le=1, description="With rule `window`: the examined acceptance rate that is too low."
    )
    notice: NoticeConfig | None = Field(
        default=None,
        description="Receiver of a notice when a drift begins and ends: a webhook or a program, as for promote.notice.",
    )
    metrics: str | None = Field(
        default=None,
        pattern=r"^[0-9A-Za-z.:\[\]-]+:\d{1,5}$",
        description="`host:port` at which `understudy watch` shows its own figures to Prometheus; null: nowhere.",
    )
    rollback: bool = Field(
        default=False,
        description="`champion verify` rolls the champion back where the registered draft falls short of its examination.",
    )
    canary: CanaryConfig = CanaryConfig()
