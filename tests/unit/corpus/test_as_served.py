"""The message that a chat template gets is the one that servers hand to it."""

from typing import Any

import pytest

from pipeline.corpus.as_served import as_served, role_of
from tests.unit.corpus.served_messages import CASES, EMPTY_ARGUMENTS, Case


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_message_is_what_servers_make_of_it(case: Case) -> None:
    """Where they differ it is refused, with what is wrong."""
    if case.served is None:
        with pytest.raises(ValueError, match="and no object, which engines read differently"):
            as_served(case.given)
        return
    assert case.served == as_served(case.given)


@pytest.mark.parametrize("given", EMPTY_ARGUMENTS)
def test_a_call_without_arguments_has_none(given: dict[str, Any]) -> None:
    assert {} == as_served(given)["tool_calls"][0]["function"]["arguments"]


def test_older_calls_are_calls() -> None:
    """`function_call` of the API before `tool_calls`."""
    call = {"name": "f", "arguments": '{"a": 1}'}
    served = as_served({"role": "assistant", "content": None, "function_call": call})
    function = {"name": "f", "arguments": {"a": 1}}
    assert {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]} == served


@pytest.mark.parametrize(
    ("sender", "role"),
    [("human", "user"), (" GPT ", "assistant"), ("function", "tool"), ("developer", None), ("critic", "judge")],
)
def test_one_table_names_the_senders(sender: str, role: str | None) -> None:
    """Of `role` and of `from`; what the source says goes before it."""
    assert role == role_of(sender, {"critic": "judge"})
