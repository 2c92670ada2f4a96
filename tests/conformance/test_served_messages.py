"""The messages that our chat templates get against vLLM's and SGLang's own code: the cases of `pipeline/corpus/as_served.py`.

llama.cpp's is C++ (`common_chat_msgs_parse_oaicompat` and `to_json_oaicompat` of common/chat.cpp) and was read, not run.
"""

import copy
import json
import logging
import os
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from pipeline.corpus.request_fields import effort_arguments
from pipeline.corpus.template_names import TemplateNames
from tests.conformance.sources import function_of, source
from tests.unit.corpus.served_messages import CASES, EMPTY_ARGUMENTS, Case

_OF_REQUEST = (
    *(
        "add_generation_prompt",
        "continue_final_message",
        "documents",
        "chat_template",
        "media_io_kwargs",
        "tool_choice",
    ),
    *("tools", "response_format"),
)
Served = Callable[[dict[str, Any]], dict[str, Any]]


def _vllm(*place: str) -> Path:
    """A file of vLLM's package."""
    if "VLLM_PYTHON" not in os.environ or not Path(os.environ["VLLM_PYTHON"]).exists():
        pytest.skip("VLLM_PYTHON is not set: it names the Python of vLLM's environment (docs/conformance.md)")
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    found = subprocess.run([os.environ["VLLM_PYTHON"], "-c", code], check=True, capture_output=True, text=True)
    return Path(found.stdout.strip()).joinpath("vllm", *place)


@pytest.fixture(scope="module")
def vllm() -> Served:
    """What vLLM makes of a message: the text of its parts, and its own treatment of tool calls."""
    path = _vllm("renderers", "chat_utils.py")
    known: dict[str, Any] = {
        "json": json, "logger": logging.getLogger("vllm"), "VLLMValidationError": ValueError, "cast": lambda kind, it: it,
        "ChatCompletionContentPartTextParam": dict, "ConversationMessage": dict, "_AssistantParser": dict, "_ToolParser": dict,
        "Any": Any, "Iterable": Any, "_CLAUDE_CODE_BILLING_HEADER": "x", "str": str,
        "_parse_chat_message_content_parts": lambda role, parts, *_, **more: [
            {"role": role, "content": "\n".join(part["text"] for part in parts)}
        ],
    }  # fmt: skip
    known["_strip_claude_code_billing_header"] = function_of(path, "_strip_claude_code_billing_header", **known)
    parse = function_of(path, "_parse_chat_message_content", **known)
    finish = function_of(path, "_postprocess_messages", **known)

    def served(message: dict[str, Any]) -> dict[str, Any]:
        (found,) = parse(copy.deepcopy(message), None, "string", False)
        finish([found])
        return dict(found)

    return served


@pytest.fixture(scope="module")
def sglang() -> Served:
    """What SGLang makes of a message. Its classes of requests keep null keys, as `given` has them."""
    root = source("SGLANG_SOURCE") / "srt"
    serving = root / "entrypoints" / "openai" / "serving_chat.py"

    class Orjson:
        JSONDecodeError = json.JSONDecodeError
        loads = staticmethod(json.loads)

    known: dict[str, Any] = {"orjson": Orjson, "Any": Any}
    known["parse_tool_call_arguments"] = function_of(serving, "parse_tool_call_arguments", **known)
    arguments = function_of(serving, "normalize_assistant_tool_call_arguments", **known)
    content = function_of(root / "parser" / "jinja_template_utils.py", "process_content_for_template_format")

    def served(message: dict[str, Any]) -> dict[str, Any]:
        message = copy.deepcopy(message)
        arguments(message, strict=True)
        if message.get("content") is None:  # as `_apply_jinja_template` does
            message["content"] = ""
        return dict(content(message, "string", [], [], [], []))

    return served


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_engines_hand_the_template_what_ours_is(case: Case, vllm: Served, sglang: Served) -> None:
    """Where ours refuses a message, vLLM has no arguments and SGLang refuses the request."""
    if case.served is not None:
        assert case.served == vllm(case.given) == sglang(case.given)
        return
    assert {} == vllm(case.given)["tool_calls"][0]["function"]["arguments"]
    with pytest.raises(ValueError, match="must be"):
        sglang(case.given)


