"""Messages of requests and what servers hand to the chat template: the table of `pipeline/corpus/as_served.py`.

`differ`: the engines do not agree, so ours refuses the message.
"""

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A message of a request, and the message that the template gets; None where engines differ."""

    given: dict[str, Any]
    served: dict[str, Any] | None


def _called(arguments: Any, **more: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"} | arguments}],
        **more,
    }


_USER = {"role": "user", "content": "q"}
_OBJECT = _called({"arguments": {"a": None, "b": {"c": None}}})
CASES = {
    "text": Case(_USER, _USER),
    "null keys": Case(_USER | {"name": None, "tool_calls": None}, _USER),
    "null content": Case(_OBJECT | {"content": None}, _OBJECT),
    "no content": Case({name: item for name, item in _OBJECT.items() if name != "content"}, _OBJECT),
    "nulls in an object of arguments": Case(_OBJECT, _OBJECT),
    "nulls in JSON text of arguments": Case(_called({"arguments": '{"a": null, "b": {"c": null}}'}), _OBJECT),
    "result of a tool": Case(
        {"role": "tool", "content": "r", "tool_call_id": "c"}, {"role": "tool", "content": "r", "tool_call_id": "c"}
    ),
    "arguments that are no JSON": Case(_called({"arguments": "{a"}), None),
    "arguments that are a list": Case(_called({"arguments": "[1]"}), None),
    "arguments that are a number": Case(_called({"arguments": "1"}), None),
}
# vLLM's rule, which SGLang has for none (it drops the key) and not for "" (it refuses).
EMPTY_ARGUMENTS = [_called({}), _called({"arguments": None}), _called({"arguments": ""})]
