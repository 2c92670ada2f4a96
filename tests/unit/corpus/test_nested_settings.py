"""Settings of a request, wherever they stand and however they are spelled."""

import json
from typing import Any

import pytest

from pipeline.corpus.nested_settings import with_settings

NAMES = ("temperature", "top_p", "top_k", "max_tokens", "stop", "stop_sequences", "tools")


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"options": {"temperature": 0.2, "num_predict": 9, "stop": ["x"], "num_ctx": 4096}}, (0.2, 9, ["x"])),
        ({"options": {"temperature": 0.2}, "temperature": 0.9}, (0.2, None, None)),  # which Ollama ignores
        ({"model_parameters": {"temperature": 0.2, "max_tokens": 9, "stop": "x"}}, (0.2, 9, "x")),
        ({"model_parameters": {"temperature": 0.2}, "temperature": 0.9}, (0.9, None, None)),
        ({"modelParameters": {"temperature": "0.2", "max_tokens": "9"}}, (0.2, 9, None)),
        ({"modelParameters": json.dumps({"temperature": 0.2})}, (0.2, None, None)),
        ({"parameters": {"max_new_tokens": 9, "stop": []}}, (None, 9, [])),
        ({"inferenceConfig": {"temperature": 0.2, "maxTokens": 9}}, (0.2, 9, None)),
        ({"temperature": "0.2", "stop": '["x"]'}, (0.2, None, ["x"])),  # of a table
        ({"temperature": None, "extra_body": {"temperature": 0.2}}, (0.2, None, None)),
        ({"stop": "END"}, (None, None, "END")),
        ({"options": ["a", "b"], "parameters": "none"}, (None, None, None)),
    ],
)
def test_a_setting_is_read_wherever_it_stands(fields: dict[str, Any], read: tuple[Any, ...]) -> None:
    found = with_settings(fields, NAMES)
    assert read == tuple(found.get(name) for name in ("temperature", "max_tokens", "stop"))


def test_spellings_of_other_interfaces_are_one_name() -> None:
    found = with_settings({"generationConfig": {"topP": 0.9, "topK": 5, "stopSequences": ["x"], "other": 1}}, NAMES)
    assert {"top_p": 0.9, "top_k": 5, "stop_sequences": ["x"]} == {name: found[name] for name in NAMES if name in found}


def test_what_is_no_setting_stays_where_it_is() -> None:
    fields = {"options": {"a": 1, "messages": []}, "prompt": "5", "domain": "1"}
    assert fields == with_settings(fields, NAMES)
