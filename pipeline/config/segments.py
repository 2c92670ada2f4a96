"""How tokens of a completion are labelled: thinking, tool calls, answer."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import MOST, Section
from pipeline.engines.chat_markers import ANSWER, PROMPT, FamilyName

TokenIds = Annotated[tuple[Annotated[int, Field(ge=0, le=MOST)], ...], Field(min_length=1, max_length=32)]
Marker = Annotated[str, Field(min_length=1, max_length=200)] | TokenIds


class SegmentRule(Section):
    """A segment of completions, from a marker to a marker. Both belong to it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,29}$", description="Its name in figures and rules.")
    begin: Marker | None = Field(default=None, description="A text, or token ids, with which it begins.")
    begin_pattern: str | None = Field(
        default=None, max_length=200, description="Instead of `begin`: a regular expression."
    )
    end: Marker | None = Field(
        default=None, description="With which it ends; without `end` and `end_pattern` it lasts to the end."
    )
    end_pattern: str | None = Field(default=None, max_length=200, description="Instead of `end`: a regular expression.")

    @field_validator("name")
    @classmethod
    def _is_no_answer(cls, name: str) -> str:
        if name == ANSWER:
            raise ValueError(f"'{ANSWER}' is what no rule names; take another name")
        if name == PROMPT:
            raise ValueError(f"'{PROMPT}' is what the log of a training calls the prompts; take another name")
        return name

    @field_validator("begin_pattern", "end_pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                match = re.compile(pattern).match("")
            except re.error as error:
                raise ValueError(f"no regular expression: {error}") from None
            if match is not None:
                raise ValueError("it matches the empty text, and would begin or end anywhere")
        return pattern

    @model_validator(mode="after")
    def _begins_and_ends_once(self) -> "SegmentRule":
        if (self.begin is None) == (self.begin_pattern is None):
            raise ValueError("set one of begin and begin_pattern")
        if self.end is not None and self.end_pattern is not None:
            raise ValueError("set one of end and end_pattern, or neither")
        return self


class SegmentsConfig(Section):
    """Thinking, tool calls and the answer: figures are given for each (docs/examination.md)."""

    markers: Literal["auto", "none"] | FamilyName = Field(
        default="auto",
        description="Whose markers are used. auto: those of the model family of the target's chat template; none: only `rules`.",
    )
    rules: tuple[SegmentRule, ...] = Field(
        default=(), max_length=32, description="Further segments. They come before those of the family."
    )
    structured: bool = Field(
        default=True,
        description="Whether an answer to a chat that is one JSON object or array is a segment of its own, `structured`.",
    )
