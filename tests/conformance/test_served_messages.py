"""The messages that our chat templates get against vLLM's and SGLang's own code: the cases of `pipeline/corpus/as_served.py`.

llama.cpp's is C++ (`common_chat_msgs_parse_oaicompat` and `to_json_oaicompat` of common/chat.cpp) and was read, not run.
"""

import copy
import json
import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.sources import function_of, source
from tests.unit.corpus.served_messages import CASES, EMPTY_ARGUMENTS, Case

Served = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def vllm() -> Served:
    """What vLLM makes of a message: the text of its parts, and its own treatment of tool calls."""
    if "VLLM_PYTHON" not in os.environ or not Path(os.environ["VLLM_PYTHON"]).exists():
        pytest.skip("VLLM_PYTHON is not set: it names the Python of vLLM's environment (docs/conformance.md)")
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    found = subprocess.run([os.environ["VLLM_PYTHON"], "-c", code], check=True, capture_output=True, text=True)
    path = Path(found.stdout.strip()) / "vllm" / "renderers" / "chat_utils.py"
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
