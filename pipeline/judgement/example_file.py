"""Reads `examples.json` of a gate artifact: completions with the outcome of each token, for the review page."""

from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import AfterValidator
from typing_extensions import TypedDict

from pipeline.judgement.schema import REMEDY
from pipeline.store.parsing import Count, Flag, Format, Number, Text, known_fields_only

FILE = "examples.json"


@known_fields_only
class ExampleSide(TypedDict):
    """What became of each token with one draft: a letter a token, see `acceptance/outcomes.py`."""

    acceptance_rate: Number
    outcomes: Text


@known_fields_only
class Example(TypedDict):
    """One completion. `prompt`: its texts, each with whether the template wrote it. `length`: the completion's tokens, of which
    `tokens` has the first."""

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


@known_fields_only
class Examples(TypedDict):
    """The content of the file. Without a comparison there are none, and no draft length."""

    schema: NotRequired[Count]
    gamma: NotRequired[Count]
    examples: list[Annotated[Example, AfterValidator(_one_letter_a_token)]]


EXAMPLES = Format(name="set of examples", content=Examples, remedy=REMEDY)


def read_examples(gate: Path) -> Examples:
    """The examples in a `gate` artifact. UnderstudyError naming the file if it is missing or damaged."""
    return EXAMPLES.read(gate / FILE)
