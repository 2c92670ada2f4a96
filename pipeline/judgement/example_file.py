"""Reads `examples.json` of a gate artifact: completions with the outcome of each token, for the review page."""

from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import AfterValidator, TypeAdapter
from typing_extensions import TypedDict

from pipeline.judgement.schema import REMEDY
from pipeline.store.parsing import KNOWN_FIELDS_ONLY, Count, Flag, Format, Number, Text

FILE = "examples.json"


class ExampleSide(TypedDict):
    """What became of each token with one draft: a letter a token, see `acceptance/outcomes.py`."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY  # type: ignore[misc]  # how pydantic is told

    acceptance_rate: Number
    outcomes: Text


class Example(TypedDict):
    """One completion. `prompt`: its texts, each with whether the template wrote it. `length`: the completion's tokens, of which
    `tokens` has the first."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY  # type: ignore[misc]

    id: Text
    domain: Text
    title: Text
    prompt: list[tuple[Text, Flag]]
    length: Count
    tokens: list[Text]
    candidate: NotRequired[ExampleSide]
    baseline: NotRequired[ExampleSide]


def _one_letter_a_token(example: Example) -> Example:
    for side in (example.get("candidate"), example.get("baseline")):
        if side is not None and len(side["outcomes"]) != len(example["tokens"]):
            raise ValueError(f"{len(side['outcomes'])} outcomes of {len(example['tokens'])} tokens")
    return example


class Examples(TypedDict):
    """The content of the file. Without a comparison there are none, and no draft length."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY  # type: ignore[misc]

    schema: NotRequired[Count]
    gamma: NotRequired[Count]
    examples: list[Annotated[Example, AfterValidator(_one_letter_a_token)]]


EXAMPLES = Format(name="set of examples", content=TypeAdapter(Examples), remedy=REMEDY)


def read_examples(gate: Path) -> Examples:
    """The examples in a `gate` artifact. UnderstudyError naming the file if it is missing or damaged."""
    return EXAMPLES.read(gate / FILE)