@pytest.mark.parametrize("given", EMPTY_ARGUMENTS)
def test_no_arguments_are_an_empty_object(given: dict[str, Any], vllm: Served) -> None:
    assert {} == vllm(given)["tool_calls"][0]["function"]["arguments"]


LOOPS = (
    "{% for p in m.content %}{{ p.text }}{% endfor %}",
    "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}",
    "{% set content = m.content %}{% for p in content %}{{ p.text }}{% endfor %}",
    "{% macro w(c) %}{% for p in c %}{{ p.text }}{% endfor %}{% endmacro %}{{ w(m.content) }}",
    "{% macro w(c) %}{% for p in c %}{{ p.name }}{% endfor %}{% endmacro %}{{ w(tools) }}{{ m.content }}",
    "{% for line in m.content.split('a') %}{{ line }}{% endfor %}",
    "{{ m.content }}",
)


@pytest.mark.parametrize("inner", LOOPS)
def test_parts_are_handed_over_where_vllm_does(inner: str) -> None:
    """By its own search for loops over a content."""
    path = _vllm("renderers", "hf.py")
    known: dict[str, Any] = {"jinja2": jinja2, "deque": deque}
    for name in (
        *("_is_var_access", "_is_attr_access", "_is_var_or_elems_access", "_iter_nodes_assign_var_or_elems"),
        *("_iter_nodes_assign_messages_item", "_iter_nodes_assign_content_item"),
    ):
        known[name] = function_of(path, name, **known)
        known[name].__globals__.update(known)
    template = f"{{% for m in messages %}}{inner}{{% endfor %}}"
    found = known["_iter_nodes_assign_content_item"](jinja2.Environment().parse(template))
    assert TemplateNames((template,)).over_parts == any(True for _ in found)


@pytest.mark.parametrize("effort", ["none", "low", "high"])
@pytest.mark.parametrize("stated", [{}, {"enable_thinking": False}])
def test_an_effort_is_what_engines_make_of_it(effort: str, stated: dict[str, Any]) -> None:
    """The arguments of a chat template, of those that one engine does not set alone."""
    values = {"reasoning_effort": effort, "chat_template_kwargs": stated}
    request = SimpleNamespace(**values, **dict.fromkeys(_OF_REQUEST))
    build = function_of(
        _vllm("entrypoints", "openai", "chat_completion", "protocol.py"), "build_chat_params", ChatParams=dict,
        merge_kwargs=lambda one, other: {**(one or {}), **{name: item for name, item in other.items() if item is not None}},
    )  # fmt: skip
    of_vllm = build(request, None, None)["chat_template_kwargs"]
    protocol = source("SGLANG_SOURCE") / "srt" / "entrypoints" / "openai" / "protocol.py"
    of_sglang = function_of(protocol, "normalize_reasoning_inputs", Dict=dict)(None, copy.deepcopy(values))
    of_sglang = {"reasoning_effort": effort, **of_sglang["chat_template_kwargs"]}
    ours = {**effort_arguments(values, stated, lambda name: name != "thinking"), **stated}
    assert ours == of_vllm == {name: item for name, item in of_sglang.items() if name != "thinking"}


def test_tools_at_none_are_where_engines_differ() -> None:
    """vLLM leaves them out only if its option says so; SGLang always."""
    assert "exclude_tools_when_tool_choice_none" in _vllm("renderers", "online_renderer.py").read_text()
    serving = source("SGLANG_SOURCE") / "srt" / "entrypoints" / "openai" / "serving_chat.py"
    assert 'if effective_tools and request.tool_choice != "none"' in serving.read_text()
